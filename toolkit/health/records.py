"""A run's records as the rules read them: series of metrics, facts about each step's completions, how far the weights moved.

It reads files and judges nothing. What is missing, half written or unknown is left out.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.atomic import read_json
from toolkit.health.movement import movement
from toolkit.recipe import load_resolved
from toolkit.rundir import RunDir

if TYPE_CHECKING:
    from toolkit.recipe import Recipe
    from toolkit.rewards import RewardBase

Line = Mapping[str, Any]
STEPS = 5
"""Fewer GRPO steps say nothing about a state."""
TREND_STEPS = 12
"""Fewer say nothing about a trend: its two windows would be the same steps, or single ones."""
SOLVED = 0.95
"""Share of the highest possible total from which on a task counts as solved: nothing is left to explore."""


@dataclass(frozen=True, slots=True)
class StepFacts:
    """What one step's completions (those that were trained on) say beyond their means."""

    lowest: Mapping[str, float]
    highest: Mapping[str, float]
    """Per reward, of the completions it judged; a reward that abstained from all is missing."""
    spread: Mapping[str, float]
    """Per reward: standard deviation within a group, averaged over the groups in which it differs, 0 without any; not weighted.
    So it says how much a reward counts where it speaks, not how rarely it does."""
    duplicates: float | None
    """(completions - different ones) / (completions - 1) of a group, averaged: 0 all differ, 1 all are one text."""


def step_facts(entries: Iterable[Line]) -> StepFacts:
    """From a step's table: one mapping a completion, as in the run's parquet files."""
    groups: dict[str, list[Line]] = {}
    for entry in entries:
        if entry.get("used", True):
            groups.setdefault(entry["row_id"], []).append(entry)
    names = dict.fromkeys(key for group in groups.values() for key in group[0] if key.startswith("reward/"))
    said = {name.removeprefix("reward/"): [_known(group, name) for group in groups.values()] for name in names}
    whole = {name: [value for group in lists for value in group] for name, lists in said.items()}
    different = [(len(group) - len({entry["completion"] for entry in group}), len(group)) for group in groups.values()]
    return StepFacts(
        lowest={name: min(values) for name, values in whole.items() if values},
        highest={name: max(values) for name, values in whole.items() if values},
        spread={name: _mean(_spreads(lists)) for name, lists in said.items()},
        duplicates=_mean([same / (size - 1) for same, size in different if size > 1]) if different else None,
    )


def _known(group: Sequence[Line], name: str) -> list[float]:
    return [entry[name] for entry in group if entry[name] is not None]


def _spreads(groups: Sequence[Sequence[float]]) -> list[float]:
    return [spread for group in groups if group and (spread := statistics.pstdev(group)) > 0]


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else 0.0


@dataclass
class Records:
    """Everything the rules may look at. GRPO steps that generated nothing (`num_iterations`) keep their optimiser's metrics."""

    recipe: Recipe
    lines: list[Line] = field(default_factory=list)
    """GRPO lines of metrics.jsonl, in order."""
    evaluations: list[Line] = field(default_factory=list)
    """Lines of stage `eval`: held-out accuracy during training."""
    facts: list[StepFacts] = field(default_factory=list)
    moved: float | None = None
    """How far training moved the weights that it trains, relative to their size; None where it cannot be told."""
    gain: tuple[float, float] | None = None
    """Tuned minus what it was before GRPO on held-out rows, and the upper end of its 95 % interval."""
    batch_rows: int | None = None
    """Completions in one backward pass."""

    def add(self, line: Line, entries: Sequence[Line] = ()) -> None:
        """One more line of metrics, with its completions."""
        if line.get("stage") == "grpo":
            self.lines.append(line)
            if entries:
                self.facts.append(step_facts(entries))
        elif line.get("stage") == "eval" and line.get("accuracy") is not None:
            self.evaluations.append(line)

    def series(self, key: str) -> list[float]:
        """A metric's values, without the steps that have none."""
        return [line[key] for line in self.lines if line.get(key) is not None]

    @cached_property
    def rewards(self) -> dict[str, RewardBase]:
        """The recipe's rewards that count, by name."""
        return {reward.name: reward for reward in self.recipe.rewards if reward.weight}

    @property
    def highest_total(self) -> float | None:
        """The best total that a completion can earn; None where a reward has no upper end, or does not know it."""
        ends = [
            reward.weight * end if end is not None else None
            for reward in self.rewards.values()
            for end in [reward.bounds[1] if reward.weight > 0 else reward.bounds[0]]
        ]
        return None if None in ends else sum(end for end in ends if end is not None)

    @property
    def is_solved(self) -> bool:
        """Whether the latest completions earn nearly all there is. Totals below zero are penalties: then 0 is all."""
        best, rewards = self.highest_total, self.series("reward")
        return best is not None and bool(rewards) and last(rewards) >= (SOLVED * best if best > 0 else best - 1e-6)


def read(run: RunDir, *, weights: bool = True) -> Records:
    """The records of a run's folder. RecipeError or ToolkitError where its recipe cannot be read. `weights`: look at them, too."""
    records = Records(load_resolved(run.recipe).recipe)
    for line in _lines(run.metrics):
        records.add(line)
    records.facts = [
        step_facts(entries) for file in sorted(run.completions.glob("*.parquet")) if (entries := _table(file))
    ]
    records.moved = movement(run) if weights else None
    records.gain = _gain(run.evaluation)
    if run.manifest.is_file():
        records.batch_rows = read_json(run.manifest).get("setting", {}).get("batch_rows")
    return records


def _lines(metrics: Path) -> list[Line]:
    """Whole lines only: the last one of a killed process may be half written."""
    if not metrics.is_file():
        return []
    found = []
    for text in metrics.read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(text))
        except ValueError:
            continue
    return found


def _table(file: Path) -> list[dict[str, Any]]:
    from pyarrow import parquet

    schema = parquet.read_schema(file)
    wanted = [name for name in schema.names if name in ("row_id", "completion", "used") or name.startswith("reward/")]
    return parquet.read_table(file, columns=wanted).to_pylist() if "row_id" in wanted else []


def _gain(evaluation: Path) -> tuple[float, float] | None:
    """Against the model after warm-up where there is one, else against the base."""
    if not evaluation.is_file():
        return None
    record = read_json(evaluation)
    differences = record.get("differences") or {} if record.get("graded", True) else {}
    for name in ("tuned-warmup", "tuned-base"):
        found = differences.get(name)
        if isinstance(found, Mapping) and "delta" in found and "ci95" in found:
            return float(found["delta"]), float(found["ci95"][1])
    return None


def window(count: int) -> int:
    """Steps that make up the beginning and the end of a series: a quarter, from 3 to 10."""
    return max(3, min(10, count // 4))


def first(values: Sequence[float]) -> float:
    """Mean of the beginning."""
    return statistics.fmean(values[: window(len(values))])


def last(values: Sequence[float]) -> float:
    """Mean of the end."""
    return statistics.fmean(values[-window(len(values)) :])


def rose(values: Sequence[float]) -> bool:
    """Whether the end lies above the beginning by more than two standard errors of the difference."""
    size = window(len(values))
    begin, end = values[:size], values[-size:]
    error = (statistics.pvariance(begin) / size + statistics.pvariance(end) / size) ** 0.5
    return statistics.fmean(end) - statistics.fmean(begin) > 2 * error
