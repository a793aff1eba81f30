"""The only writer to the terminal: results on stdout, everything else on stderr. It decides nothing.

Text from a model or a file goes through `untrusted` before it is printed: no markup, no control characters.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Any

from rich.console import Console
from rich.markup import escape

from toolkit.errors import Fault, RecipeError, ToolkitError

# Controls but tab and newline, bidirectional overrides, lone surrogates (which no stream can encode).
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
# A pipe has no width. Rich would take 80 columns and cut paths and tables that a script wants whole.
_PIPE_WIDTH = 4000


class _Console(Console):
    """Rich's console, except that a closed pipe reaches `cli.main`, which knows the right exit code."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    piped = stream is None or not stream.isatty()
    width = _PIPE_WIDTH if piped and "COLUMNS" not in os.environ else None
    return _Console(stderr=stderr, width=width, highlight=False, emoji=False)


out = _console(stderr=False)
err = _console(stderr=True)


def is_live() -> bool:
    """Whether a person watches stdout: only then are displays redrawn in place."""
    return out.is_terminal and not out.is_dumb_terminal


def untrusted(text: object) -> str:
    """Make foreign text safe inside markup: control characters dropped, brackets taken literally."""
    return escape(_CONTROL.sub("", str(text)))


def say(text: str = "") -> None:
    """One line (or more) on stdout, with rich markup."""
    out.print(text, soft_wrap=True)


def warn(text: str) -> None:
    """Probably a mistake: one line on stderr, with its fix."""
    err.print(f"[yellow]warning:[/] {text}", soft_wrap=True)


def note(text: str) -> None:
    """What was chosen or is going on: one line on stderr, so that stdout holds only results."""
    err.print(text, soft_wrap=True)


@contextmanager
def silenced() -> Iterator[None]:
    """Within the block nothing is printed, by libraries neither: another process speaks. Errors that leave it are shown."""
    out.quiet = err.quiet = True
    try:
        with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
            yield
    finally:
        out.quiet = err.quiet = False


def stream(piece: str) -> None:
    """A piece of foreign text on stdout, at once and without a line's end. It is not read as markup."""
    sys.stdout.write(_CONTROL.sub("", piece))
    sys.stdout.flush()


def ask(prompt: str) -> str | None:
    """A line that a person types; None where there will be no more (Ctrl-D)."""
    with suppress(ImportError):  # some builds of Python lack it
        import readline  # noqa: F401  (from now on input() can be edited)
    try:
        return input(prompt)
    except EOFError:
        raw("")
        return None


def raw(text: str) -> None:
    """One line on stdout exactly as given: for output that a program reads."""
    sys.stdout.write(text + "\n")


def raw_json(value: Any, *, indent: int | None = None) -> None:
    """A value as JSON on stdout. ASCII only, so that no locale can spoil it; nan is a bug, not an output."""
    raw(json.dumps(value, indent=indent, allow_nan=False))


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table on stdout. Cells are markup: pass foreign text through `untrusted`. Numbers stand right."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    cells = [list(row) for row in rows]
    grid = Table(title=title or None, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(columns):
        numeric = bool(cells) and all(isinstance(row[index], (int, float)) for row in cells)
        grid.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        grid.add_row(*("–" if cell is None else str(cell) for cell in row))
    out.print(grid)


def fail(error: ToolkitError) -> None:
    """One panel on stderr: where, what, and the way out."""
    from rich.panel import Panel

    lines = _fault_lines(error.faults) if isinstance(error, RecipeError) else _error_lines(error)
    title = "recipe" if isinstance(error, RecipeError) else "error"
    err.print(Panel.fit("\n".join(lines), title=title, title_align="left", border_style="red"))


def _error_lines(error: ToolkitError) -> list[str]:
    lines = [f"[bold]{untrusted(error.where)}[/]"] if error.where else []
    lines.append(untrusted(error.message))
    return lines + ([f"[green]→ {untrusted(error.hint)}[/]"] if error.hint else [])


def _fault_lines(faults: Sequence[Fault]) -> list[str]:
    lines: list[str] = []
    for fault in faults:
        key = f" {untrusted(fault.key)}" if fault.key else ""
        lines.append(f"[bold]{untrusted(fault.place)}[/]{key}")
        lines.append(f"  {untrusted(fault.message)}" + (f" [green]→ {untrusted(fault.hint)}[/]" if fault.hint else ""))
    return lines
