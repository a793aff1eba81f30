"""Runs coroutines from code that is not asynchronous, on one event loop beside it. It knows nothing of what they do."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from functools import cache
from typing import Any, TypeVar

Result = TypeVar("Result")


def wait_for(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """What the coroutine returns. The calling thread may have a running event loop of its own, as in a notebook."""
    future = asyncio.run_coroutine_threadsafe(coroutine, _loop(os.getpid()))
    try:
        return future.result()
    except BaseException:
        future.cancel()  # Ctrl-C ends the waiting; what was begun must not go on unseen
        raise


@cache
def _loop(process: int) -> asyncio.AbstractEventLoop:
    """One loop for the whole process, because a user's client or lock belongs to the loop that it was first used on.

    Per process: a fork copies the loop, but not the thread that turns it.
    """
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name=f"toolkit-rewards-{process}", daemon=True).start()
    return loop
