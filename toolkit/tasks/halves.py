"""Sets rows aside for the evaluation where a task has one source only. It compares texts, and reads no file."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from toolkit.errors import DataError
from toolkit.tasks.base import Row, folded

MOST = 300
"""Rows that are set aside at most where the recipe names no number: what an evaluation asks by default."""


@dataclass(frozen=True, slots=True)
class Halves:
    """Rows to train on and rows to measure with, each in the order of the source."""

    train: tuple[Row, ...]
    heldout: tuple[Row, ...]
    left_out: int
    """Rows that ask what a held-out row asks: they can be in neither half."""


def set_aside(rows: Sequence[Row], count: int | None, *, seed: int, where: str) -> Halves:
    """Take `count` rows (None: a tenth, at most MOST) that no other row asks again but for case and spacing.

    Which ones depends on the seed and on each row's own text, neither on the order of the rows nor on the kind of file.
    """
    keys = [folded(row.text) for row in rows]
    first = {key: place for place, key in reversed(list(enumerate(keys)))}
    wanted = min(MOST, max(1, len(first) // 10)) if count is None else count
    if wanted >= len(first):
        raise DataError(
            f"{wanted} rows are to be set aside, and there are {len(first)} different ones: none is left to train on",
            where=where,
            hint=f"bring more rows{f', or task.heldout_rows: {len(first) - 1} at most' if len(first) > 1 else ''}",
        )
    held = set(sorted(first, key=lambda key: _rank(seed, key))[:wanted])
    places = {first[key] for key in held}
    train = tuple(row for row, key in zip(rows, keys, strict=True) if key not in held)
    heldout = tuple(row for place, row in enumerate(rows) if place in places)
    return Halves(train, heldout, len(rows) - len(train) - len(heldout))


def _rank(seed: int, key: str) -> bytes:
    return hashlib.sha256(f"{seed}:{key}".encode()).digest()


@dataclass(frozen=True, slots=True)
class Overlap:
    """Training rows that ask what a held-out row asks: letter by letter, and those that differ in case or spacing only."""

    exact: int
    folded: int


def overlap(train: Sequence[Row], heldout: Sequence[Row]) -> Overlap:
    """Compare the halves, whole conversations with each other."""
    texts = {row.text for row in heldout}
    keys = {folded(text) for text in texts}
    exact = sum(row.text in texts for row in train)
    return Overlap(exact, sum(folded(row.text) in keys for row in train) - exact)


def repeats(rows: Sequence[Row]) -> int:
    """Rows that ask what an earlier one asks, but for case and spacing."""
    return len(rows) - len({folded(row.text) for row in rows})
