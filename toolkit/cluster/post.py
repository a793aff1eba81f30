"""What workers anywhere on a Ray tell the process that the user watches, and its wish to stop the other way. It shows nothing."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from toolkit import console
from toolkit.errors import EngineError, ToolkitError

LOOK_S = 0.3
WAIT_S = 30
"""After so long without a word it is said what is waited for."""

LOST = ("WorkerGroupError", "ControllerError")
"""Ray Train's exceptions for workers that are gone, by name: this process need not import it."""

Kind = Literal["out", "err", "log", "begun", "run", "end"]
"""A line of stdout, of stderr, or one that is not shown; that a variant began; its run's folder; how it ended."""


@dataclass(frozen=True, slots=True)
class Message:
    """From one worker, which is known by its rank, or by its variant's number."""

    kind: Kind
    sender: int
    text: str = ""
    code: int = 0
    error: ToolkitError | None = None
    """Why it ended, where that is not said in its lines."""


class Post:
    """Holds messages until they are taken. It lives in a Ray actor."""

    def __init__(self) -> None:
        self._held: list[Message] = []
        self._stopping = False

    def put(self, message: Message) -> None:
        self._held.append(message)

    def take(self) -> list[Message]:
        taken, self._held = self._held, []
        return taken

    def stop(self) -> None:
        self._stopping = True

    def stopping(self) -> bool:
        return self._stopping


def open_post() -> Any:
    """The handle of a new one, on the Ray that is connected."""
    import ray  # type: ignore[import-not-found]

    return ray.remote(num_cpus=0)(Post).remote()


def watch(job: Any, post: Any, show: Callable[[Message], None], *, waiting_for: str, stopping: str) -> None:
    """Show what comes until the job (a Ray object) has ended.

    Ctrl-C and SIGTERM ask the workers to stop, in their own time; `stopping` says so. A second one raises KeyboardInterrupt.
    """
    import ray  # type: ignore[import-not-found]

    started, heard, told = time.monotonic(), False, False
    with _wish_to_stop(stopping) as asked:
        while True:
            ended, _ = ray.wait([job], timeout=LOOK_S)
            if asked() and not told:
                post.stop.remote()
                told = True
            for message in ray.get(post.take.remote()):
                heard = True
                show(message)
            if ended:
                return
            if not heard and time.monotonic() - started > WAIT_S:
                heard = True
                console.note(f"waiting for {waiting_for} (ray status shows what is free)")


@contextmanager
def _wish_to_stop(stopping: str) -> Iterator[Callable[[], bool]]:
    """Ray is not called in the handler: the signal may have interrupted it."""
    count = 0

    def on_signal(number: int, _frame: object) -> None:
        nonlocal count
        count += 1
        if count > 1:
            raise KeyboardInterrupt
        console.err.print(f"\n{signal.Signals(number).name}: {stopping}; once more stops at once")

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: count > 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def show_line(message: Message, before: str = "") -> None:
    """A worker's line on the stream on which it was written."""
    text = console.untrusted(before + message.text)
    (console.say if message.kind == "out" else console.note)(text)


def require_ended_well(job: Any, *, go_on: str) -> None:
    """ToolkitError where Ray lost a worker of the job, or a machine lacks the toolkit; a bug in a worker leaves as it is.

    `go_on`: the command that goes on then. Ray says on stdout, unasked, how it lost a worker.
    """
    import ray  # type: ignore[import-not-found]
    from ray.exceptions import RayTaskError  # type: ignore[import-not-found]

    try:
        ray.get(job)
    except RayTaskError as error:
        if "No module named 'toolkit'" in str(error):
            what = "a machine of the cluster lacks the toolkit"
            raise ToolkitError(what, hint="every machine needs the same set-up: docs/scaling.md") from error
        if type(error.cause).__name__ not in LOST:
            raise
        what = "Ray lost a worker: its process was killed, or its machine is gone"
        raise EngineError(what, hint=go_on) from error
