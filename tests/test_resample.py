"""Groups that teach nothing give way to others, the batch is what TRL would have made of the same groups, and the cost is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import resample_side
import unsloth_side
from models import small_recipe
from run_files import assert_same_run, drawn, lines
from toolkit.engine.resample import dead_groups, merged, other_rows
from toolkit.errors import EngineError, RecipeError
from toolkit.rundir import RunDir

pytest_plugins = ("shared",)

Ask = Callable[..., Any]
IDS = [f"train/{number}" for number in range(16)]


def entries(*totals: float | None) -> list[dict[str, Any]]:
    return [{"reward": total, "used": True} for total in totals]


def test_a_group_is_dead_where_all_of_it_earned_the_same() -> None:
    assert dead_groups(entries(1, 1, 1, 2, 0, 0), 2) == [0, 2]
    assert dead_groups(entries(None, None, 0.1 + 0.2, 0.3, 0.0, 1e-3), 2) == [0, 1]


def test_other_rows_are_drawn_by_the_seed_and_never_twice() -> None:
    tried = {"train/1", "train/2"}
    one = other_rows(IDS, 5, tried, seed="7/3/1")
    assert one == other_rows(IDS, 5, tried, seed="7/3/1") != other_rows(IDS, 5, tried, seed="7/3/2")
    assert len(set(one)) == 5 and not {IDS[place] for place in one} & tried
    assert sorted(other_rows(IDS, 99, tried, seed="7")) == [0, *range(3, 16)]
    assert other_rows(IDS, 3, set(IDS), seed="7") == []


def batch(prompts: list[list[int]], answers: list[list[int]], **more: Any) -> dict[str, Any]:
    """As TRL makes it: prompts padded on the left, answers on the right, with 9."""
    import torch

    def padded(texts: list[list[int]], left: bool) -> tuple[Any, Any]:
        width = max(map(len, texts))
        fill = [[9] * (width - len(text)) for text in texts]
        ids = [pad + text if left else text + pad for pad, text in zip(fill, texts, strict=True)]
        mask = [
            [0] * len(pad) + [1] * len(text) if left else [1] * len(text) + [0] * len(pad)
            for pad, text in zip(fill, texts, strict=True)
        ]
        return torch.tensor(ids), torch.tensor(mask)

    (prompt_ids, prompt_mask), (ids, mask) = padded(prompts, True), padded(answers, False)
    return {
        "prompt_ids": prompt_ids, "prompt_mask": prompt_mask, "completion_ids": ids, "completion_mask": mask,
        "advantages": torch.tensor([float(answer[0]) for answer in answers]), "num_items_in_batch": mask.sum(),
        "old_per_token_logps": ids * mask / 10, "sampling_per_token_logps": None, **more,
    }  # fmt: skip


@pytest.mark.parametrize("swap", [False, True])
def test_two_batches_become_the_one_that_trl_would_have_made(swap: bool) -> None:
    import torch

    short, long = ([[1, 2], [3]], [[4], [5, 6]]), ([[1, 2, 3, 4, 5], [6]], [[7, 7, 7], [8]])
    one, other = (long, short) if swap else (short, long)
    found = merged(batch(*one), batch([other[0][0]], [other[1][0]]), [1], pad_token_id=9)
    expected = batch([one[0][0], other[0][0]], [one[1][0], other[1][0]])
    assert found.keys() == expected.keys() and found["num_items_in_batch"] == expected["num_items_in_batch"]
    for name in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "old_per_token_logps"):
        width = expected[name].shape[1]  # nothing but padding may stand beyond it
        kept = found[name][:, -width:] if name.startswith("prompt") else found[name][:, :width]
        assert torch.equal(kept, expected[name]), name
    assert found["advantages"].tolist() == expected["advantages"].tolist()


def test_what_cannot_be_put_together_is_an_error() -> None:
    one = batch([[1]], [[2]], pixel_values="a picture")
    with pytest.raises(EngineError, match="pixel_values") as caught:
        merged(one, one, [0], pad_token_id=9)
    assert "resample_rounds: 0" in str(caught.value.hint)


def test_scaling_by_the_batch_is_refused_in_the_recipe(tmp_path: Path) -> None:
    from toolkit.recipe import load_recipe

    words = ["grpo.resample_rounds=1", "grpo.scale_rewards=batch"]
    with pytest.raises(RecipeError) as caught:
        load_recipe("smoke", words)
    (fault,) = caught.value.faults
    assert "scale_rewards: group" in str(fault.hint)


def test_unsloths_gpu_layout_keeps_every_log_probability_at_its_token(unsloth_process: Ask) -> None:
    """Its log-probabilities are packed to the left; checked with its own functions for that layout."""
    assert unsloth_process(resample_side.log_probabilities_at_their_tokens) == {"apart": 0.0, "tokens": 39}


SETTINGS: list[dict[str, Any]] = [
    {},
    {"beta": 0.04},
    {"num_iterations": 2, "per_device_train_batch_size": 4},
    {"num_iterations": 2, "beta": 0.04, "loss_type": "dr_grpo"},
    {"loss_type": "dapo", "per_device_train_batch_size": 4},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_gradient_is_that_of_the_same_groups_generated_at_once(
    settings: dict[str, Any], unsloth_process: Ask, tiny_checkpoint: Path
) -> None:
    grpo = {"prompts_per_step": 4, "resample_rounds": 3, **settings}
    found = unsloth_process(resample_side.drawn_again_and_at_once, small_recipe(str(tiny_checkpoint), grpo=grpo))
    assert found["replaced"] >= 1 and found["size"] > 0.01
    assert found["apart"] < 1e-5 * max(1.0, found["size"])
    assert found["advantages apart"] < 1e-6
    assert found["items"][0] == found["items"][1]


def tiny(checkpoint: Path, **grpo: Any) -> Any:
    """Half of the rows give groups without spread."""
    settings = {
        "max_steps": 4, "save_steps": 2, "learning_rate": 1e-2, "max_grad_norm": 1.0, "prompts_per_step": 4, **grpo,
    }  # fmt: skip
    model = {"source": str(checkpoint), "lora": {"r": 4, "lora_dropout": 0.1}}
    return small_recipe(str(checkpoint), model=model, grpo=settings)


@pytest.fixture(scope="module")
def resampled(unsloth_process: Ask, tiny_checkpoint: Path) -> RunDir:
    return RunDir(Path(unsloth_process(unsloth_side.train_tiny, tiny(tiny_checkpoint, resample_rounds=2))["run"]))


@pytest.fixture(scope="module")
def plain(unsloth_process: Ask, tiny_checkpoint: Path) -> RunDir:
    return RunDir(Path(unsloth_process(unsloth_side.train_tiny, tiny(tiny_checkpoint))["run"]))


def test_fewer_groups_are_without_spread_and_the_cost_is_recorded(resampled: RunDir, plain: RunDir) -> None:
    before, after = ([line for line in lines(run) if line["stage"] == "grpo"] for run in (plain, resampled))
    assert sum(line["dead_groups"] for line in after) < 0.5 * sum(line["dead_groups"] for line in before)
    assert all(line["resampled_groups"] == line["resampled_tokens"] == 0 for line in before)
    assert sum(line["resampled_groups"] for line in after) > 0
    table = drawn(resampled)
    for line in after:
        step = [row for row in table if row["step"] == line["step"]]
        unused = [row for row in step if not row["used"]]
        assert len(step) - len(unused) == 16 and len(unused) == line["resampled_completions"]
        assert line["resampled_groups"] == len(unused) / 4
        assert line["resampled_tokens"] == sum(row["tokens"] for row in unused)
        assert line["completion_tokens"] == sum(row["tokens"] for row in step)
        used = [row["reward"] for row in step if row["used"]]
        assert line["reward"] == pytest.approx(sum(used) / 16)
        assert len({row["row_id"] for row in step}) == len(step) / 4  # no prompt twice in a step


def test_only_groups_without_spread_were_replaced(resampled: RunDir) -> None:
    unused: dict[tuple[int, str], list[float]] = {}
    for row in drawn(resampled):
        if not row["used"]:
            unused.setdefault((row["step"], row["row_id"]), []).append(row["reward"])
    assert unused and all(len(set(totals)) == 1 for totals in unused.values())


def test_the_first_draw_is_as_without_resampling(resampled: RunDir, plain: RunDir) -> None:
    first = [[row for row in drawn(run) if row["step"] == 1][:16] for run in (resampled, plain)]
    assert [row["completion"] for row in first[0]] == [row["completion"] for row in first[1]]


def test_where_every_group_has_spread_nothing_changes(unsloth_process: Ask, tiny_checkpoint: Path) -> None:
    recipes = [tiny(tiny_checkpoint, resample_rounds=rounds, max_steps=2) for rounds in (0, 3)]
    one, other = (
        RunDir(Path(unsloth_process(unsloth_side.train_tiny, recipe, None, None, "always")["run"]))
        for recipe in recipes
    )
    assert {line["dead_groups"] for line in lines(one) if line["stage"] == "grpo"} == {0.0}
    assert_same_run(one, other)


@pytest.mark.parametrize("step", [1, 3])
def test_a_run_that_was_interrupted_draws_the_same_again(
    step: int, resampled: RunDir, unsloth_process: Ask, tiny_checkpoint: Path
) -> None:
    recipe = tiny(tiny_checkpoint, resample_rounds=2)
    found = unsloth_process(unsloth_side.interrupted, recipe, ("grpo", step))
    assert found["raised"] == "Stopped"
    assert unsloth_process(unsloth_side.train_tiny, recipe, found["run"])["raised"] is None
    assert_same_run(RunDir(Path(found["run"])), resampled)
