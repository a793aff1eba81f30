"""Ctrl-C and SIGTERM as a request: finish the step, save, stop. A second Ctrl-C stops at once."""

from __future__ import annotations

import signal
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

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
