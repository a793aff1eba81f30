"""What a run left, read into memory: records that are missing are None, so that any run can be shown. It judges nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from toolkit.atomic import read_json
from toolkit.errors import ToolkitError
from toolkit.rundir import EXPORTS, ExportDir, RunDir, recipe_of

Record = dict[str, Any]


@dataclass(frozen=True)
class Records:
    """One run's JSON records. Completions are read where they are needed: they may be many."""

    run: RunDir
    recipe: Record
    manifest: Record | None = None
    state: Record | None = None
    metrics: list[Record] = field(default_factory=list)
    evaluation: Record | None = None
    other_evaluations: dict[str, Record] = field(default_factory=dict)
    """Of other sets than the run's own held-out rows, by name."""
    export: ExportDir | None = None
    certificate: Record | None = None

    @property
    def name(self) -> str:
        """The run's folder, which is its id."""
        return self.run.path.resolve().name

    @property
    def recipe_name(self) -> str:
        """The recipe's name; the run's where the folder was not named by the toolkit."""
        return recipe_of(self.run.path.resolve()) or self.name

    @cached_property
    def steps(self) -> list[Record]:
        """The lines of GRPO's steps, in order."""
        return [line for line in self.metrics if line.get("stage") == "grpo"]

    @cached_property
    def weights(self) -> dict[str, float]:
        """Each reward's name with its weight."""
        return {reward["name"]: float(reward.get("weight", 1.0)) for reward in self.recipe.get("rewards", [])}

    @property
    def graded(self) -> bool:
        """Whether the evaluation, or where there is none the task, counts right answers."""
        if self.evaluation is not None:
            return bool(self.evaluation.get("graded", True))
        return any(name in self.weights for name in ("correctness", "math_verify"))


def read_run(path: Path, exports: Path = EXPORTS) -> Records:
    """All records of a run. Its recipe is needed; the others may be missing, since a run can end anywhere."""
    run = RunDir(path)
    if not run.recipe.is_file():
        raise ToolkitError("is no run: it holds no recipe.json", where=str(path), hint="toolkit runs")
    export = _export_of(run, exports)
    certificate = export.certificate if export else None
    return Records(
        run=run,
        recipe=read_json(run.recipe),
        manifest=_if_there(run.manifest),
        state=_if_there(run.state),
        metrics=list(metric_lines(run.metrics)),
        evaluation=_if_there(run.evaluation),
        other_evaluations={
            file.stem.removeprefix("eval-"): read_json(file) for file in sorted(path.glob("eval-*.json"))
        },
        export=export,
        certificate=_if_there(certificate) if certificate else None,
    )


def metric_lines(path: Path) -> Iterator[Record]:
    """The lines of metrics.jsonl; one that a killed process left half written is skipped."""
    if not path.is_file():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict):
            yield entry


def flat(record: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A recipe's values by dotted key, lists of sections by the name of each section."""
    values: dict[str, Any] = {}
    for key, value in record.items():
        if isinstance(value, Mapping):
            values |= flat(value, f"{prefix}{key}.")
        elif isinstance(value, list) and value and all(isinstance(item, Mapping) and "name" in item for item in value):
            for item in value:
                values |= flat(item, f"{prefix}{key}.{item['name']}.")
        else:
            values[prefix + key] = value
    return values


def _export_of(run: RunDir, exports: Path) -> ExportDir | None:
    """The export that was made of this run: they share their name, and as a rule the folder above theirs."""
    folder = run.path.resolve()
    found = [ExportDir(parent / folder.name) for parent in (exports, folder.parent.parent / EXPORTS)]
    return next((export for export in found if export.manifest.is_file()), None)


def _if_there(path: Path) -> Any:
    return read_json(path) if path.is_file() else None
