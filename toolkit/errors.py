"""The errors a user can cause or mend. Bugs are not among them: they keep their traceback.

ToolkitError                 one panel on stderr, exit code 2
├── RecipeError              the recipe is wrong; carries every fault with file, line and column
├── DataError                rows cannot be read, or are not what the recipe says
├── MissingExtraError        an optional part is not installed; names the command that installs it
├── EngineError              model, machine or training cannot do what was asked
├── ExportError              a file of the export cannot be made
├── VerifyFailed             the shipped files do not answer as the trained model did; exit code 1
└── Stopped                  somebody asked a running step to stop, and it saved what it had; exit code 130
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass


class ToolkitError(Exception):
    """What went wrong (`message`), where (`where`), and the way out, normally a command (`hint`)."""

    exit_code = 2

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        head = f"{self.where}: {self.message}" if self.where else self.message
        return f"{head} ({self.hint})" if self.hint else head

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.args, dict(self.__dict__)))


def _rebuild(kind: type[ToolkitError], args: tuple[object, ...], state: dict[str, object]) -> ToolkitError:
    """Unpickle without calling __init__, whose keyword-only arguments plain pickling would lose."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong in a recipe. Line and column count from 1; None on the command line."""

    file: str
    line: int | None
    column: int | None
    key: str
    message: str
    hint: str | None = None

    @property
    def place(self) -> str:
        """`recipes/my.yaml:12:3`, or `command line`."""
        parts = [self.file, self.line, self.column]
        return ":".join(str(part) for part in parts if part is not None)

    def __str__(self) -> str:
        head = f"{self.place}: {self.key}: {self.message}" if self.key else f"{self.place}: {self.message}"
        return f"{head} ({self.hint})" if self.hint else head


class RecipeError(ToolkitError):
    """Every fault of a recipe at once, in the order in which they stand in the files."""

    def __init__(self, faults: list[Fault]) -> None:
        if not faults:
            raise ValueError("a RecipeError needs at least one fault")
        what = "1 fault in the recipe" if len(faults) == 1 else f"{len(faults)} faults in the recipe"
        super().__init__(what, where=faults[0].place if len(faults) == 1 else faults[0].file)
        self.faults = faults

    def __str__(self) -> str:
        return "\n".join(str(fault) for fault in self.faults)


class KeyFault(ValueError):
    """From a validator of a task or a reward: which key below it is wrong, and so where the fault is."""

    def __init__(self, message: str, *, at: tuple[str | int, ...] = (), hint: str | None = None) -> None:
        super().__init__(message)
        self.at = at
        self.hint = hint


class DataError(ToolkitError):
    """Rows cannot be read, or are not what the recipe says."""


class MissingExtraError(ToolkitError):
    """An optional part of the installation is missing."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"the package {package} is not installed; it belongs to the extra '{extra}'",
            hint=f"make setup EXTRA={extra}",
        )
        self.package = package
        self.extra = extra


class EngineError(ToolkitError):
    """Model, machine or training cannot do what was asked."""


class ExportError(ToolkitError):
    """A file of the export cannot be made."""


class VerifyFailed(ToolkitError):
    """The shipped files do not answer as the trained model did."""

    exit_code = 1


class Stopped(ToolkitError):
    """A step was asked to stop, and saved what it had."""

    exit_code = 130


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """The choice most like `word`, or None when nothing is close enough to be worth naming."""
    folded = {choice.casefold().replace("-", "_"): choice for choice in choices}
    wanted = word[:200].casefold().replace("-", "_")
    found = difflib.get_close_matches(wanted, list(folded), n=1, cutoff=0.6)
    return folded[found[0]] if found else None
