"""The benchmark's table says what was measured, and its plain scripts are built of the recipe's values."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from models import child_environment

pytest_plugins = ("shared",)

BENCH = Path(__file__).resolve().parents[1] / "scripts" / "bench"
RUNS: list[dict[str, float]] = [
    {"seconds": 4.0, "tokens": 400},
    {"seconds": 2.0, "tokens": 400},
    {"seconds": 3.0, "tokens": 400},
]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """scripts/bench/run.py, which imports its neighbour."""
    monkeypatch.syspath_prepend(str(BENCH))
    sys.modules.pop("run", None)
    import run  # type: ignore[import-not-found]

    return run


def result_of(bench: ModuleType, **more: float) -> dict[str, Any]:
    ways = {
        "trl": [run | more for run in RUNS],
        "plain": [run | {"seconds": run["seconds"] / 2} | more for run in RUNS],
    }
    return {
        "date": "2026-11-30", "machine": "a machine", "rounds": 3, "measured": {"GRPO step": bench.summary(ways)},
        "peak_gb": {"trl": 2.0, "plain": 1.5},
    }  # fmt: skip


def test_without_a_gpu_the_table_is_of_times_and_ratios(bench: ModuleType) -> None:
    table = bench.table(result_of(bench))
    assert "| GRPO step | plain | 1.5 |  | 400 | 267 | 2.0 |" in table and "GPU" not in table
    assert len({line.count("|") for line in table.splitlines() if line.startswith("|")}) == 1


def test_with_a_gpu_each_row_has_its_peak(bench: ModuleType) -> None:
    result = result_of(bench, gpu_gb=1.234)
    assert result["measured"]["GRPO step"]["trl"]["gpu_gb"] == 1.23
    head, _, row, _ = [line for line in bench.table(result).splitlines() if line.startswith("|")]
    assert head.endswith("| GPU memory, GB |") and row.endswith("| 1.23 |")


LOOK = """
import json, sys, tempfile
from pathlib import Path
import side
way = side.WAYS["trl"](sys.argv[1], 2)
trainer = way.trainer(Path(tempfile.mkdtemp()), side.answering(way, print))
print(json.dumps({
    "lengths": list(way.rollouts(16)), "lora": way.model.peft_config["default"].r,
    "batch": trainer.args.per_device_train_batch_size * trainer.args.gradient_accumulation_steps,
    "unsloth": "unsloth" in sys.modules, "gpu": side.gpu_peak(),
}))
"""


def test_plain_trl_samples_with_the_recipes_values_and_without_unsloth(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Its step needs a GPU."""
    environment = child_environment()
    environment["PYTHONPATH"] += f"{os.pathsep}{BENCH}"
    done = subprocess.run(
        [sys.executable, "-c", LOOK, str(tiny_checkpoint)], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=200
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found["lengths"]) == 16 and max(found["lengths"]) > 20
    assert (found["lora"], found["batch"], found["unsloth"]) == (16, 16, False)
