"""Runs the stages in turn, each as `python -m toolkit` in a process of its own. It does no stage's work.

A process gives its memory back when it ends, and Unsloth, which rewrites TRL, stays inside its stage.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from toolkit import console


def run_stages(words: Sequence[str], *, to: str, stages: Sequence[str]) -> int:
    """The exit code of the first stage that fails, else 0. Each stage gets the folder the last one made."""
    given = list(words)
    wanted = stages[: stages.index(to) + 1]
    with tempfile.TemporaryDirectory(prefix="toolkit-") as scratch:
        for number, stage in enumerate(wanted, start=1):
            console.say(f"[bold]{number}/{len(wanted)} {stage}[/]")
            note = Path(scratch) / stage
            code = _run_stage([stage, *given, *(["--note-folder", str(note)] if stage in ("train", "export") else [])])
            if code:
                return code
            given = [note.read_text(encoding="utf-8")] if note.exists() else given
    return 0


def _run_stage(words: Sequence[str]) -> int:
    sys.stdout.flush()
    with _interrupts_left_to_child():
        code = subprocess.Popen([sys.executable, "-m", "toolkit", *words]).wait()
    return code if code >= 0 else 128 - code


@contextmanager
def _interrupts_left_to_child() -> Iterator[None]:
    """Ctrl-C reaches both processes; the stage decides what it means. (SIG_IGN would be inherited by it.)"""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
