"""How long a recipe will take, from what was measured on this machine before: its runs' records. Arithmetic and reading only.

What was never measured here is a bound, not a guess of one number: every time is a range.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.atomic import read_json
from toolkit.errors import ToolkitError
from toolkit.rundir import RUNS, RunDir

if TYPE_CHECKING:
    from toolkit.engine.machine import Machine
    from toolkit.recipe import Recipe

GENERATION_SHARE = (0.25, 0.5, 1.0)
"""Of a step's time, what drawing its completions takes: at least, likely, at most. An evaluation does nothing else."""
EXPORT_S_PER_GB = (5.0, 14.0, 60.0)
VERIFY_S_PER_GB = (40.0, 135.0, 500.0)
"""Seconds a gigabyte of files: likely as measured on two cores (SmolLM2 135M, 0.8 GB, 2026-11-30: 11 s and 107 s)."""
FEWEST_STEPS = 3
COMPARED = ("device", "name", "threads")
"""What two machines have in common that are one for this purpose."""


@dataclass(frozen=True, slots=True)
class Range:
    """A forecast with what it may be at least and at most. Shares and means: a 95 % interval; time and memory: bounds."""

    likely: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Pace:
    """How quick earlier runs of the same base model were here."""

    runs: tuple[str, ...]
    seconds_per_token: tuple[float, ...]
    """Of each GRPO step: its seconds over its completion tokens."""
    completion_length: float | None
    """Mean over the steps of runs of the same task; None without any."""


def recorded_pace(recipe: Recipe, machine: Machine, runs: Path = RUNS) -> Pace | None:
    """From the runs of this base model, loaded in the same way, that were made on this machine; None without enough steps."""
    names, seconds, lengths = [], [], []
    for path in sorted(runs.iterdir()) if runs.is_dir() else []:
        lines = list(_steps(path)) if _is_like(path, recipe, machine) else []
        if len(lines) >= FEWEST_STEPS:
            names.append(path.name)
            seconds += [line["seconds"] / line["completion_tokens"] for line in lines]
            if _task(path) == recipe.task.model_dump(mode="json"):
                lengths += [line["completion_length"] for line in lines]
    if not names:
        return None
    return Pace(tuple(names), tuple(seconds), statistics.fmean(lengths) if lengths else None)


def _is_like(path: Path, recipe: Recipe, machine: Machine) -> bool:
    run = RunDir(path)
    try:
        there, model = read_json(run.manifest)["machine"], read_json(run.recipe)["model"]
    except (ToolkitError, KeyError, TypeError):
        return False
    trained = (model.get("source"), model.get("load_in_4bit"), model.get("full_finetuning", False))
    same_model = trained == (recipe.model.source, recipe.model.load_in_4bit, recipe.model.full_finetuning)
    return same_model and all(there.get(key) == getattr(machine, key) for key in COMPARED)


def _task(path: Path) -> Any:
    return read_json(RunDir(path).recipe).get("task")


def _steps(path: Path) -> Iterator[dict[str, Any]]:
    """The GRPO steps of a run that drew something, but its first, which also warms up."""
    file = RunDir(path).metrics
    for line in file.read_text(encoding="utf-8").splitlines() if file.is_file() else []:
        try:
            step = json.loads(line)
        except ValueError:  # half written
            continue
        if step.get("stage") == "grpo" and step["step"] > 1 and step["completion_tokens"] and step["completion_length"]:
            yield step


def training_seconds(recipe: Recipe, pace: Pace) -> Range:
    """GRPO alone. At least: as its quickest tenth of steps; at most: as its slowest, every completion as long as it may be."""
    grpo = recipe.grpo
    longest = grpo.max_completion_length
    length = min(longest, pace.completion_length) if pace.completion_length else longest / 2
    generations = grpo.max_steps * grpo.completions_per_step
    quick, usual, slow = _deciles(pace.seconds_per_token)
    most = longest * (1 + grpo.resample_rounds)
    return Range(generations * length * usual, generations * length * quick, generations * most * slow)


def evaluation_seconds(recipe: Recipe, pace: Pace, answers: int) -> Range:
    """So many answers, at the pace of drawing alone."""
    longest = recipe.grpo.max_completion_length
    length = min(longest, pace.completion_length) if pace.completion_length else longest / 2
    quick, usual, slow = _deciles(pace.seconds_per_token)
    low, likely, high = GENERATION_SHARE
    return Range(answers * length * usual * likely, answers * length * quick * low, answers * longest * slow * high)


def files_seconds(size_bytes: int) -> dict[str, Range]:
    """Export and verification of files of this size together, wherever they are made."""
    gigabytes = size_bytes / 1e9
    found = {"export": EXPORT_S_PER_GB, "verify": VERIFY_S_PER_GB}
    return {
        stage: Range(*(gigabytes * per for per in (likely, low, high))) for stage, (low, likely, high) in found.items()
    }


def _deciles(values: Sequence[float]) -> tuple[float, float, float]:
    """The first decile, the median, the ninth decile."""
    cuts = statistics.quantiles(values, n=10, method="inclusive")
    return cuts[0], statistics.median(values), cuts[-1]
