"""The lean trainer takes shortcuts, not liberties: loss, gradient and whole training are those of TRL's own trainer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import unsloth_side
from models import small_recipe, tiny_gemma, tiny_llama
from toolkit.engine.lean import exact_for

pytest_plugins = ("shared",)

Ask = Callable[..., Any]
LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo")
SGD: dict[str, Any] = {
    "optim": "sgd", "learning_rate": 0.5, "warmup_steps": 0, "lr_scheduler_type": "constant", "max_grad_norm": 1e6,
    "temperature": 0.9, "weight_decay": 0.0,
}  # fmt: skip
"""Plain steps along the gradient: where the adapter moves is what the gradients were."""


@pytest.mark.parametrize("loss", LOSSES)
def test_loss_and_gradient_are_those_of_trl(loss: str, unsloth_process: Ask, tiny_checkpoint: Path) -> None:
    """Micro-batches with dead rows, dead groups, masked rows, answers of one token, ratios outside every clip."""
    recipe = small_recipe(str(tiny_checkpoint), grpo={"loss_type": loss, "temperature": 0.8, "delta": 2.5})
    for case, found in unsloth_process(unsloth_side.loss_gradients, recipe).items():
        assert found["apart"] <= 1e-5 * max(1.0, found["size"]), (case, found)
        assert found["losses apart"] < 1e-5, (case, found)
        nothing_to_learn = case in ("all rows dead", "every live row masked", "every row masked")
        assert (found["size"] > 0.05) == (not nothing_to_learn), (case, found)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"per_device_train_batch_size": 2},
        {"per_device_train_batch_size": 4, "loss_type": "dapo", "gradient_checkpointing": False},
        {"loss_type": "bnpo"},
        {"num_iterations": 2, "max_steps": 4, "per_device_train_batch_size": 4, "loss_type": "dr_grpo"},
        {"num_iterations": 2, "importance_sampling_level": "sequence", "epsilon": 0.01},
    ],
    ids=str,
)
def test_a_whole_training_ends_where_trls_ends(
    settings: dict[str, Any], unsloth_process: Ask, tiny_checkpoint: Path
) -> None:
    """Rollouts, rewards, batches, steps; half of the groups without spread. (bnpo's mean is per batch: one batch there.)"""
    # With this seed a second update on the same completions has a gradient: with the other all of them are clipped then.
    seed = 2 if "importance_sampling_level" in settings else 3407
    recipe = small_recipe(str(tiny_checkpoint), seed=seed, grpo=SGD | settings)
    found = unsloth_process(unsloth_side.lean_and_trl, recipe)
    assert found["moved"] > 0.1
    assert found["apart"] < 1e-4
    for lean, own in found["logged"]:
        assert lean == pytest.approx(own)
    assert found["grad_norm"][0] == pytest.approx(found["grad_norm"][1], rel=1e-4)
    assert all(norm > 0 for norm in found["grad_norm"][0])


def test_it_is_left_out_where_it_would_not_be_exact(unsloth_process: Ask, tiny_checkpoint: Path) -> None:
    assert exact_for(tiny_llama()) and not exact_for(tiny_gemma())
    with_penalty = small_recipe(str(tiny_checkpoint), grpo={"beta": 0.1})
    assert unsloth_process(unsloth_side.built, with_penalty)["class"] == "ComparingGRPOTrainer"
    assert unsloth_process(unsloth_side.built, small_recipe(str(tiny_checkpoint)))["class"] == "LeanGRPOTrainer"
