"""Records of a table -> rows: finds the columns, reads prompts and golds, keeps the rest for rewards. It opens no file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from toolkit.errors import DataError, nearest
from toolkit.tasks.base import Row
from toolkit.tasks.cells import RowFault, plain, text_of
from toolkit.tasks.chats import conversation, is_conversation
from toolkit.tasks.hub import Source, rejection

TAKEN = (
    "prompt", "prompts", "completion", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric",
    "environment", "environments", "image", "images", "row_id",
)  # fmt: skip
"""Names that TRL's GRPOTrainer (1.15) or the toolkit hands to rewards itself; a column of that name gets another one."""

Judge = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Golds:
    """How a gold's cell is read (RowFault where it is none), and what decides whether an answer is that gold."""

    read: Callable[[Any], str]
    judge_of: Callable[[str], Judge | None]


@dataclass(frozen=True, slots=True)
class Columns:
    """Which column holds what. Where `solution` is `prompt`, a conversation's last answer is the solution."""

    prompt: str
    gold: str | None = None
    solution: str | None = None
    by_recipe: bool = True
    """Whether the recipe says so; else the names are the task's own."""

    @property
    def named(self) -> dict[str, str]:
        """The recipe's key for each column that must be there."""
        wanted = {"prompt": self.prompt, "gold": self.gold, "solution": self.solution}
        return {key: column for key, column in wanted.items() if column is not None}


@dataclass(frozen=True, slots=True)
class Built:
    """The rows of one source, and what was renamed or left out while they were made, one sentence each."""

    rows: tuple[Row, ...]
    notices: tuple[str, ...] = field(default=())


def build(source: Source, columns: Columns, *, prefix: str, golds: Golds | None = None) -> Built:
    """Every record as a row, called `prefix/number` after its number among the records.

    DataError where a column is missing, or names the place and the fault of every row that cannot be used.
    """
    records = list(source.records())
    if not records:
        raise DataError("there are no rows", where=source.name)
    found = tuple(dict.fromkeys(name for _, record in records for name in record))
    _require(columns, found, source.name)
    maker = _Maker(columns, _new_names(found, columns.prompt), golds)
    rows: list[Row] = []
    rejected: list[tuple[int, str]] = []
    for index, (number, record) in enumerate(records, 1):
        try:
            rows.append(maker.row(record, f"{prefix}/{index}"))
        except RowFault as fault:
            rejected.append((number, str(fault)))
    if rejected:
        hint = "mend or remove these rows (docs/data.md says what a row needs)"
        raise rejection(source, rejected, len(records), what="cannot be used", hint=hint)
    return Built(tuple(rows), tuple(maker.notices()))


def _require(columns: Columns, found: tuple[str, ...], where: str) -> None:
    for key, column in columns.named.items():
        if column not in found:
            near = nearest(column, found)
            hint = f"did you mean task.{key}: {near}?" if near else f"name one of them in task.{key}"
            if not columns.by_recipe:
                hint = f"rename a column, or take task.name: table, with its {key} column named in the recipe"
            names = ", ".join(found) or "none"
            raise DataError(f"there is no column {column!r}; columns found: {names}", where=where, hint=hint)


def _new_names(found: Iterable[str], prompt: str) -> dict[str, str]:
    """What each column but the prompt is called for rewards."""
    names = {name: name for name in found if name != prompt}
    for name in [name for name in names if name in TAKEN]:
        new = f"data_{name}"
        while new in names:
            new = f"data_{new}"
        names[name] = new
    return names


class _Maker:
    """Makes rows of one table, and remembers what it left out."""

    def __init__(self, columns: Columns, names: Mapping[str, str], golds: Golds | None) -> None:
        self._columns, self._names, self._golds = columns, names, golds
        self._ignored: dict[str, int] = {}

    def row(self, record: Mapping[str, Any], row_id: str) -> Row:
        cell = record.get(self._columns.prompt)
        question, chat, answer = self._asked(cell) if is_conversation(cell) else (text_of(cell, "the prompt"), (), None)
        if not question.strip():
            raise RowFault("the prompt is empty")
        gold = self._golds.read(record.get(self._columns.gold or "")) if self._golds else ""
        judge = self._golds.judge_of(gold) if self._golds else None
        solution = answer or self._solution(record)
        # As they were read, so that a function that asks for them gets the same from every kind of file.
        read = {self._columns.gold: gold, self._columns.solution: solution}
        own = {new: read.get(name, plain(record.get(name))) for name, new in self._names.items()}
        return Row(row_id, question, gold, solution, judge=judge, chat=chat, columns=own)

    def _asked(self, cell: object) -> tuple[str, tuple[Mapping[str, str], ...], str | None]:
        talk = conversation(cell)
        if talk.answer is not None and self._columns.solution != self._columns.prompt:
            raise RowFault(
                "the conversation ends with the assistant's answer, so it asks nothing "
                f"(task.solution: {self._columns.prompt} takes that answer for the warm-up)"
            )
        for key in talk.ignored:
            self._ignored[key] = self._ignored.get(key, 0) + 1
        return talk.question, talk.messages if len(talk.messages) > 1 else (), talk.answer

    def _solution(self, record: Mapping[str, Any]) -> str | None:
        if self._columns.solution in (None, self._columns.prompt):
            return None
        return text_of(record.get(self._columns.solution), "the solution").strip() or None

    def notices(self) -> Iterable[str]:
        for name, new in self._names.items():
            if new != name:
                yield f"the column {name!r} is called {new!r} for rewards: TRL uses {name!r} itself"
        for key, count in self._ignored.items():
            yield f"{key!r} in the messages of {count} rows is left out: a message is role and content"
