"""What an evaluation has so far, on disk: every batch, and every model's judged answers. It generates and grades nothing.

A killed evaluation leaves whole files only. They count for an evaluation that would draw the same, which `key` says; others
are thrown away.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from toolkit.atomic import read_json, write_json
from toolkit.engine.completions import Completion, Drawn
from toolkit.evaluate.totals import Answer


class Progress:
    """The folder of one evaluation that has not ended."""

    def __init__(self, folder: Path, key: Mapping[str, Any]) -> None:
        self._folder = folder
        digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
        note = folder / "key.json"
        if note.is_file() and read_json(note) != digest:
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(note, digest)

    def batches(self, model: str) -> list[Drawn]:
        """The first batches of this model, as far as there is none missing."""
        found: list[Drawn] = []
        while (file := self._batch(model, len(found))).is_file():
            saved = read_json(file)
            rows = [Completion(at, ids, truncated=truncated) for at, ids, truncated in saved["rows"]]
            found.append(Drawn(rows))
        return found

    def add(self, model: str, number: int, drawn: Drawn) -> None:
        """Keep a batch: from now on it is not drawn again."""
        rows = [[row.prompt_index, row.token_ids, row.truncated] for row in drawn.rows]
        write_json(self._batch(model, number), {"rows": rows})

    def answers(self, model: str) -> list[Answer] | None:
        """This model's judged answers, where all of them are there."""
        file = self._folder / f"{model}.json"
        return read_json(file) if file.is_file() else None

    def keep(self, model: str, answers: Sequence[Answer]) -> None:
        """Keep a model's judged answers: a judge may have been dear."""
        write_json(self._folder / f"{model}.json", list(answers))

    def end(self) -> None:
        """The record is written: nothing is left to go on with."""
        shutil.rmtree(self._folder)
        with suppress(OSError):  # another set's evaluation has not ended
            self._folder.parent.rmdir()

    def _batch(self, model: str, number: int) -> Path:
        return self._folder / f"{model}-{number:06d}.json"
