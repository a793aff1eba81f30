"""A task without golds goes the whole way: rewards alone are learned from, compared, and said; nothing is called right or wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import unsloth_side
from models import small_recipe
from run_files import drawn, lines
from toolkit.rundir import RunDir

pytest_plugins = ("shared",)

Ask = Callable[..., Any]
LENGTH = {"name": "length", "ideal": 20, "unit": "characters", "form": "bounded"}
JUDGE = {"name": "judge", "criteria": "It is short.", "max_tokens": 8}
"""Its judge is the policy's own base, here a random model whose replies hold no score."""


def recipe_of(checkpoint: Path, *rewards: dict[str, Any]) -> Any:
    from toolkit.recipe import Recipe

    plain = small_recipe(str(checkpoint), warmup=None, eval={"rows": 4, "samples": 2}).model_dump(mode="json")
    plain["task"] = {
        "name": "prompts", "prompts": [f"Say {word * 3}." for word in "abcdefghijklmnop"], "heldout_rows": 4,
    }  # fmt: skip
    plain["rewards"] = list(rewards)
    plain["model"]["max_seq_length"] = 1024  # a question to the judge is longer than any prompt
    plain["grpo"] |= {"max_steps": 3, "save_steps": 2, "learning_rate": 1e-2}
    return Recipe.model_validate(plain)


@pytest.fixture(scope="module")
def run(unsloth_process: Ask, tiny_checkpoint: Path) -> RunDir:
    """Trained on a length reward beside a judge that cannot judge, and evaluated."""
    recipe = recipe_of(tiny_checkpoint, LENGTH, JUDGE)
    found = unsloth_process(unsloth_side.train_tiny, recipe, None, None, "recipe")
    assert found["raised"] is None
    unsloth_process(unsloth_side.evaluated, found["run"])
    return RunDir(Path(found["run"]))


def test_it_learns_from_what_could_be_judged(run: RunDir) -> None:
    steps = lines(run)
    assert len(steps) == 3 and all(line["abstained"] == {"judge": 1.0} for line in steps)
    assert all(line["rewards"]["judge"] is None and line["reward"] is not None for line in steps)
    for row in drawn(run):
        assert row["reward"] == pytest.approx(row["reward/length"]) and row["reward/judge"] is None
        assert row["gold"] == ""


def test_the_manifest_has_the_plan(run: RunDir) -> None:
    plan = json.loads(run.manifest.read_text())["plan"]
    assert (plan["completions_per_step"], plan["group_size"], plan["rows"], plan["steps"]) == (8, 4, 12, 3)
    assert plan["completions_per_pass"] * plan["passes_per_step"] == 8
    assert (plan["steps_per_epoch"], plan["epochs"], plan["tokens_at_most"]) == (6, 0.5, 3 * 8 * 12)


def test_the_evaluation_compares_rewards(run: RunDir) -> None:
    from pyarrow import parquet

    record = json.loads(run.evaluation.read_text())
    assert record["graded"] is False
    base, tuned = (record["models"][name] for name in ("base", "tuned"))
    assert "accuracy" not in base and base["rewards"]["judge"] is None and base["abstained"] == {"judge": 1.0}
    assert base["reward"]["mean"] == pytest.approx(base["rewards"]["length"])
    change = record["differences"]["tuned-base"]["reward"]["delta"]
    assert change == pytest.approx(tuned["reward"]["mean"] - base["reward"]["mean"])
    kept = parquet.read_table(run.eval_completions)
    assert {"reward", "reward/length", "reward/judge"} <= set(kept.column_names) and "strict" not in kept.column_names
    assert str(kept.schema.field("reward/judge").type) == "double"


def test_a_run_in_which_nothing_could_be_judged_says_so(unsloth_process: Ask, tiny_checkpoint: Path) -> None:
    recipe = recipe_of(tiny_checkpoint, JUDGE)
    found = unsloth_process(unsloth_side.train_tiny, recipe, None, None, "recipe")
    assert (found["raised"], found["exit_code"]) == ("EngineError", 2)
    assert "no reward could judge any completion" in found["message"] and "toolkit check" in found["hint"]
