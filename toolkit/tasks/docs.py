"""The lists of docs/data.md, from the code. `python -m toolkit.tasks.docs` rewrites them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from toolkit.tasks import TASKS
from toolkit.tasks.files import READERS
from toolkit.tasks.table_rows import TAKEN


def tasks() -> str:
    """Every task with the first sentence that its class says of itself."""
    rows = [f"| `{name}` | {_first_line(kind.__doc__)} |" for name, kind in TASKS.items()]
    return "\n".join(["| `name` | what it is |", "|---|---|", *rows])


def files() -> str:
    """Every suffix with what its reader says of itself."""
    rows = [f"| `{suffix}` | {_first_line(reader.__doc__)} |" for suffix, reader in READERS.items()]
    return "\n".join(["| suffix | how it is read |", "|---|---|", *rows])


def taken() -> str:
    """The column names that get another one."""
    return ", ".join(f"`{name}`" for name in TAKEN)


LISTS: dict[str, Callable[[], str]] = {"tasks": tasks, "files": files, "taken": taken}


def rewrite(text: str) -> str:
    """A document with every list between its two marks written anew."""
    for name, write in LISTS.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        head, _, rest = text.partition(begin)
        _, _, tail = rest.partition(end)
        text = f"{head}{begin}\n\n{write()}\n\n{end}{tail}"
    return text


def _first_line(docstring: str | None) -> str:
    return " ".join((docstring or "").split("\n\n")[0].split()).replace("|", "\\|")


if __name__ == "__main__":
    page = Path(__file__).resolve().parents[2] / "docs" / "data.md"
    page.write_text(rewrite(page.read_text(encoding="utf-8")), encoding="utf-8")
