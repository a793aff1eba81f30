"""Out of memory in the middle of a training: the estimate's terms, what was measured beside them, and the key to turn.

What the system kills (the out-of-memory killer of Linux) cannot be caught; `toolkit doctor RUN` says so of such a run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from toolkit.engine.machine import peak_memory_gib, this_machine
from toolkit.errors import EngineError, ToolkitError
from toolkit.estimate.advice import changes
from toolkit.estimate.shape import shape_of
from toolkit.estimate.terms import estimate

if TYPE_CHECKING:
    from toolkit.engine.machine import Machine
    from toolkit.recipe import Recipe

_MESSAGES = re.compile(r"out of memory|can't allocate memory|cannot allocate memory|DefaultCPUAllocator", re.IGNORECASE)
"""What PyTorch's allocators say in a RuntimeError; a GPU's is a class of its own, whose message has the first."""


class OutOfMemory(EngineError):
    """A step asked for more memory than there was."""


class Meter:
    """What was measured on the way: the peak when each part was done."""

    def __init__(self) -> None:
        self.peaks: dict[str, float] = {}
        """In GiB, by part, in order."""

    def note(self, part: str, machine: Machine) -> None:
        """This part is done."""
        self.peaks[part] = peak_memory_gib(machine)


@contextmanager
def explained(recipe: Recipe, *, go_on: str) -> Iterator[Meter]:
    """What runs out of memory within becomes an error with the terms; `go_on` is the command that resumes."""
    meter = Meter()
    try:
        yield meter
    except (MemoryError, RuntimeError) as error:
        if not is_exhaustion(error):
            raise
        asked = str(error).split("\n")[0]
        raise _explanation(recipe, this_machine(), meter, asked=asked, go_on=go_on) from None


def is_exhaustion(error: BaseException) -> bool:
    """Whether the error says that there was too little memory, on a GPU or not."""
    return isinstance(error, MemoryError) or bool(_MESSAGES.search(str(error)))


def _explanation(recipe: Recipe, machine: Machine, meter: Meter, *, asked: str, go_on: str) -> OutOfMemory:
    meter.note("when it ran out", machine)
    measured = ", ".join(f"{part} {gib:.1f} GiB" for part, gib in meter.peaks.items())
    lines = [
        f"out of memory{f': {asked[:200]}' if asked else ''}",
        f"measured peaks: {measured} of {machine.memory_gib:g}",
    ]
    ways: list[str] = []
    try:
        shape = shape_of(recipe.model)
        found = estimate(recipe, shape, machine)
    except ToolkitError as error:
        lines.append(f"not estimated: {error.message}")
    else:
        lines.append(f"estimated peak: {found.gib:.1f} GiB")
        lines += [f"  {term.gib:7.2f} GiB  {term.name} ({term.how})" for term in found.terms]
        ways = [
            f"{change.key}={_word(change.value)} (saves {change.saves_gib:.1f} GiB)"
            for change in changes(recipe, shape, found)[:3]
        ]
    hint = f"a new run with less: {', '.join(ways)}; " if ways else ""
    return OutOfMemory("\n".join(lines), hint=f"{hint}or free some memory, and go on: {go_on}")


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
