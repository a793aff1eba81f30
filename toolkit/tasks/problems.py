"""Makes the rows of reasoning-gym tasks, one or several mixed. Training and held-out problems never meet, whatever their part."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from toolkit.errors import DataError
from toolkit.tasks.base import Row, Split
from toolkit.tasks.library import LibraryJudge, library
from toolkit.tasks.mixing import interleaved

# Training rows that collide with held-out ones are replaced; after so many tries the task is too small.
_TRIES_PER_ROW = 10
_INTEGER = re.compile(r"[-+]?[0-9]+")


@dataclass(frozen=True, slots=True)
class Share:
    """One of the library's tasks with its knobs as JSON, and how many rows of each half it makes."""

    label: str
    """What its rows' ids begin with."""
    dataset: str
    knobs: str
    train: int
    heldout: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What to make. Problem i of a share has the seed of its half plus i."""

    shares: tuple[Share, ...]
    train_seed: int
    heldout_seed: int


@dataclass(frozen=True, slots=True)
class Training:
    """The training rows, and how many problems were replaced because their question is held out."""

    rows: tuple[Row, ...]
    removed: int


@lru_cache(maxsize=8)
def heldout_rows(plan: Plan) -> tuple[Row, ...]:
    """The held-out rows, the shares interleaved."""
    made = [
        [
            _row(entry, share, plan, "heldout", index)
            for index, entry in _entries(share, plan.heldout_seed, share.heldout)
        ]
        for share in plan.shares
    ]
    return _mixed(made)


@lru_cache(maxsize=8)
def training_rows(plan: Plan) -> Training:
    """The training rows, the shares interleaved, none of whose questions is a held-out one of any share."""
    taken = {row.question for row in heldout_rows(plan)}
    parts = [_training(share, plan, taken) for share in plan.shares]
    return Training(_mixed([rows for rows, _ in parts]), sum(removed for _, removed in parts))


def _training(share: Share, plan: Plan, taken: set[str]) -> tuple[list[Row], int]:
    rows: list[Row] = []
    removed = 0
    for index, entry in _entries(share, plan.train_seed, share.train * _TRIES_PER_ROW):
        if entry["question"] in taken:
            removed += 1
            continue
        rows.append(_row(entry, share, plan, "train", index))
        if len(rows) == share.train:
            return rows, removed
    raise DataError(
        f"only {len(rows)} of {share.train} training problems differ from the {len(taken)} held-out ones",
        where=f"task.parameters of {share.dataset}",
        hint="make the problems more varied, or lower train_rows or heldout_rows",
    )


def _mixed(parts: list[list[Row]]) -> tuple[Row, ...]:
    waiting = [iter(rows) for rows in parts]
    return tuple(next(waiting[part]) for part in interleaved([len(rows) for rows in parts]))


def _entries(share: Share, seed: int, count: int) -> Iterator[tuple[int, dict[str, Any]]]:
    if not count:
        return
    problems = library(share.dataset, share.knobs, seed, count)
    for index in range(count):
        yield index, problems[index]


def _row(entry: dict[str, Any], share: Share, plan: Plan, split: Split, index: int) -> Row:
    gold = entry["answer"] or ""
    judge = None if _INTEGER.fullmatch(gold.strip()) else LibraryJudge(share.dataset, share.knobs, entry)
    solution = level = None
    if share.dataset == "chain_sum":
        facts = entry["metadata"]
        solution = steps(facts["expression"])
        level = f"{facts['num_terms']} terms, {facts['num_digits']} digits"
    if len(plan.shares) > 1:
        level = share.label if level is None else f"{share.label}: {level}"
    return Row(f"{share.label}/{split}/{index}", entry["question"], gold, solution, level, judge)


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
