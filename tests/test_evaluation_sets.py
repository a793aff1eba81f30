"""What is asked, of whom, and that a killed evaluation goes on where it stopped and ends as if it had not been killed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import evaluation_side
import unsloth_side
from by_heart import evaluate
from models import small_recipe
from toolkit.errors import DataError, ToolkitError
from toolkit.evaluate.asking import few_shot_chats, vote
from toolkit.evaluate.progress import Progress
from toolkit.evaluate.sets import chosen, overlap_record
from toolkit.recipe import Recipe
from toolkit.rundir import RunDir
from toolkit.tasks import Row

pytest_plugins = ("shared",)

Ask = Callable[..., Any]
RECIPE = small_recipe("org/model", eval={"rows": 3, "samples": 2})


# Which rows.


def test_the_runs_own_rows_are_asked_unless_others_are_named() -> None:
    own = chosen(RECIPE)
    assert own.name is None and own.recipe == RECIPE and len(own.rows) == 3
    assert chosen(RECIPE, first=2).name == "first-2" and len(chosen(RECIPE, first=2).rows) == 2
    with pytest.raises(DataError, match="--first asks for 9 rows, the task has 4"):
        chosen(RECIPE, first=9)


def test_another_task_is_asked_whole_with_the_runs_own_system_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [{"question": f"What is {n} + 1?", "answer": f"#### {n + 1}"} for n in range(7)]
    (tmp_path / "test.jsonl").write_text("\n".join(map(json.dumps, lines)))
    monkeypatch.setenv("TOOLKIT_GSM8K_DIR", str(tmp_path))
    recipe = small_recipe("org/model", task={"system_prompt": "Be brief."})
    found = chosen(recipe, on="gsm8k")
    assert (found.name, len(found.rows), found.recipe.task.name) == ("gsm8k", 7, "gsm8k")
    assert found.recipe.task.messages(found.rows[0])[0] == {"role": "system", "content": "Be brief."}
    assert found.recipe.rewards == recipe.rewards and found.recipe.grpo == recipe.grpo
    assert len(chosen(recipe, on="gsm8k", first=2).rows) == 2
    longer = chosen(recipe, on="gsm8k", max_tokens=2000).recipe
    assert longer.grpo.max_completion_length == 2000 and longer.model.max_seq_length >= 3000


def test_another_recipe_brings_its_task_rewards_and_longest_answer(tmp_path: Path) -> None:
    other = small_recipe("org/other", grpo={"max_completion_length": 20}, rewards=[{"name": "integer"}])
    other = other.model_copy(update={"task": other.task.model_copy(update={"heldout_rows": 6})})
    path = tmp_path / "my sums.yaml"
    path.write_text(json.dumps(other.model_dump(mode="json")))
    found = chosen(RECIPE, on=str(path))
    assert (found.name, len(found.rows), found.recipe.model.source) == ("my-sums", 6, "org/model")
    assert found.recipe.rewards == other.rewards and found.recipe.grpo.max_completion_length == 20
    assert found.recipe.grpo.temperature == RECIPE.grpo.temperature


@pytest.mark.parametrize(("on", "said"), [("gsm8", "did you mean gsm8k?"), ("reasoning_gym", "--on that-recipe.yaml")])
def test_a_name_that_is_not_enough_is_an_error_with_the_way_out(on: str, said: str) -> None:
    with pytest.raises(ToolkitError) as caught:
        chosen(RECIPE, on=on)
    assert said in str(caught.value.hint)


def test_rows_that_were_trained_on_are_counted_and_named() -> None:
    def rows(*texts: str) -> list[Row]:
        return [Row(f"r{at}", text, "1") for at, text in enumerate(texts)]

    found = overlap_record(rows("What is 1 + 1?", "Three?"), rows("What is 1 + 1?", "what  is 1 + 1?", "Four?"))
    assert found == {"exact": 1, "folded": 1, "row_ids": ["r0", "r1"]}


def test_it_is_said_first_and_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [{"question": f"What is {n} + 1?", "answer": f"One more. #### {n + 1}"} for n in range(9)]
    for name, some in (("train", lines[:8]), ("test", lines[6:])):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, some)))
    task = {"name": "gsm8k", "train_file": str(tmp_path / "train.jsonl"), "heldout_file": str(tmp_path / "test.jsonl")}
    recipe = Recipe.model_validate(RECIPE.model_dump(mode="json") | {"task": task})
    record, _ = evaluate(recipe, tmp_path / "one")
    assert record["overlap"] == {"exact": 2, "folded": 0, "row_ids": ["gsm8k/heldout/1", "gsm8k/heldout/2"]}
    seen = capsys.readouterr()
    assert "2 of 3 rows stand among the training rows, too (gsm8k/heldout/1" in seen.err
    (tmp_path / "train.jsonl").unlink()
    assert evaluate(recipe, tmp_path / "two")[0]["overlap"] is None
    assert "not known" in capsys.readouterr().err


# Whom.


def test_worked_examples_are_turns_before_the_question() -> None:
    recipe = small_recipe("org/model", task={"system_prompt": "Be brief."}, eval={"rows": 2, "few_shot": 2})
    rows = recipe.task.rows("heldout")[:2]
    for row, chat in zip(rows, few_shot_chats(recipe, rows), strict=True):
        assert [turn["role"] for turn in chat] == ["system", *["user", "assistant"] * 2, "user"]
        assert row.question in chat[-1]["content"] and chat[0]["content"] == "Be brief."
        for asked, said in ((chat[1], chat[2]), (chat[3], chat[4])):
            (example,) = [other for other in recipe.task.rows("train") if other.question in asked["content"]]
            assert recipe.task.grade(said["content"], example).strict and example.text != row.text


def test_more_examples_than_there_are_is_an_error() -> None:
    recipe = small_recipe("org/model", eval={"few_shot": 60})
    with pytest.raises(DataError, match="asks for 60 worked examples, the task has"):
        few_shot_chats(recipe, recipe.task.rows("heldout"))


def test_the_few_shot_model_is_the_base_with_other_prompts(tmp_path: Path) -> None:
    record, asked = evaluate(small_recipe("org/model", eval={"rows": 4, "few_shot": 1}), tmp_path)
    assert [call["adapter"] for call in asked] == [None, None, "warmup", "tuned"]
    assert list(record["models"]) == ["base", "few_shot", "warmup", "tuned"]
    assert record["few_shot"]["examples"] == 1 and "few_shot" in record["gain"]
    assert "tuned-few_shot" in record["differences"]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<reasoning>\nx\n</reasoning>\n<answer>\n1,080\n</answer>", "1080"),
        ("<reasoning>\nx\n</reasoning>\n<answer>\nThe  CAT\n</answer>", "the cat"),
        ("1080", None),
    ],
)
def test_equal_answers_are_one_vote(text: str, answer: str | None) -> None:
    assert vote(text) == answer


# Going on, with the tiny model.


@pytest.fixture(scope="module")
def trained(unsloth_process: Ask, tiny_checkpoint: Path) -> Path:
    """A run with checkpoints of steps 2 and 4; four batches a model."""
    recipe = small_recipe(
        str(tiny_checkpoint), grpo={"max_steps": 4, "save_steps": 2, "learning_rate": 1e-2},
        eval={"rows": 4, "samples": 2, "batch_size": 3},
    )  # fmt: skip
    found = unsloth_process(unsloth_side.train_tiny, recipe)
    assert found["raised"] is None
    return Path(found["run"])


def copied(trained: Path, folder: Path) -> RunDir:
    return RunDir(Path(shutil.copytree(trained, folder / "run")))


def test_checkpoints_are_further_models_in_the_order_of_training(
    trained: Path, unsloth_process: Ask, tmp_path: Path
) -> None:
    run = copied(trained, tmp_path)
    record = unsloth_process(evaluation_side.evaluated, str(run.path), "all")["record"]
    assert list(record["models"]) == ["base", "warmup", "step2", "step4", "tuned"]
    assert len(record["differences"]) == 10
    assert record["models"]["step4"] == record["models"]["tuned"] != record["models"]["step2"]
    with pytest.raises(ToolkitError, match="no checkpoint of step 3"):
        unsloth_process(evaluation_side.evaluated, str(run.path), [3])


def test_a_stopped_evaluation_goes_on_and_ends_as_if_nothing_had_been(
    trained: Path, unsloth_process: Ask, tmp_path: Path
) -> None:
    from pyarrow import parquet

    whole, broken = (copied(trained, tmp_path / name) for name in ("whole", "broken"))
    straight = unsloth_process(evaluation_side.evaluated, str(whole.path))
    assert straight["batches"] == 3 * 4
    first = unsloth_process(evaluation_side.interrupted_evaluation, str(broken.path), 2)
    assert (first["raised"], first["exit_code"], first["kept"]) == ("Stopped", 130, 2)
    second = unsloth_process(evaluation_side.interrupted_evaluation, str(broken.path), 4)
    assert second["raised"] == "Stopped" and not broken.evaluation.exists()
    rest = unsloth_process(evaluation_side.evaluated, str(broken.path))
    assert rest["batches"] == 3 * 4 - 2 - 4
    assert rest["record"] == straight["record"] == json.loads(broken.evaluation.read_text())
    tables = [parquet.read_table(run.eval_completions).to_pylist() for run in (whole, broken)]
    assert tables[0] == tables[1] and len({row["completion"] for row in tables[0]}) > 10
    assert not broken.evaluating(None).parent.exists()


def test_what_another_evaluation_left_is_not_gone_on_with(tmp_path: Path) -> None:
    from toolkit.engine.completions import Completion, Drawn

    batch = Drawn([Completion(1, [5, 6], truncated=False), Completion(0, [7])])
    Progress(tmp_path / "a", {"seed": 1}).add("base", 0, batch)
    (found,) = Progress(tmp_path / "a", {"seed": 1}).batches("base")
    assert found == batch
    assert Progress(tmp_path / "a", {"seed": 2}).batches("base") == []
