"""Ctrl-C and SIGTERM as a request: finish the step, save, stop. A second Ctrl-C stops at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from toolkit import console


@dataclass
class StopRequest:
    """Whether somebody asked to stop."""

    asked: bool = False


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Within the block a first signal only sets the request."""
    request = StopRequest()

    def on_signal(number: int, _frame: object) -> None:
        if request.asked:
            raise KeyboardInterrupt
        request.asked = True
        console.err.print(f"\n{signal.Signals(number).name}: finishing this step and saving; once more stops at once")

    # Only a main thread may ask for them: a job that runs in another one is stopped by its scheduler.
    wanted = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, on_signal) for number in wanted}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
