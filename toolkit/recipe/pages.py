"""The lists in docs/data.md and docs/rewards.md, from the code. `python -m toolkit.recipe.docs` rewrites them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from toolkit.rewards import REWARDS
from toolkit.tasks import TASKS
from toolkit.tasks.files import READERS
from toolkit.tasks.table_rows import TAKEN


def tasks() -> str:
    """Every task with the first sentence that its class says of itself."""
    return _table("`name`", "what it is", TASKS)


def files() -> str:
    """Every suffix with what its reader says of itself."""
    return _table("suffix", "how it is read", READERS)


def taken() -> str:
    """The column names that get another one."""
    return ", ".join(f"`{name}`" for name in TAKEN)


def rewards() -> str:
    """Every reward with what it says it pays."""
    return _table("`name`", "what it pays", REWARDS)


LISTS: dict[str, dict[str, Callable[[], str]]] = {
    "data.md": {"tasks": tasks, "files": files, "taken": taken},
    "rewards.md": {"rewards": rewards},
}


def rewrite(page: str, text: str) -> str:
    """A page with every list between its two marks written anew."""
    for name, write in LISTS[page].items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        head, _, rest = text.partition(begin)
        _, _, tail = rest.partition(end)
        text = f"{head}{begin}\n\n{write()}\n\n{end}{tail}"
    return text


def _table(first: str, second: str, things: Mapping[str, object]) -> str:
    rows = [f"| `{name}` | {_first_line(thing.__doc__)} |" for name, thing in things.items()]
    return "\n".join([f"| {first} | {second} |", "|---|---|", *rows])


def _first_line(docstring: str | None) -> str:
    return " ".join((docstring or "").split("\n\n")[0].split()).replace("|", "\\|")
