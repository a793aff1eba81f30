"""GSM8K: grade-school word problems with a whole number as answer, from local files or from the Hub.

A gold is what follows the last `####`; calculator annotations (`<<48/2=24>>`) reach no gold, no solution.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from toolkit.answers import canonical
from toolkit.errors import DataError, MissingExtraError
from toolkit.tasks.base import Row, Split, TaskBase
from toolkit.tasks.jsonl import read_jsonl

FOLDER_VARIABLE = "TOOLKIT_GSM8K_DIR"
HUB_NAME, HUB_CONFIG = "openai/gsm8k", "main"
_HINT = f"set {FOLDER_VARIABLE} to a folder with train.jsonl and test.jsonl"
_FILES = {"train": "train.jsonl", "heldout": "test.jsonl"}
_HUB_SPLITS = {"train": "train", "heldout": "test"}
_ANNOTATION = re.compile(r"<<[^<>]*>>")
_SHOWN = 5


class GSM8K(TaskBase):
    """Grade-school word problems (Cobbe et al. 2021, arXiv 2110.14168); 7,473 to train on, 1,319 held out."""

    name: Literal["gsm8k"] = "gsm8k"
    train_file: str | None = None
    """JSONL file with `question` and `answer`; without it the folder in TOOLKIT_GSM8K_DIR, else the Hub."""
    heldout_file: str | None = None
    """The same for the held-out rows."""
    max_train: int | None = Field(default=None, ge=1)
    """Take only the first so many training rows."""
    max_heldout: int | None = Field(default=None, ge=1)
    """Take only the first so many held-out rows."""

    def rows(self, split: Split) -> list[Row]:
        path = self.local_file(split)
        records = read_jsonl(path) if path else _from_hub(split)
        place = str(path) if path else f"{HUB_NAME}, split {_HUB_SPLITS[split]}"
        limit = self.max_train if split == "train" else self.max_heldout
        return _rows(records, split=split, place=place, limit=limit)

    def local_file(self, split: Split) -> Path | None:
        """The file that `rows` would read, or None for the Hub."""
        given = self.train_file if split == "train" else self.heldout_file
        if given:
            return Path(given).expanduser()
        folder = os.environ.get(FOLDER_VARIABLE)
        return Path(folder).expanduser() / _FILES[split] if folder else None


def split_answer(answer: str) -> tuple[str, str | None]:
    """GSM8K's `answer` field as (worked solution, gold); no gold where no number follows a `####`."""
    solution, mark, gold = _ANNOTATION.sub("", answer).rpartition("####")
    return solution.strip(), canonical(gold) if mark else None


def _rows(
    records: Iterable[tuple[int, Mapping[str, Any]]], *, split: Split, place: str, limit: int | None
) -> list[Row]:
    rows: list[Row] = []
    rejected: list[str] = []
    for number, record in records:
        if limit is not None and len(rows) + len(rejected) >= limit:
            break
        question, answer = _columns(record, f"{place}:{number}")
        solution, gold = split_answer(answer)
        if gold is None:
            rejected.append(f"line {number}: {_tail(answer)}")
        else:
            rows.append(Row(f"gsm8k/{split}/{number}", question, gold, solution))
    if rejected:
        raise _rejection(rejected, len(rows) + len(rejected), place)
    if not rows:
        raise DataError("there are no rows", where=place, hint=_HINT)
    return rows


def _columns(record: Mapping[str, Any], where: str) -> tuple[str, str]:
    question, answer = record.get("question"), record.get("answer")
    if isinstance(question, str) and isinstance(answer, str):
        return question, answer
    found = ", ".join(sorted(map(str, record))) or "none"
    raise DataError(f"a row needs the texts question and answer; columns found: {found}", where=where)


def _tail(answer: str) -> str:
    _, mark, gold = answer.rpartition("####")
    return f"no number in {gold.strip()[:60]!r}" if mark else f"no #### in {answer[-40:]!r}"


def _rejection(rejected: list[str], total: int, place: str) -> DataError:
    shown = "; ".join(rejected[:_SHOWN]) + ("; …" if len(rejected) > _SHOWN else "")
    return DataError(
        f"{len(rejected)} of {total} rows have no gold that can be read as a number: {shown}",
        where=place,
        hint="mend or remove these lines; a gold is a number after the last ####",
    )


def _from_hub(split: Split) -> Iterator[tuple[int, Mapping[str, Any]]]:
    try:
        import datasets
    except ImportError as cause:
        raise MissingExtraError("datasets", "cpu") from cause
    try:
        loaded: Any = datasets.load_dataset(HUB_NAME, HUB_CONFIG, split=_HUB_SPLITS[split])
    except Exception as cause:  # the boundary to the Hub: no network, no such revision, a broken cache
        raise DataError(f"cannot be loaded from the Hub: {cause}", where=HUB_NAME, hint=_HINT) from cause
    yield from enumerate(loaded, 1)
