"""A training that sends its checkpoints is the training that does not, and what it sent goes on elsewhere. A tiny model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hub_effects import train_at
from hub_stand_in import running_hub
from models import small_recipe
from run_files import assert_same_run, weights
from toolkit.atomic import read_json
from toolkit.recipe import Recipe
from toolkit.rundir import RunDir
from toolkit.train.record import last_checkpoint, read_state

pytest_plugins = ("shared",)
REPO = "org/model"
Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def recipe(tiny_checkpoint: Path) -> Recipe:
    grpo = {"max_steps": 4, "save_steps": 1, "learning_rate": 1e-2, "max_grad_norm": 1.0}
    return small_recipe(str(tiny_checkpoint), grpo=grpo, warmup={"max_steps": 2}, hub={"repo": REPO})


@pytest.fixture(scope="module")
def pushing(recipe: Recipe) -> Recipe:
    return recipe.model_copy(update={"hub": recipe.hub.model_copy(update={"push_checkpoints": True})})


@pytest.fixture(scope="module")
def silent(unsloth_process: Ask, recipe: Recipe) -> RunDir:
    """The run without a hub."""
    return RunDir(Path(unsloth_process(train_at, "http://127.0.0.1:9", recipe)["run"]))


def test_what_was_sent_goes_on_elsewhere_to_the_same_end(
    silent: RunDir, unsloth_process: Ask, pushing: Recipe, tmp_path: Path
) -> None:
    with running_hub() as hub:
        found = unsloth_process(train_at, hub.url, pushing)
        run = RunDir(Path(found["run"]))
        assert found["raised"] is None
        assert_same_run(run, silent)
        tally = read_json(run.hub)
        assert (tally["failed"], tally["last_uploaded"]) == (0, "checkpoint-4")
        there = RunDir(tmp_path / "runs" / run.path.name)
        first = next(iter(hub.repos[REPO].commits.values()))
        for name, data in first.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(data)
        begun = last_checkpoint(there)
        assert begun is not None and begun.name != "checkpoint-4"
        assert unsloth_process(train_at, hub.url, pushing, str(there.path))["raised"] is None
    ours, theirs = weights(there.adapter), weights(silent.adapter)
    assert ours.keys() == theirs.keys() and all((ours[name] == theirs[name]).all() for name in ours)


def test_a_hub_that_takes_nothing_changes_nothing(silent: RunDir, unsloth_process: Ask, pushing: Recipe) -> None:
    with running_hub() as hub:
        hub.faults["commit"] = (400, {})
        found = unsloth_process(train_at, hub.url, pushing)
    run = RunDir(Path(found["run"]))
    assert found["raised"] is None and read_state(run)["state"] == "done"
    assert_same_run(run, silent)
    assert read_json(run.hub)["uploaded"] == 0 and read_json(run.hub)["failed"] >= 2
