"""The records of a run while it trains: manifest, state, metrics and completions. It shows nothing and decides nothing."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import toolkit
from toolkit.rundir import SCHEMA, RunDir, read_json, replacing, write_json

if TYPE_CHECKING:
    from toolkit.engine.load import Policy
    from toolkit.recipe import Recipe
    from toolkit.tasks import Row

# TRL's name of a metric -> ours.
_NAMES = {
    "reward": "reward",
    "reward_std": "reward_std",
    "frac_reward_zero_std": "dead_groups",
    "completions/mean_length": "completion_length",
    "completions/clipped_ratio": "cut_off",
    "entropy": "entropy",
    "kl": "kl",
    "clip_ratio/region_mean": "clip_ratio",
    "grad_norm": "grad_norm",
    "learning_rate": "learning_rate",
    "loss": "loss",
}


def write_state(run: RunDir, state: str) -> None:
    """running, stopped, failed or done. A run that says running and has no process was killed; it can be resumed."""
    write_json(run.state, {"schema": SCHEMA, "state": state, "time": _now()})


def read_state(run: RunDir) -> dict[str, Any]:
    """The record of `write_state`."""
    return read_json(run.state)


def manifest(
    recipe: Recipe, policy: Policy, *, kept: Sequence[Row], read: int, heldout: Sequence[Row]
) -> dict[str, Any]:
    """What a reader needs to repeat the run: versions, machine, data, base model, and what the machine changed."""
    from toolkit.engine.machine import describe, versions
    from toolkit.engine.source import source_fingerprint
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
    """The newest checkpoint that was written to its end (its state file is written last)."""
    found = [path for path in run.checkpoints.glob("checkpoint-*") if (path / "trainer_state.json").is_file()]
    return max(found, key=step_of, default=None)


def step_of(checkpoint: Path) -> int:
    """How many steps had been made when it was written."""
    return int(checkpoint.name.rpartition("-")[2])


class Recorder:
    """Turns a step's logs into one line of metrics and one file of completions."""

    def __init__(self, run: RunDir, stage: str) -> None:
        self._run, self._stage = run, stage
        self._since = time.monotonic()

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

    def grpo_step(self, step: int, logs: dict[str, Any], table: list[dict[str, Any]]) -> dict[str, Any]:
        """Record a GRPO step and its completions; the metrics that were recorded."""
        seconds = time.monotonic() - self._since
        named = {ours: logs.get(theirs) for theirs, ours in _NAMES.items()}
        rewards = {
            key.split("/")[1]: value
            for key, value in logs.items()
            if key.startswith("rewards/") and key.endswith("/mean")
        }
        tokens = sum(entry["tokens"] for entry in table)
        speed = {"completion_tokens": tokens, "tokens_per_second": tokens / max(seconds, 1e-9)}
        self._write_completions(step, table)
        return self._append({"stage": self._stage, "step": step, **named, "rewards": rewards, **speed})

    def saw_spread(self) -> bool:
        """Whether in any GRPO step of the run any group's completions earned different rewards."""
        lines = map(json.loads, self._run.metrics.read_text(encoding="utf-8").splitlines())
        shares = [line["dead_groups"] for line in lines if line["stage"] == "grpo"]
        return any(share is not None and share < 1 for share in shares)

    def _write_completions(self, step: int, table: list[dict[str, Any]]) -> None:
        import pyarrow
        from pyarrow import parquet

        columns = pyarrow.Table.from_pylist([{"step": step, **entry} for entry in table])
        with replacing(self._run.completions / f"{step:06d}.parquet") as temporary:
            parquet.write_table(columns, temporary)

    def _append(self, line: dict[str, Any]) -> dict[str, Any]:
        now = time.monotonic()
        line = {key: _finite(value) for key, value in line.items()} | {"seconds": now - self._since}
        self._since = now
        with self._run.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")
        return line


def _survives(line: str, stage: str, step: int) -> bool:
    try:
        entry = json.loads(line)
    except ValueError:  # a line that a killed process left half written
        return False
    return entry["stage"] != stage or entry["step"] <= step


def _finite(value: Any) -> Any:
    """JSON has no nan; a metric that could not be computed is null."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
