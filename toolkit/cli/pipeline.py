"""Runs the stages in turn, each as `python -m toolkit` in a process of its own. It does no stage's work.

A process gives its memory back when it ends, and Unsloth, which rewrites TRL, stays inside its stage.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from toolkit import console
from toolkit.cli.summary import show_summary
from toolkit.errors import VerifyFailed
from toolkit.parallel.environment import alone


def run_stages(words: Sequence[str], *, to: str, stages: Sequence[str], push: bool = False) -> int:
    """The exit code of the first stage that fails, else 0. Each stage gets the folder the last one made.

    With `push`, a verification that passed is followed by the push.
    """
    given, inputs = list(words), dict[str, list[str]]()
    wanted = (*stages[: stages.index(to) + 1], *(("push",) if push and to == "verify" else ()))
    with tempfile.TemporaryDirectory(prefix="toolkit-") as scratch:
        for number, stage in enumerate(wanted, start=1):
            console.say(f"[bold]{number}/{len(wanted)} {stage}[/]")
            inputs[stage] = given
            note = Path(scratch) / stage
            code = _run_stage([stage, *given, *_hidden_words(stage, to=to, note=note)])
            if code:
                _say_how_to_go_on(stage, code, inputs, to=to)
                return code
            given = [note.read_text(encoding="utf-8")] if note.exists() else given
            if stage == "verify" and "eval" in inputs:
                show_summary(Path(inputs["eval"][0]), Path(inputs["verify"][0]))
    return 0


def as_word(folder: Path) -> str:
    """For another process, where a dash at the beginning would make it an option."""
    return f"./{folder}" if str(folder).startswith("-") else str(folder)


def _hidden_words(stage: str, *, to: str, note: Path) -> list[str]:
    """A stage that makes a folder notes it for the next; an interrupted training names the command for all stages."""
    then = ["--then", to] if stage == "train" else []
    return [*then, "--note-folder", str(note)] if stage in ("train", "export") else []


def note_folder(file: str | None, folder: Path) -> None:
    """Tell the pipeline, which waits in another process, which folder was made."""
    if file:
        Path(file).write_text(str(folder), encoding="utf-8")


def _say_how_to_go_on(stage: str, code: int, inputs: Mapping[str, Sequence[str]], *, to: str) -> None:
    """After a trained run's later stage ended early. Training and push say it themselves; files that fail their proof stay so."""
    if stage in ("train", "push") or code == VerifyFailed.exit_code:
        return
    if "eval" in inputs:
        console.note(f"to go on: toolkit train --resume {console.untrusted(inputs['eval'][0])} --to {to}")
    elif stage == "verify":
        console.note(f"to go on: toolkit verify {console.untrusted(inputs['verify'][0])}")


def _run_stage(words: Sequence[str]) -> int:
    sys.stdout.flush()
    environment = None if words[0] == "train" else alone()
    with _interrupts_left_to_child():
        code = subprocess.Popen([sys.executable, "-m", "toolkit", *words], env=environment).wait()
    return code if code >= 0 else 128 - code


@contextmanager
def _interrupts_left_to_child() -> Iterator[None]:
    """Ctrl-C reaches both processes; the stage decides what it means. (SIG_IGN would be inherited by it.)"""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
