"""Full fine-tuning: every weight is trained, saved and resumed; base and tuned answer in one process; what leaves is proven."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import evaluation_side
import unsloth_side
from models import small_recipe
from run_files import drawn, lines, without_times
from toolkit.errors import RecipeError
from toolkit.recipe import load_recipe
from toolkit.rundir import RunDir, is_whole
from toolkit.train.record import last_checkpoint

pytest_plugins = ("shared",)

WHOLE = {"load_in_4bit": False, "full_finetuning": True, "lora": {"r": 16}}


def recipe_of(source: Path, **sections: Any) -> Any:
    grpo = {"max_steps": 4, "save_steps": 2, "learning_rate": 1e-4, "per_device_train_batch_size": 4}
    evaluation = {"rows": 4, "samples": 1, "every": 2, "every_rows": 2, "keep_best": True}
    return small_recipe(
        str(source),
        model=WHOLE | {"source": str(source)},
        grpo=grpo,
        eval=evaluation,
        export={"gguf": ["f16"]},
        **sections,
    )


def whole(folder: Path) -> dict[str, Any]:
    from safetensors.numpy import load_file

    assert is_whole(folder)
    return load_file(folder / "model.safetensors")


@pytest.fixture(scope="module")
def run(unsloth_process: Any, tiny_checkpoint: Path) -> RunDir:
    found = unsloth_process(unsloth_side.train_tiny, recipe_of(tiny_checkpoint))
    assert found["raised"] is None, found
    return RunDir(Path(found["run"]))


def test_every_weight_is_trained_and_the_run_holds_a_model_and_no_adapter(run: RunDir, tiny_checkpoint: Path) -> None:
    before, warm, after = whole(tiny_checkpoint), whole(run.warmup_adapter), whole(run.adapter)
    assert before.keys() == after.keys() == warm.keys()
    assert all((after[name] != warm[name]).any() and (warm[name] != before[name]).any() for name in before)
    assert run.adapter == run.whole and not (run.path / "adapter").exists() and not run.best.exists()


def test_a_resumed_run_is_the_uninterrupted_one(run: RunDir, unsloth_process: Any, tiny_checkpoint: Path) -> None:
    stopped = unsloth_process(unsloth_side.train_tiny, recipe_of(tiny_checkpoint), None, ("grpo", 3))
    resumed = RunDir(Path(stopped["run"]))
    assert stopped["raised"] == "Stopped" and last_checkpoint(resumed) and not resumed.adapter.exists()
    assert unsloth_process(unsloth_side.train_tiny, recipe_of(tiny_checkpoint), stopped["run"])["raised"] is None
    assert without_times(resumed) == without_times(run) and drawn(resumed) == drawn(run)
    ours, theirs = whole(resumed.adapter), whole(run.adapter)
    assert all((ours[name] == theirs[name]).all() for name in theirs)
