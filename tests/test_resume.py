"""A run leaves its records, and an interrupted run goes on as if it had never been interrupted, to the bit."""

from __future__ import annotations

import json
import math
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import unsloth_side
from models import small_recipe
from run_files import assert_same_run, drawn, lines, send_when, start, steps, weights
from toolkit.atomic import write_json
from toolkit.rundir import RunDir, newest_run
from toolkit.train.record import last_checkpoint, read_state

pytest_plugins = ("shared",)

SMOKE = Path(__file__).resolve().parents[1] / "recipes" / "smoke.yaml"

# Interruptions, on the tiny model in one process: Ctrl-C at every kind of moment.

Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def tiny(tiny_checkpoint: Path) -> Any:
    """Five steps with a checkpoint after the second and fourth, momentum, a schedule, weight decay and dropout."""
    grpo = {
        "max_steps": 5,
        "save_steps": 2,
        "learning_rate": 1e-2,
        "max_grad_norm": 1.0,
        "per_device_train_batch_size": 4,
    }
    model = {"source": str(tiny_checkpoint), "lora": {"r": 4, "lora_dropout": 0.1}}
    return small_recipe(str(tiny_checkpoint), model=model, grpo=grpo, warmup={"max_steps": 3})


@pytest.fixture(scope="module")
def uninterrupted(unsloth_process: Ask, tiny: Any) -> RunDir:
    found = unsloth_process(unsloth_side.train_tiny, tiny)
    assert found["raised"] is None
    return RunDir(Path(found["run"]))


def test_a_run_leaves_its_records(uninterrupted: RunDir, tiny: Any) -> None:
    run = uninterrupted
    assert read_state(run)["state"] == "done"
    assert json.loads(run.recipe.read_text()) == tiny.model_dump(mode="json")
    assert steps(run) == [("warmup", step) for step in (1, 2, 3)] + [("grpo", step) for step in (1, 2, 3, 4, 5)]
    manifest = json.loads(run.manifest.read_text())
    assert {"schema", "versions", "git_commit", "machine", "seed", "base", "data", "changes", "setting"} <= set(
        manifest
    )
    assert [change["key"] for change in manifest["changes"]] == ["grpo.optim"]
    assert {"torch", "unsloth", "trl", "transformers", "peft"} <= set(manifest["versions"])
    assert manifest["data"]["train"]["rows"] == 16 and len(manifest["base"]["sha256"]) == 64
    rows = drawn(run)
    assert len(rows) == 5 * 8 and len({row["completion"] for row in rows}) > 30
    assert {"step", "prompt", "completion", "gold", "reward/correctness", "reward/xmlcount", "reward"} <= set(rows[0])


def test_the_two_adapters_differ_and_are_named_as_the_recipe_names_the_base(uninterrupted: RunDir, tiny: Any) -> None:
    before, after = weights(uninterrupted.warmup_adapter), weights(uninterrupted.adapter)
    assert before.keys() == after.keys()
    assert all(math.isfinite(float(abs(weight).max())) for weight in after.values())
    assert any((before[name] != after[name]).any() for name in before)
    config = json.loads((uninterrupted.adapter / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == tiny.model.source


def test_the_same_recipe_gives_the_same_run(uninterrupted: RunDir, unsloth_process: Ask, tiny: Any) -> None:
    assert_same_run(RunDir(Path(unsloth_process(unsloth_side.train_tiny, tiny)["run"])), uninterrupted)


@pytest.mark.parametrize(
    ("moment", "saved"),
    [(("warmup", 1), None), (("warmup", 3), None), (("grpo", 1), 1), (("grpo", 3), 3), (("grpo", 4), 4)],
    ids=lambda value: str(value),
)
def test_an_interrupted_run_goes_on_to_the_same_end(
    moment: tuple[str, int], saved: int | None, uninterrupted: RunDir, unsloth_process: Ask, tiny: Any
) -> None:
    found = unsloth_process(unsloth_side.interrupted, tiny, moment)
    run = RunDir(Path(found["run"]))
    assert (found["raised"], found["exit_code"]) == ("Stopped", 130)
    assert f"--resume {run.path.parent.name}/{run.path.name}" in found["hint"]
    assert read_state(run)["state"] == "stopped"
    assert not run.adapter.exists() and run.warmup_adapter.exists() == (moment[0] == "grpo")
    reached = last_checkpoint(run)
    assert (reached and reached.name) == (saved and f"checkpoint-{saved}")
    assert unsloth_process(unsloth_side.train_tiny, tiny, str(run.path))["raised"] is None
    assert read_state(run)["state"] == "done"
    assert_same_run(run, uninterrupted)


def test_ctrl_c_in_the_last_step_still_ends_the_run(uninterrupted: RunDir, unsloth_process: Ask, tiny: Any) -> None:
    found = unsloth_process(unsloth_side.interrupted, tiny, ("grpo", 5))
    assert found["raised"] is None
    assert_same_run(RunDir(Path(found["run"])), uninterrupted)


def test_a_run_killed_after_its_last_step_only_saves_its_adapter(
    uninterrupted: RunDir, unsloth_process: Ask, tiny: Any, tmp_path: Path
) -> None:
    run = RunDir(Path(shutil.copytree(uninterrupted.path, tmp_path / "run")))
    shutil.rmtree(run.adapter)
    write_json(run.state, {"schema": 1, "state": "running"})
    assert unsloth_process(unsloth_side.train_tiny, tiny, str(run.path))["raised"] is None
    assert_same_run(run, uninterrupted)


def test_a_finished_run_is_not_trained_again(uninterrupted: RunDir, unsloth_process: Ask, tiny: Any) -> None:
    before = {path: path.stat().st_mtime_ns for path in uninterrupted.path.rglob("*")}
    found = unsloth_process(unsloth_side.train_tiny, tiny, str(uninterrupted.path))
    assert (found["raised"], found["exit_code"]) == ("EngineError", 2) and "toolkit eval" in found["hint"]
    assert {path: path.stat().st_mtime_ns for path in uninterrupted.path.rglob("*")} == before


@pytest.mark.parametrize("beta", [0.0, 0.04])
def test_a_run_that_learned_nothing_is_an_error_and_has_no_adapter(
    beta: float, unsloth_process: Ask, tiny: Any
) -> None:
    """The recipe's own rewards: random text never hits them. With a KL term TRL's loss moves the adapter all the same."""
    recipe = tiny.model_copy(update={"grpo": tiny.grpo.model_copy(update={"beta": beta})})
    found = unsloth_process(unsloth_side.train_tiny, recipe, None, None, "recipe")
    run = RunDir(Path(found["run"]))
    assert (found["raised"], found["exit_code"]) == ("EngineError", 2)
    assert {line["dead_groups"] for line in lines(run) if line["stage"] == "grpo"} == {1.0}
    assert read_state(run)["state"] == "failed" and not run.adapter.exists()


# The real model in processes of its own, as a user runs and stops them.

OVERRIDES = (
    "warmup.max_steps=4", "warmup.batch_size=2", "warmup.learning_rate=2e-3", "grpo.max_completion_length=20",
    "grpo.prompts_per_step=1", "grpo.per_device_train_batch_size=4", "grpo.warmup_steps=0", "grpo.save_steps=2",
    "task.train_rows=32", "rewards=[{name: xmlcount, legacy: true}]",
)  # fmt: skip
"""Less work than the smoke recipe, and a reward that differs among the beginnings of answers."""


@pytest.mark.usefixtures("smollm2")
def test_a_run_that_was_killed_and_then_stopped_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    """SIGKILL after the first step, resumed; Ctrl-C after its first step, resumed: the same run to the bit."""
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    straight.mkdir()
    broken.mkdir()
    at_once = start(straight, str(SMOKE), *OVERRIDES)
    try:
        killed = start(broken, str(SMOKE), *OVERRIDES)
        assert send_when(killed, broken / "output.txt", "step 1/3", signal.SIGKILL) == -signal.SIGKILL
        (path,) = (broken / "runs").iterdir()
        run = RunDir(path)
        assert read_state(run)["state"] == "running" and not run.adapter.exists()
        assert newest_run(broken / "runs") is None
        stopped = start(broken, "--resume", str(run.path))
        assert send_when(stopped, broken / "output.txt", "step 1/3", signal.SIGINT) == 130
        assert read_state(run)["state"] == "stopped" and not run.adapter.exists()
        assert last_checkpoint(run) is not None
        assert "--resume" in (broken / "output.txt").read_text()
        assert start(broken, "--resume", str(run.path)).wait(timeout=900) == 0, (broken / "output.txt").read_text()
        assert at_once.wait(timeout=900) == 0, (straight / "output.txt").read_text()
    finally:
        at_once.kill()
    assert read_state(run)["state"] == "done" and newest_run(broken / "runs") == run.path
    (path,) = (straight / "runs").iterdir()
    assert sum(line["reward_std"] > 0 for line in lines(RunDir(path)) if line["stage"] == "grpo") >= 2
    assert_same_run(run, RunDir(path))
