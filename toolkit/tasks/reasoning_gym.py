"""Procedural problems from the library reasoning-gym, any of its tasks by name or several mixed, questions unchanged.

Names, parameters and seeds are checked when the recipe is read, without that library. The rows are made in `problems`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from toolkit.errors import KeyFault, nearest
from toolkit.tasks.base import Row, Split, TaskBase
from toolkit.tasks.catalogue import PARAMETERS
from toolkit.tasks.mixing import shares
from toolkit.tasks.problems import Plan, Share, Training, heldout_rows, training_rows

_OURS = {"seed": "seed", "size": "rows"}


class Part(BaseModel):
    """One task of a mix."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    dataset: str
    """The library's name of the task."""
    weight: float = Field(default=1.0, gt=0)
    """Its share of the rows, against the other parts' weights."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """Its knobs, by the library's names."""

    @model_validator(mode="after")
    def _known(self) -> Self:
        _require_known(self.dataset, self.parameters)
        return self


class ReasoningGym(TaskBase):
    """Problems made by reasoning-gym (Stojanovski et al. 2025, arXiv 2505.24760) from a seed."""

    name: Literal["reasoning_gym"] = "reasoning_gym"
    dataset: str | None = None
    """The library's name of the task, e.g. chain_sum."""
    parameters: dict[str, Any] | None = Field(default_factory=dict)
    """Its knobs, by the library's names, e.g. {min_terms: 2, max_terms: 2}."""
    mix: tuple[Part, ...] | None = None
    """Instead of dataset: several tasks, each with its own dataset, weight and parameters."""
    train_rows: int = Field(default=4000, ge=1)
    """Training problems to make."""
    heldout_rows: int = Field(default=300, ge=1)
    """Held-out problems to make."""
    train_seed: int = Field(default=1_000_000, ge=0, lt=2**32)
    """Seed of the first training problem; the next one has the next seed."""
    heldout_seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of the first held-out problem; the next one has the next seed."""

    @model_validator(mode="after")
    def _known(self) -> Self:
        if (self.dataset is None) == (self.mix is None):
            hint = "dataset: null takes back that of a base recipe" if self.mix else "e.g. dataset: chain_sum"
            raise KeyFault(f"one of dataset and mix is needed, got {'both' if self.mix else 'neither'}", hint=hint)
        if self.dataset is not None:
            _require_known(self.dataset, self.parameters or {})
        elif self.parameters:
            hint = "parameters: null takes back those of a base recipe"
            raise KeyFault("in a mix each part has its own parameters", at=("parameters",), hint=hint)
        return self

    @model_validator(mode="after")
    def _parts_apart(self) -> Self:
        if self.mix is None:
            return self
        if not self.mix:
            raise KeyFault("must not be empty", at=("mix",))
        for place, part in enumerate(self.mix):
            if any((part.dataset, part.parameters) == (other.dataset, other.parameters) for other in self.mix[:place]):
                raise KeyFault(f"{part.dataset} stands in the mix twice", at=("mix", place), hint="add up the weights")
        counts = shares([part.weight for part in self.mix], self.train_rows)
        if 0 in counts:
            place = counts.index(0)
            message = f"{self.mix[place].dataset} gets none of the {self.train_rows} training problems"
            raise KeyFault(message, at=("mix", place, "weight"), hint="raise its weight, or train_rows")
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
        return list(heldout_rows(self._plan) if split == "heldout" else self._training().rows)

    @property
    def overlap_removed(self) -> int:
        """Training problems that were replaced because their question is held out."""
        return self._training().removed

    def notices(self, split: Split) -> list[str]:
        replaced = self.overlap_removed if split == "train" else 0
        return [f"{replaced} training problems were replaced because their question is held out"] if replaced else []

    def _training(self) -> Training:
        return training_rows(self._plan)

    @property
    def _plan(self) -> Plan:
        parts = self.mix or (Part(dataset=self.dataset or "", parameters=self.parameters or {}),)
        weights = [part.weight for part in parts]
        counts = zip(shares(weights, self.train_rows), shares(weights, self.heldout_rows), strict=True)
        return Plan(
            tuple(
                Share(label, part.dataset, json.dumps(part.parameters, sort_keys=True), train, heldout)
                for label, part, (train, heldout) in zip(_labels(parts), parts, counts, strict=True)
            ),
            self.train_seed,
            self.heldout_seed,
        )


def _labels(parts: Sequence[Part]) -> list[str]:
    """A name for each part that no other one has: the dataset's, numbered where it stands there again."""
    seen: Counter[str] = Counter()
    labels = []
    for part in parts:
        seen[part.dataset] += 1
        labels.append(part.dataset + (f"-{seen[part.dataset]}" if seen[part.dataset] > 1 else ""))
    return labels


def _require_known(dataset: str, parameters: dict[str, Any]) -> None:
    if dataset not in PARAMETERS:
        raise KeyFault(f"reasoning-gym has no task {dataset!r}{_suggestion(dataset, PARAMETERS)}", at=("dataset",))
    for given in parameters:
        if given in _OURS:
            ours = f"use train_{_OURS[given]}, heldout_{_OURS[given]}"
            raise KeyFault(f"parameters.{given} is the toolkit's: {ours}", at=("parameters", given))
        if given not in PARAMETERS[dataset]:
            message = f"{dataset} has no parameter {given!r}{_suggestion(given, PARAMETERS[dataset])}"
            raise KeyFault(message, at=("parameters", given))


def _suggestion(word: str, choices: Any) -> str:
    near = nearest(word, choices)
    if near:
        return f"; did you mean {near}?"
    return f"; it has: {', '.join(choices)}" if len(choices) < 20 else ""
