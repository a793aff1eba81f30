"""What a recipe's keys about held-out rows during training do, where what those rows come to is known beforehand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from toolkit.recipe import Recipe
from toolkit.rundir import RunDir
from toolkit.train.display import Display
from toolkit.train.heldout import HeldOut
from toolkit.train.record import Recorder

ACCURACIES = (0.2, 0.5, 0.9, 0.4, 0.3, 0.2, 0.1)
"""Held out: before the first step, and at each evaluation after it. The reward rises all the while."""


def step_of_training(recorder: Recorder, step: int, reward: float) -> None:
    line = {"row_id": "a", "prompt": "?", "gold": "1", "completion": "1", "tokens": 1, "cut_off": False, "used": True}
    recorder.grpo_step(step, {"loss": 0.0}, [line | {"reward": reward, "reward/correctness": reward}])


def followed(recipe: Recipe) -> dict[str, Any]:
    """Steps that were evaluated, rows that were asked, the step to keep, and the last step that was made."""
    run = RunDir(Path(f"held{len(list(Path().iterdir()))}"))
    run.path.mkdir()
    recorder = Recorder(run, "grpo")
    recorder.rewind(None)
    asked: list[int] = []

    def measure(_policy: Any, _recipe: Recipe, rows: Any) -> dict[str, Any]:
        asked.append(len(rows))
        return {"accuracy": ACCURACIES[len(asked) - 1]}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("toolkit.train.heldout.measure", measure)
        patch.setattr("toolkit.engine.load.save_adapter", lambda _policy, _recipe, folder: folder.mkdir())
        heldout = HeldOut(run, recipe, SimpleNamespace(), recorder, Display(recipe))  # type: ignore[arg-type]
        heldout.start()
        step = 0
        for step in range(1, recipe.grpo.max_steps + 1):
            step_of_training(recorder, step, float(step))
            if heldout.after(step):
                break
    lines = recorder.evaluations()
    kept = sorted(path.name for path in run.best.iterdir()) if run.best.is_dir() else []
    return {
        "steps": [line["step"] for line in lines],
        "rows": asked,
        "best": heldout.best_step(),
        "folders": kept,
        "last": step,
    }


def evaluated_at(recipe: Recipe) -> list[int]:
    return followed(recipe)["steps"]


def rows_asked(recipe: Recipe) -> list[int]:
    return followed(recipe)["rows"]


def kept_step(recipe: Recipe) -> int | None:
    return followed(recipe)["best"]


def last_step(recipe: Recipe) -> int:
    return followed(recipe)["last"]
