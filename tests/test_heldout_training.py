"""Held-out rows during training: recorded, choosing, stopping, and changing nothing of the training itself."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import evaluation_side
import unsloth_side
from heldout_effects import followed
from models import small_recipe
from run_files import drawn, lines, steps, weights, without_times
from toolkit.errors import RecipeError
from toolkit.recipe import Recipe, load_recipe
from toolkit.rundir import RunDir
from toolkit.train.heldout import Score, best, falls, scores, warn_of_selection
from toolkit.train.record import Recorder, read_state, write_state

pytest_plugins = ("shared",)

Ask = Callable[..., Any]

# The rules.


def found(*values: float, every: int = 2) -> list[Score]:
    return [Score(at * every, value) for at, value in enumerate(values)]


def rising(steps: int, slope: float = 1.0) -> list[tuple[int, float]]:
    return [(step, slope * step) for step in range(1, steps + 1)]


@pytest.mark.parametrize(
    ("values", "patience", "stops"),
    [
        ((0.1, 0.5, 0.4), 1, True),
        ((0.1, 0.5, 0.4), 2, False),
        ((0.1, 0.5, 0.4, 0.45), 2, True),
        ((0.1, 0.5, 0.4, 0.5), 2, False),
        ((0.5, 0.4, 0.3), 2, True),
        ((0.1, 0.2, 0.3), 1, False),
        ((0.3, 0.3, 0.3), 1, False),
        ((0.5,), 1, False),
        ((), 1, False),
    ],
)
def test_training_stops_when_the_last_evaluations_are_below_the_best(
    values: tuple[float, ...], patience: int, stops: bool
) -> None:
    earned = rising(2 * len(values))
    assert falls(found(*values), earned, patience, 2) == stops
    assert not falls(found(*values), rising(2 * len(values), -1.0), patience, 2), "only while the reward rises"


def test_of_equal_evaluations_the_earliest_is_the_best() -> None:
    assert best(found(0.1, 0.4, 0.4)) == Score(2, 0.4) and best([]) is None


def test_what_nobody_could_judge_is_no_score() -> None:
    given = [{"step": 0, "reward": None}, {"step": 2, "reward": -1.0}, {"step": 4, "accuracy": 0.0}]
    assert scores(given) == [Score(2, -1.0), Score(4, 0.0)]


def test_the_best_steps_adapter_is_there_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = small_recipe("org/model", grpo={"max_steps": 7}, eval={"every": 2, "keep_best": True})
    seen = followed(recipe)
    assert seen["steps"] == [0, 2, 4, 6, 7] and seen["best"] == 4 and seen["folders"] == ["step-4"]


def test_rows_that_choose_and_measure_are_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    def recipe(**settings: Any) -> Recipe:
        return small_recipe("org/model", eval={"rows": 3, "every": 2, "every_rows": 2} | settings)

    rows = recipe().task.rows("heldout")
    warn_of_selection(recipe(), rows)
    warn_of_selection(recipe(keep_best=True, rows=2), rows)
    assert capsys.readouterr().err == ""
    warn_of_selection(recipe(keep_best=True), rows)
    assert "1 held-out rows choose the checkpoint" in capsys.readouterr().err


def test_choosing_without_evaluations_is_a_fault_of_the_recipe() -> None:
    with pytest.raises(RecipeError, match="no held-out rows are asked during training"):
        load_recipe("smoke", ["eval.keep_best=true"])
    assert load_recipe("smoke", ["eval.keep_best=true", "eval.every=1"]).recipe.eval.every == 1


def test_rewinding_forgets_later_evaluations_and_keeps_the_first(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    recorder = Recorder(run, "grpo")
    recorder.rewind(None)
    for step in (0, 2, 4):
        recorder.heldout_step(step, {"accuracy": 0.5})
    recorder.rewind(run.checkpoints / "checkpoint-2")
    assert steps(run) == [("eval", 0), ("eval", 2)]
    recorder.rewind(None)
    assert steps(run) == [("eval", 0)]


# A training of the tiny model, which length rewards teach to be brief. Held out is the mean reward.


def recipe_of(checkpoint: Path, **settings: Any) -> Recipe:
    plain = small_recipe(str(checkpoint), warmup=None).model_dump(mode="json")
    plain["seed"] = 3  # with it the evaluations come to three different values
    plain["task"] = {
        "name": "prompts", "prompts": [f"Say {word * 3}." for word in "abcdefghijklmnop"], "heldout_rows": 4,
    }  # fmt: skip
    plain["rewards"] = [{"name": "length", "ideal": 20, "unit": "characters", "form": "bounded"}]
    plain["grpo"] |= {"max_steps": 5, "save_steps": 2, "learning_rate": 1e-2}
    plain["eval"] |= {"rows": 2, "every_rows": 2} | settings
    return Recipe.model_validate(plain)


def trained(unsloth_process: Ask, recipe: Recipe, run: str | None = None, interrupt: Any = None) -> dict[str, Any]:
    return unsloth_process(unsloth_side.train_tiny, recipe, run, interrupt, "recipe")


@pytest.fixture(scope="module")
def choosing(tiny_checkpoint: Path) -> Recipe:
    return recipe_of(tiny_checkpoint, every=1, keep_best=True)


@pytest.fixture(scope="module")
def whole(unsloth_process: Ask, choosing: Recipe) -> RunDir:
    return RunDir(Path(trained(unsloth_process, choosing)["run"]))


def evaluations(run: RunDir) -> dict[int, float]:
    return {line["step"]: line["reward"] for line in lines(run) if line["stage"] == "eval"}


def assert_same(one: RunDir, other: RunDir) -> None:
    assert without_times(one) == without_times(other) and drawn(one) == drawn(other)
    ours, theirs = weights(one.adapter), weights(other.adapter)
    assert ours.keys() == theirs.keys() and all((ours[name] == theirs[name]).all() for name in ours)


def test_the_evaluations_are_recorded_beside_the_steps(whole: RunDir) -> None:
    assert list(evaluations(whole)) == [0, 1, 2, 3, 4, 5]
    assert len(set(evaluations(whole).values())) > 2
    (first,) = [line for line in lines(whole) if line["stage"] == "eval" and line["step"] == 0]
    assert first["rows"] == 2 and first["completion_length"] > 0 and 0 <= first["cut_off"] <= 1


def test_the_adapter_is_the_best_steps_and_the_training_is_unchanged(
    whole: RunDir, unsloth_process: Ask, tiny_checkpoint: Path
) -> None:
    values = {step: value for step, value in evaluations(whole).items() if step}
    kept = max(values, key=lambda step: (values[step], -step))
    assert read_state(whole)["kept_step"] == kept and not whole.best.exists()
    plain = RunDir(Path(trained(unsloth_process, recipe_of(tiny_checkpoint))["run"]))
    assert [line for line in without_times(whole) if line["stage"] == "grpo"] == without_times(plain)
    assert drawn(whole) == drawn(plain) and "kept_step" not in read_state(plain)
    last = weights(plain.adapter)
    same = all((weights(whole.adapter)[name] == last[name]).all() for name in last)
    assert same == (kept == 5)


@pytest.mark.parametrize("moment", [("eval", 0), ("grpo", 1), ("eval", 3), ("grpo", 4)], ids=str)
def test_an_interrupted_run_with_evaluations_goes_on_to_the_same_end(
    moment: tuple[str, int], whole: RunDir, unsloth_process: Ask, choosing: Recipe
) -> None:
    stopped = trained(unsloth_process, choosing, None, moment)
    assert stopped["raised"] == "Stopped"
    run = RunDir(Path(stopped["run"]))
    assert trained(unsloth_process, choosing, str(run.path))["raised"] is None
    assert_same(run, whole)
    assert read_state(run)["kept_step"] == read_state(whole)["kept_step"]


def test_a_training_that_is_stopped_early_is_done_and_stays_so(
    unsloth_process: Ask, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    recipe = recipe_of(tiny_checkpoint, every=1, stop_after=1)
    found = unsloth_process(evaluation_side.trained_until_it_falls, recipe)
    run = RunDir(Path(found["run"]))
    assert found["raised"] is None and read_state(run)["state"] == "done"
    assert steps(run) == [("eval", 0), ("grpo", 1), ("eval", 1), ("grpo", 2), ("eval", 2)]
    killed = RunDir(Path(shutil.copytree(run.path, tmp_path / "run")))
    shutil.rmtree(killed.adapter)
    write_state(killed, "running")
    again = unsloth_process(evaluation_side.trained_until_it_falls, recipe, str(killed.path))
    assert again["raised"] is None
    assert_same(killed, run)
