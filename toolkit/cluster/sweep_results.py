"""What the trials of a sweep say, as it is shown, logged and recorded, and what became of each. It starts nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from toolkit import console
from toolkit.cluster.post import Message, show_line
from toolkit.cluster.sweep_record import SweepRecord
from toolkit.errors import Stopped
from toolkit.recipe.grid import Variant
from toolkit.rundir import SweepDir

State = Literal["not started", "running", "stopped", "failed", "done"]
LAST_WORDS = 40
_FRAME = "╭╮╰╯│─ "


@dataclass(slots=True)
class Result:
    """What became of a variant, and `why` where it failed."""

    variant: Variant
    state: State = "not started"
    run: Path | None = None
    why: str = ""
    last: list[str] = field(default_factory=list)
    """The last lines that its processes wrote to stderr."""


class Reader:
    """Keeps the results up to date with what is heard."""

    def __init__(self, where: SweepDir, record: SweepRecord, results: Sequence[Result]) -> None:
        self._where, self._record = where, record
        self._results = {result.variant.number: result for result in results}

    def hear(self, message: Message) -> None:
        result = self._results[message.sender]
        number = f"[{message.sender}/{len(self._results)}] "
        if message.kind == "begun":
            result.state = "running"
            self._where.log(message.sender).write_text(result.variant.label + "\n", encoding="utf-8")
            console.say(f"[bold]{console.untrusted(number + result.variant.label)}[/]")
        elif message.kind == "run":
            variant = result.variant
            result.run = self._record.note(variant.fingerprint, message.text, variant.label)
        elif message.kind == "end":
            self._end(result, message)
        else:
            self._line(result, message, number)

    def close(self) -> None:
        """After the last message: a variant that runs no more and has not said so lost its worker."""
        for result in self._results.values():
            if result.state == "running":
                result.state, result.why = "failed", "its worker was ended from outside, or the machine was lost"

    def _line(self, result: Result, message: Message, number: str) -> None:
        with self._where.log(message.sender).open("a", encoding="utf-8") as log:
            log.write(message.text + "\n")
        if message.kind == "err":
            result.last = [*result.last, message.text][-LAST_WORDS:]
        if message.kind != "log":
            show_line(message, before=number)

    def _end(self, result: Result, message: Message) -> None:
        result.state = "done"
        if message.code == Stopped.exit_code:
            result.state = "stopped"
        elif message.code:
            result.state = "failed"
            said = last_words(result.last) or f"ended with exit code {message.code}"
            result.why = str(message.error) if message.error else said


def last_words(lines: Sequence[str]) -> str:
    """What a failed process said last: what stands in its panel, or a traceback's last line."""
    begins = [at for at, line in enumerate(lines) if line.startswith("╭")]
    told = [line.strip(_FRAME) for line in (lines[begins[-1] + 1 :] if begins else lines[-1:])]
    return " ".join(line for line in told if line)
