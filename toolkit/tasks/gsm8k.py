"""GSM8K: grade-school word problems with a whole number as answer, from local files or from the Hub.

A gold is what follows the last `####`; calculator annotations (`<<48/2=24>>`) reach no gold, no solution.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from toolkit.answers import canonical
from toolkit.errors import DataError
from toolkit.tasks.base import Row, Split
from toolkit.tasks.files import READERS
from toolkit.tasks.hub import FileSource, FileTask, HubSource, Source, rejection

FOLDER_VARIABLE = "TOOLKIT_GSM8K_DIR"
HUB_NAME, HUB_CONFIG = "openai/gsm8k", "main"
_HINT = f"set {FOLDER_VARIABLE} to a folder with train.jsonl and test.jsonl"
_SPLITS = {"train": "train", "heldout": "test"}
_ANNOTATION = re.compile(r"<<[^<>]*>>")


class GSM8K(FileTask):
    """Grade-school word problems (Cobbe et al. 2021, arXiv 2110.14168); 7,473 to train on, 1,319 held out."""

    name: Literal["gsm8k"] = "gsm8k"
    train_file: str | None = None
    """File with `question` and `answer`; without it the folder in TOOLKIT_GSM8K_DIR, else the Hub."""

    def rows(self, split: Split) -> list[Row]:
        path = self.local_file(split)
        source = FileSource(path) if path else HubSource(HUB_NAME, _SPLITS[split], HUB_CONFIG, way_out=_HINT)
        return _rows(source, split=split, limit=self._limit(split))

    def local_file(self, split: Split) -> Path | None:
        """The file that `rows` would read, or None for the Hub."""
        given, folder = self._file(split), os.environ.get(FOLDER_VARIABLE)
        if given or not folder:
            return given
        names = [Path(folder).expanduser() / f"{_SPLITS[split]}{suffix}" for suffix in READERS]
        return next((path for path in names if path.is_file()), names[0])


def split_answer(answer: str) -> tuple[str, str | None]:
    """GSM8K's `answer` field as (worked solution, gold); no gold where no number follows a `####`."""
    solution, mark, gold = _ANNOTATION.sub("", answer).rpartition("####")
    return solution.strip(), canonical(gold) if mark else None


def _rows(source: Source, *, split: Split, limit: int | None) -> list[Row]:
    rows: list[Row] = []
    rejected: list[tuple[int, str]] = []
    for index, (number, record) in enumerate(source.records(), 1):
        if limit is not None and index > limit:
            break
        question, answer = _columns(record, f"{source.name}:{number}")
        solution, gold = split_answer(answer)
        if gold is None:
            rejected.append((number, _tail(answer)))
        else:
            rows.append(Row(f"gsm8k/{split}/{index}", question, gold, solution or None))
    if rejected:
        hint = "mend or remove these rows; a gold is a number after the last ####"
        what = "have no gold that can be read as a number"
        raise rejection(source, rejected, len(rows) + len(rejected), what=what, hint=hint)
    if not rows:
        raise DataError("there are no rows", where=source.name, hint=_HINT)
    return rows


def _columns(record: Mapping[str, Any], where: str) -> tuple[str, str]:
    question, answer = record.get("question"), record.get("answer")
    if isinstance(question, str) and isinstance(answer, str) and question.strip():
        return question, answer
    found = ", ".join(
        f"{name} ({type(cell).__name__ if str(cell or '').strip() else 'empty'})" for name, cell in record.items()
    )
    hint = "task.name: table reads columns of other names, and golds that are numbers"
    raise DataError(f"a row needs the texts question and answer; found: {found or 'nothing'}", where=where, hint=hint)


def _tail(answer: str) -> str:
    _, mark, gold = answer.rpartition("####")
    return f"no number in {gold.strip()[:60]!r}" if mark else f"no #### in {answer[-40:]!r}"
