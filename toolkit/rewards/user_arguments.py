"""What a user's function is given by name, in TRL's lists or row by row, and what is wrong with what it asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter
from typing import Any

from toolkit.errors import nearest
from toolkit.rewards.user_function import UserFunction
from toolkit.tasks.base import Row

LISTS = ("prompts", "completions", "completion_ids")
"""What TRL gives every reward function besides the data's columns."""
_TRAINERS = ("trainer_state", "log_extra", "log_metric", "environments")
"""What only TRL's trainer itself could give."""
_OF_A_ROW = ("id", "question", "gold", "solution", "level")
_MEAN_THE_GOLD = ("solution", "answer", "ground_truth", "target", "label", "reference")
"""What other functions call the right answer."""

Problem = tuple[str, str | None]
"""What is wrong, and the way out."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Completions, each with its row; their token ids where they are known."""

    texts: Sequence[str]
    rows: Sequence[Row]
    ids: Sequence[Sequence[int]] | None = None

    def __len__(self) -> int:
        return len(self.texts)

    def one(self, place: int) -> Batch:
        """A single completion of it."""
        at = slice(place, place + 1)
        return Batch(self.texts[at], self.rows[at], None if self.ids is None else self.ids[at])


@dataclass(frozen=True, slots=True)
class Extras:
    """What the recipe adds: constants, and parameters that are fed from a column of another name."""

    arguments: Mapping[str, Any]
    columns: Mapping[str, str]


def by_row(batch: Batch, extras: Extras) -> list[dict[str, Any]]:
    """One call's arguments for each completion, for a function of `text` and `row`."""
    return [{"text": text, "row": row, **extras.arguments} for text, row in zip(batch.texts, batch.rows, strict=True)]


def as_lists(function: UserFunction, batch: Batch, extras: Extras) -> dict[str, Any]:
    """TRL's arguments for all completions at once, without those that the function has no place for."""
    given: dict[str, Any] = {name: _column(batch.rows, name) for name in _names(batch.rows)}
    given |= {name: _column(batch.rows, source) for name, source in extras.columns.items()}
    given |= extras.arguments
    given["prompts"] = [_chat(row) for row in batch.rows]
    given["completions"] = [[{"role": "assistant", "content": text}] for text in batch.texts]
    if batch.ids is not None:
        given["completion_ids"] = [list(ids) for ids in batch.ids]
    return {name: value for name, value in given.items() if function.takes(name)}


def problem(function: UserFunction, extras: Extras, rows: Sequence[Row]) -> Problem | None:
    """The first thing for which the function could not be called on these rows."""
    by_place = [name for name, parameter in function.parameters.items() if parameter.kind is Parameter.POSITIONAL_ONLY]
    if by_place:
        return f"takes {by_place[0]} by its place only, and arguments are given by name", None
    if not function.by_row and not any(map(function.takes, ("completions", "completion_ids"))):
        return "takes no completions", "def score(text, row), or TRL's: def score(completions, **columns)"
    for name in (*extras.arguments, *extras.columns):
        if not function.takes(name):
            near = nearest(name, function.named)
            return f"takes no argument {name}", f"did you mean {near}?" if near else None
    return _by_row_problem(function, extras) if function.by_row else _lists_problem(function, extras, rows)


def _by_row_problem(function: UserFunction, extras: Extras) -> Problem | None:
    if extras.columns:
        return "takes a text and its row, so no columns", "the row has them: row.columns"
    lacking = [name for name in function.required if name not in ("text", "row", *extras.arguments)]
    return (f"needs {lacking[0]}, and nobody gives it", f"arguments: {{{lacking[0]}: …}}") if lacking else None


def _lists_problem(function: UserFunction, extras: Extras, rows: Sequence[Row]) -> Problem | None:
    wanted = {name: name for name in function.required} | dict(extras.columns)
    for name, source in wanted.items():
        if name in LISTS or name in extras.arguments:
            continue
        lacking = [row for row in rows if not _has(row, source)]
        if lacking and source in _TRAINERS:
            return f"needs {name}, which only TRL's own trainer could give", f"give it a default: {name}=None"
        if lacking:
            which = "the rows do" if len(lacking) == len(rows) else f"{len(lacking)} of {len(rows)} rows do"
            return f"needs the column {source}, which {which} not have: {lacking[0].id}", _other_columns(
                name, source, rows
            )
    return None


def _other_columns(name: str, source: str, rows: Sequence[Row]) -> str:
    there = [other for other in _names(rows) if all(_has(row, other) for row in rows)]
    near = "gold" if source in _MEAN_THE_GOLD and "gold" in there else nearest(source, there) or "…"
    return f"there are: {', '.join(there)}; to give another one, columns: {{{name}: {near}}}"


def _chat(row: Row) -> list[dict[str, str]]:
    return [dict(message) for message in row.chat] or [{"role": "user", "content": row.question}]


def _names(rows: Sequence[Row]) -> list[str]:
    """The columns that any row has: the data's own first, then those of every row of the toolkit."""
    own = dict.fromkeys(name for row in rows for name in row.columns)
    return [*own, *(name for name in _OF_A_ROW if name not in own and any(_has(row, name) for row in rows))]


def _has(row: Row, name: str) -> bool:
    """No gold and no solution is nothing, although a row has a place for them."""
    return name in row.columns or (name in _OF_A_ROW and getattr(row, name) not in (None, ""))


def _column(rows: Sequence[Row], name: str) -> list[Any]:
    """One value a row, None where it has none."""
    return [row.columns.get(name, getattr(row, name) if name in _OF_A_ROW else None) for row in rows]
