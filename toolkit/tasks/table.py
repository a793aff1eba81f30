"""Your own table: JSONL, JSON, CSV, parquet, or a data set on the Hub, its columns named in the recipe. It reads no file itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from toolkit.answers import extract_block
from toolkit.errors import KeyFault
from toolkit.prompts import SYSTEM_PROMPT, format_completion
from toolkit.tasks.base import Row, Split
from toolkit.tasks.cells import RowFault, number_of, text_of
from toolkit.tasks.halves import Halves, set_aside
from toolkit.tasks.hub import FileSource, FileTask, HubSource, Source
from toolkit.tasks.judges import MathJudge, TextJudge
from toolkit.tasks.table_rows import Built, Columns, Golds, build

_OFFLINE = "check task.dataset, config, split and revision; without a network name a file in task.train_file"
_HUB_ONLY = {"config": None, "train_split": "train", "heldout_split": None, "revision": None}


class Table(FileTask):
    """Your own rows, from a file or from the Hub, with or without golds."""

    name: Literal["table"] = "table"
    system_prompt: str | None = None
    """Text of the system message; empty for none; null: the answer format where there is a gold column, else none."""
    dataset: str | None = None
    """Instead of train_file: a data set on the Hub, `org/name`."""
    config: str | None = None
    """The data set's configuration, where it has several."""
    train_split: str = "train"
    """Its split to train on."""
    heldout_split: str | None = None
    """Its held-out split; null: some of the training rows are set aside."""
    revision: str | None = None
    """Its branch, tag or commit."""
    heldout_rows: int | None = Field(default=None, ge=1)
    """Without a held-out file or split, rows of the training data that are set aside; null: a tenth, at most 300."""
    split_seed: int = Field(default=0, ge=0)
    """Which ones are set aside."""
    prompt: str = "prompt"
    """Column that asks: a text, or a conversation (list of messages with role and content)."""
    gold: str | None = None
    """Column with the right answer; null: no row has one, and rewards judge without."""
    grading: Literal["number", "text", "math"] = "number"
    """When an answer is the gold: the same number, the same text but for case and spacing, or an equal expression."""
    solution: str | None = None
    """Column with a worked solution, for the warm-up; the prompt's own name: the answer that ends the conversation."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.train_file is None) == (self.dataset is None):
            given = "both" if self.dataset else "neither"
            raise KeyFault(f"one of train_file and dataset is needed, got {given}")
        for key, default in _HUB_ONLY.items():
            if self.dataset is None and getattr(self, key) != default:
                raise KeyFault(f"{key} belongs to a dataset on the Hub, and train_file is a file", at=(key,))
        if self.heldout_file and self.heldout_split:
            raise KeyFault("heldout_file and heldout_split are both given: take one", at=("heldout_file",))
        if self.heldout_rows is not None and self._apart:
            hint = "heldout_rows: null; max_heldout takes the first so many of them"
            raise KeyFault("nothing is set aside where held-out rows have a source", at=("heldout_rows",), hint=hint)
        return self

    @property
    def system_text(self) -> str:
        if self.system_prompt is not None:
            return self.system_prompt
        return SYSTEM_PROMPT if self.gold is not None else ""

    @property
    def graded(self) -> bool:
        return self.gold is not None

    @property
    def column_names(self) -> Mapping[str, str]:
        return self._columns.named

    def rows(self, split: Split) -> list[Row]:
        read, _ = self._read(split)
        rows = read.train if split == "train" else read.heldout
        return list(rows[: self._limit(split)])

    def notices(self, split: Split) -> list[str]:
        read, notices = self._read(split)
        if read.left_out and split == "train":
            notices = (*notices, f"{read.left_out} rows ask what a row that was set aside asks, and are left out")
        return list(notices)

    def judge_of(self, gold: str) -> Callable[[str], bool] | None:
        return {"number": None, "text": TextJudge(gold), "math": MathJudge(gold)}[self.grading]

    def worked(self, row: Row) -> str | None:
        """The solution in the answer format around the gold; as it stands where there is no gold, or it has the format."""
        if row.solution is None or not self.graded or extract_block(row.solution) is not None:
            return row.solution
        return format_completion(row.solution, row.gold)

    @property
    def _columns(self) -> Columns:
        return Columns(self.prompt, self.gold, self.solution)

    @property
    def _apart(self) -> bool:
        """Whether the held-out rows have a source of their own."""
        return bool(self.heldout_file or self.heldout_split)

    def _read(self, split: Split) -> tuple[Halves, tuple[str, ...]]:
        own = split if self._apart else "train"
        return _read_once(self, own, self.source(own).stamp)  # type: ignore[arg-type]  # frozen, so pydantic hashes it

    def build(self, split: Split) -> Built:
        """The rows of a half's own source, before any are set aside."""
        golds = Golds(self._read_gold, self.judge_of) if self.graded else None
        return build(
            self.source(split), self._columns, prefix=f"table/{split}" if self._apart else "table", golds=golds
        )

    def halves(self, rows: Sequence[Row]) -> Halves:
        """Rows of one source as the halves that it stands for."""
        if self._apart:
            return Halves(tuple(rows), tuple(rows), 0)
        return set_aside(rows, self.heldout_rows, seed=self.split_seed, where=self.source("train").name)

    def source(self, split: Split) -> Source:
        """Where the half's own records come from. Without a held-out source only that of `train` is read."""
        file = self._file(split)
        if file is not None:
            return FileSource(file)
        assert self.dataset is not None  # _one_source
        name = self.train_split if split == "train" else self.heldout_split
        return HubSource(self.dataset, str(name), self.config, self.revision, way_out=_OFFLINE)

    def _read_gold(self, cell: Any) -> str:
        text = text_of(cell, "the gold").strip()
        if not text:
            raise RowFault("the gold is empty")
        if self.grading == "number":
            gold = number_of(cell)
            if gold is None:
                raise RowFault(f"the gold {text[:60]!r} states no number")
            return gold
        if self.grading == "math":
            from toolkit.tasks.symbolic import expression

            # Whether the library can compute with it is left to `toolkit check`: 7,000 golds take minutes.
            if expression(text) is None:
                raise RowFault(f"the gold {text[:60]!r} is no expression")
        return text


@lru_cache(maxsize=2)
def _read_once(task: Table, split: Split, stamp: object) -> tuple[Halves, tuple[str, ...]]:
    """A step asks for both halves and for what was left out; a data set on the Hub takes seconds each time."""
    built = task.build(split)
    return task.halves(built.rows), built.notices
