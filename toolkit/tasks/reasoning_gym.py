"""Procedural problems from the library reasoning-gym, any of its tasks by name, questions unchanged.

Training and held-out problems never meet: seeds are kept apart, and a held-out question is never trained on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from toolkit.errors import DataError, nearest
from toolkit.tasks.base import Row, Split, TaskBase
from toolkit.tasks.catalogue import PARAMETERS
from toolkit.tasks.library import LibraryJudge, library

# Training rows that collide with held-out ones are replaced; after so many tries the task is too small.
_TRIES_PER_ROW = 10
_INTEGER = re.compile(r"[-+]?[0-9]+")


class ReasoningGym(TaskBase):
    """Problems made by reasoning-gym (Stojanovski et al. 2025, arXiv 2505.24760) from a seed."""

    name: Literal["reasoning_gym"] = "reasoning_gym"
    dataset: str
    """The library's name of the task, e.g. chain_sum."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """Its knobs, by the library's names, e.g. {min_terms: 2, max_terms: 2}."""
    train_rows: int = Field(default=4000, ge=1)
    """Training problems to make."""
    heldout_rows: int = Field(default=300, ge=1)
    """Held-out problems to make."""
    train_seed: int = Field(default=1_000_000, ge=0, lt=2**32)
    """Seed of the first training problem; the next one has the next seed."""
    heldout_seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of the first held-out problem; the next one has the next seed."""

    @field_validator("dataset")
    @classmethod
    def _known_dataset(cls, name: str) -> str:
        if name not in PARAMETERS:
            raise ValueError(f"reasoning-gym has no task {name!r}{_suggestion(name, PARAMETERS)}")
        return name

    @model_validator(mode="after")
    def _known_parameters(self) -> Self:
        for given in self.parameters:
            if given in ("seed", "size"):
                raise ValueError(
                    f"parameters.{given} is the toolkit's: use train_{_OURS[given]}, heldout_{_OURS[given]}"
                )
            if given not in PARAMETERS[self.dataset]:
                raise ValueError(
                    f"{self.dataset} has no parameter {given!r}{_suggestion(given, PARAMETERS[self.dataset])}"
                )
        return self

    @model_validator(mode="after")
    def _seeds_apart(self) -> Self:
        """The library seeds problem i with `seed + i`, so seeds close together make the same problems."""
        train = range(self.train_seed, self.train_seed + self.train_rows)
        held = range(self.heldout_seed, self.heldout_seed + self.heldout_rows)
        if train.start < held.stop and held.start < train.stop:
            raise ValueError(
                f"training seeds {train.start} to {train.stop - 1} and held-out seeds {held.start} to "
                f"{held.stop - 1} overlap (one seed a problem); train_seed: {held.stop} would do"
            )
        return self

    def rows(self, split: Split) -> list[Row]:
        rows = self._heldout() if split == "heldout" else self._train().rows
        return list(rows)

    @property
    def overlap_removed(self) -> int:
        """Training problems that were replaced because their question is held out."""
        return self._train().removed

    def _heldout(self) -> tuple[Row, ...]:
        return _heldout_rows(self.dataset, self._knobs, self.heldout_seed, self.heldout_rows)

    def _train(self) -> _Train:
        held = (self.heldout_seed, self.heldout_rows)
        return _train_rows(self.dataset, self._knobs, self.train_seed, self.train_rows, held)

    @property
    def _knobs(self) -> str:
        return json.dumps(self.parameters, sort_keys=True)


_OURS = {"seed": "seed", "size": "rows"}


@dataclass(frozen=True, slots=True)
class _Train:
    rows: tuple[Row, ...]
    removed: int


def steps(expression: str) -> str:
    """A sum worked from left to right, one partial result a line: `47 + 38 = 85`, `85 - 12 = 73`."""
    first, *rest = expression.split()
    total = int(first)
    lines: list[str] = []
    for sign, term in zip(rest[::2], rest[1::2], strict=True):
        result = total + int(term) if sign == "+" else total - int(term)
        lines.append(f"{total} {sign} {term} = {result}")
        total = result
    return "\n".join(lines) or f"{first} = {total}"


@lru_cache(maxsize=8)
def _heldout_rows(dataset: str, knobs: str, seed: int, count: int) -> tuple[Row, ...]:
    entries = _entries(dataset, knobs, seed, count)
    return tuple(_row(entry, dataset, knobs, f"{dataset}/heldout/{index}") for index, entry in entries)


@lru_cache(maxsize=8)
def _train_rows(dataset: str, knobs: str, seed: int, count: int, held: tuple[int, int]) -> _Train:
    taken = {row.question for row in _heldout_rows(dataset, knobs, *held)}
    rows: list[Row] = []
    removed = 0
    for index, entry in _entries(dataset, knobs, seed, count * _TRIES_PER_ROW):
        if entry["question"] in taken:
            removed += 1
            continue
        rows.append(_row(entry, dataset, knobs, f"{dataset}/train/{index}"))
        if len(rows) == count:
            return _Train(tuple(rows), removed)
    raise DataError(
        f"only {len(rows)} of {count} training problems differ from the {held[1]} held-out ones",
        where=f"task.parameters of {dataset}",
        hint="make the problems more varied, or lower train_rows or heldout_rows",
    )


def _entries(dataset: str, knobs: str, seed: int, count: int) -> Iterator[tuple[int, dict[str, Any]]]:
    problems = library(dataset, knobs, seed, count)
    for index in range(count):
        yield index, problems[index]


def _row(entry: dict[str, Any], dataset: str, knobs: str, row_id: str) -> Row:
    gold = entry["answer"] or ""
    judge = None if _INTEGER.fullmatch(gold.strip()) else LibraryJudge(dataset, knobs, entry)
    solution = level = None
    if dataset == "chain_sum":
        facts = entry["metadata"]
        solution = steps(facts["expression"])
        level = f"{facts['num_terms']} terms, {facts['num_digits']} digits"
    return Row(row_id, entry["question"], gold, solution, level, judge)


def _suggestion(word: str, choices: Any) -> str:
    near = nearest(word, choices)
    if near:
        return f"; did you mean {near}?"
    return f"; it has: {', '.join(choices)}" if len(choices) < 20 else ""
