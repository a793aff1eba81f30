"""The records of a run while it trains: manifest, state, metrics and completions. It shows nothing and decides nothing."""

from __future__ import annotations

import json
import math
import shutil
import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import toolkit
from toolkit.atomic import read_json, replacing, write_json
from toolkit.rundir import SCHEMA, RunDir
from toolkit.train.energy import EnergyMeter

if TYPE_CHECKING:
    from toolkit.engine.load import Policy
    from toolkit.engine.rollout import Entry
    from toolkit.recipe import Recipe
    from toolkit.tasks import Row

# TRL's name of a metric of the optimisation -> ours. What the completions earned comes from the table: TRL adds what could not
# be judged up as if it had been, and averages over all that was drawn in a step, used or not.
_NAMES = {
    "entropy": "entropy",
    "kl": "kl",
    "clip_ratio/region_mean": "clip_ratio",
    "grad_norm": "grad_norm",
    "learning_rate": "learning_rate",
    "loss": "loss",
    "sampling/sampling_logp_difference/mean": "logp_difference",
    "sampling/sampling_logp_difference/max": "logp_difference_max",
    "sampling/importance_sampling_ratio/mean": "importance_ratio",
    "sampling/importance_sampling_ratio/max": "importance_ratio_max",
}

HELD_OUT = "eval"
"""The stage of a line about held-out rows; its step is the training step after which they were asked."""


def write_state(run: RunDir, state: str, **more: Any) -> None:
    """running, stopped, failed or done. A run that says running and has no process was killed; it can be resumed."""
    write_json(run.state, {"schema": SCHEMA, "state": state, "time": _now(), **more})


def read_state(run: RunDir) -> dict[str, Any]:
    """The record of `write_state`."""
    return read_json(run.state)


def manifest(
    recipe: Recipe, policy: Policy, *, kept: Sequence[Row], read: int, heldout: Sequence[Row]
) -> dict[str, Any]:
    """What a reader needs to repeat the run: versions, machine, data, base model, plan, and what the machine changed."""
    from toolkit.engine.machine import describe, versions
    from toolkit.engine.source import source_fingerprint
    from toolkit.recipe.plan import plan
    from toolkit.tasks import fingerprint

    setting = asdict(policy.setting)
    return {
        "schema": SCHEMA,
        "toolkit": toolkit.__version__,
        "git_commit": _git_commit(),
        "created": _now(),
        "seed": recipe.seed,
        "base": {
            "source": recipe.model.source,
            "revision": recipe.model.revision,
            "sha256": source_fingerprint(recipe.model),
        },
        "data": {
            "train": {"rows": len(kept), "left_out_too_long": read - len(kept), "sha256": fingerprint(kept)},
            "heldout": {"rows": len(heldout), "sha256": fingerprint(heldout)},
        },
        "plan": asdict(plan(recipe, len(kept), batch_rows=setting["batch_rows"], processes=setting["processes"])),
        "changes": setting.pop("changes"),
        "setting": setting,
        "machine": describe(policy.machine),
        "versions": versions(),
    }


def _git_commit() -> str | None:
    """The commit of the toolkit's checkout; None where it is no checkout."""
    command = ["git", "-C", str(Path(toolkit.__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def last_checkpoint(run: RunDir) -> Path | None:
    """The newest checkpoint that was written to its end."""
    return next(reversed(run.checkpoint_folders().values()), None)


def step_of(checkpoint: Path) -> int:
    """How many steps had been made when it was written."""
    return int(checkpoint.name.rpartition("-")[2])


class Recorder:
    """Turns a step's logs into one line of metrics and one file of completions."""

    def __init__(self, run: RunDir, stage: str) -> None:
        self._run, self._stage = run, stage
        self._since = time.monotonic()
        self._energy = EnergyMeter()

    def rewind(self, checkpoint: Path | None) -> None:
        """Forget what was recorded of this stage's steps after the checkpoint (None: of all): they are run again."""
        step = step_of(checkpoint) if checkpoint else 0
        lines = self._run.metrics.read_text(encoding="utf-8").splitlines() if self._run.metrics.exists() else []
        kept = [line for line in lines if _survives(line, self._stage, step)]
        with replacing(self._run.metrics) as temporary:
            temporary.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
        self._run.completions.mkdir(exist_ok=True)
        for file in self._run.completions.glob("*.parquet"):
            if int(file.stem) > step:
                file.unlink()
        if checkpoint is None and self._run.checkpoints.exists():
            shutil.rmtree(self._run.checkpoints)
        self._since = time.monotonic()

    def warmup_step(self, step: int, logs: dict[str, Any]) -> dict[str, Any]:
        """Record a supervised step; what was recorded."""
        return self._append(
            {
                "stage": self._stage,
                "step": step,
                "loss": logs["loss"],
                "learning_rate": logs.get("learning_rate"),
            }
        )

    def grpo_step(self, step: int, logs: dict[str, Any], table: list[Entry]) -> dict[str, Any]:
        """Record a GRPO step and its completions; the metrics that were recorded.

        An optimiser step on completions that an earlier step generated (`num_iterations`) has an empty table.
        """
        seconds = time.monotonic() - self._since
        named = {ours: logs.get(theirs) for theirs, ours in _NAMES.items()}
        tokens = sum(entry["tokens"] for entry in table)
        speed = {"completion_tokens": tokens, "tokens_per_second": tokens / max(seconds, 1e-9)}
        self._write_completions(step, table)
        return self._append({"stage": self._stage, "step": step, **earned(table), **named, **resampled(table), **speed})

    def heldout_step(self, step: int, line: dict[str, Any]) -> dict[str, Any]:
        """Record what was measured on held-out rows after this step of training; what was recorded."""
        return self._append({"stage": HELD_OUT, "step": step, **line})

    def evaluations(self) -> list[dict[str, Any]]:
        """The lines of all evaluations during training."""
        return self._lines(HELD_OUT)

    def earned(self) -> list[tuple[int, float]]:
        """Step and mean reward of every training step that earned something."""
        return [(line["step"], line["reward"]) for line in self._lines("grpo") if line["reward"] is not None]

    def saw_spread(self) -> bool:
        """Whether in any GRPO step of the run any group's completions earned different rewards."""
        shares = [line["dead_groups"] for line in self._lines("grpo")]
        return any(share is not None and share < 1 for share in shares)

    def was_judged(self) -> bool:
        """Whether in any GRPO step of the run any reward did not abstain."""
        return any(mean is not None for line in self._lines("grpo") for mean in line["rewards"].values())

    def _lines(self, stage: str) -> list[dict[str, Any]]:
        if not self._run.metrics.exists():
            return []
        lines = map(json.loads, self._run.metrics.read_text(encoding="utf-8").splitlines())
        return [line for line in lines if line["stage"] == stage]

    def _write_completions(self, step: int, table: list[Entry]) -> None:
        from pyarrow import parquet

        from toolkit.engine.rollout import arrow_table

        columns = arrow_table([{"step": step, **entry} for entry in table])
        with replacing(self._run.completions / f"{step:06d}.parquet") as temporary:
            parquet.write_table(columns, temporary)

    def _append(self, line: dict[str, Any]) -> dict[str, Any]:
        now = time.monotonic()
        energy = self._energy.since_last()
        line = {key: _finite(value) for key, value in line.items()} | {"seconds": now - self._since}
        line |= {} if energy is None else {"energy_j": round(energy, 1)}
        self._since = now
        with self._run.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")
        return line


def earned(table: Sequence[Entry]) -> dict[str, Any]:
    """What the completions that were trained on earned, and how long they are. Empty tables have null for all."""
    used = [entry for entry in table if entry["used"]]
    totals = [entry["reward"] for entry in used if entry["reward"] is not None]
    names = [key.removeprefix("reward/") for key in (used[0] if used else {}) if key.startswith("reward/")]
    said = {name: [entry[f"reward/{name}"] for entry in used] for name in names}
    silent = {name: values.count(None) / len(values) for name, values in said.items()}
    return {
        "reward": _mean(totals),
        "reward_std": statistics.stdev(totals) if len(totals) > 1 else None,
        "dead_groups": _dead(used),
        "completion_length": _mean([entry["tokens"] for entry in used]),
        "cut_off": _mean([entry["cut_off"] for entry in used]),
        "rewards": {name: _mean([value for value in values if value is not None]) for name, values in said.items()},
    } | ({"abstained": {name: share for name, share in silent.items() if share}} if any(silent.values()) else {})


def _dead(used: Sequence[Entry]) -> float | None:
    """The share of groups whose completions all earned the same. A group is a row's completions."""
    from toolkit.engine.rollout import has_spread

    groups: dict[str, list[float | None]] = {}
    for entry in used:
        groups.setdefault(entry["row_id"], []).append(entry["reward"])
    return _mean([not has_spread(totals) for totals in groups.values()])


def resampled(table: Sequence[Entry]) -> dict[str, int]:
    """What the step drew beyond what it trained on: groups that others took the place of, their completions and tokens."""
    unused = [entry for entry in table if not entry["used"]]
    return {
        "resampled_groups": len({entry["row_id"] for entry in unused}),
        "resampled_completions": len(unused),
        "resampled_tokens": sum(entry["tokens"] for entry in unused),
    }


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _survives(line: str, stage: str, step: int) -> bool:
    try:
        entry = json.loads(line)
    except ValueError:  # a line that a killed process left half written
        return False
    undone = (stage, HELD_OUT) if stage == "grpo" else (stage,)
    return entry["stage"] not in undone or entry["step"] <= step


def _finite(value: Any) -> Any:
    """JSON has no nan; a metric that could not be computed is null."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
