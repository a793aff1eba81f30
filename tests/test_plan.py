"""The plan is the arithmetic that the trainer follows, and what cannot work is refused in one line, with what does."""

from __future__ import annotations

from pathlib import Path

import pytest

from effects import setting
from models import small_recipe
from recipe_keys import with_values
from toolkit.engine.arguments import grpo_arguments
from toolkit.errors import Fault, RecipeError
from toolkit.recipe import load_recipe
from toolkit.recipe.plan import plan, plan_lines


@pytest.mark.parametrize("prompts", [1, 3, 8])
@pytest.mark.parametrize("generations", [2, 6])
@pytest.mark.parametrize("passes", [None, 2])
def test_the_plan_is_what_the_trainer_is_told(prompts: int, generations: int, passes: int | None) -> None:
    recipe = with_values(
        {
            "grpo.prompts_per_step": prompts,
            "grpo.num_generations": generations,
            "grpo.per_device_train_batch_size": passes,
        }
    )
    made = setting(recipe)
    found, told = plan(recipe, 100, batch_rows=made.batch_rows), grpo_arguments(recipe, made, Path())
    assert found.completions_per_step == prompts * generations
    assert found.completions_per_pass == told["per_device_train_batch_size"]
    assert found.passes_per_step == told["gradient_accumulation_steps"] == told["steps_per_generation"]
    assert (found.group_size, found.steps) == (told["num_generations"], told["max_steps"])


def test_epochs_leave_out_rows_that_fill_no_step() -> None:
    recipe = small_recipe("org/model", grpo={"prompts_per_step": 3, "max_steps": 12})
    found = plan(recipe, 10)
    assert (found.steps_per_epoch, found.epochs, found.passes_per_step) == (3, 4.0, None)


def test_completions_that_serve_twice_are_drawn_once() -> None:
    recipe = small_recipe("org/model", grpo={"num_iterations": 2, "max_steps": 5})
    found = plan(recipe, 16)
    assert (found.generations, found.completions_at_most, found.steps_per_epoch) == (3, 3 * 8, 16)


def test_drawing_again_costs_at_most_its_rounds() -> None:
    plain, twice = (plan(small_recipe("org/model", grpo={"resample_rounds": rounds}), 16) for rounds in (0, 2))
    assert twice.completions_at_most == 3 * plain.completions_at_most
    assert twice.tokens_at_most == 3 * plain.tokens_at_most == 3 * 2 * 8 * 12


def test_the_plan_is_said_in_two_lines() -> None:
    lines = plan_lines(plan(small_recipe("org/model"), 16, batch_rows=4))
    assert lines == [
        "a step: 2 prompts × 4 completions = 8 completions, 4 in each of 2 backward passes",
        "the run: 2 steps of 8 in an epoch (16 rows), so 0.25 epochs; at most 16 completions with 192 tokens",
    ]
    assert "backward" not in plan_lines(plan(small_recipe("org/model"), 16, batch_rows=8))[0]


def refused(*overrides: str) -> Fault:
    with pytest.raises(RecipeError) as caught:
        load_recipe("smollm2-arithmetic", list(overrides))
    (fault,) = caught.value.faults
    return fault


@pytest.mark.parametrize(
    ("override", "said", "works"),
    [
        ("grpo.num_generations=1", "at least 2, got 1", "4 to 16"),
        ("grpo.temperature=0", "above 0, got 0", "0.7 to 1.0"),
        ("grpo.max_completion_length=500", "more than model.max_seq_length 512", "at most 416"),
        ("model.lora.target_modules=[q_proj, lm_head]", "got the text 'lm_head'", "tied, they are one matrix"),
        ("model.lora.target_modules=[embed_tokens]", "got the text 'embed_tokens'", "all seven projections"),
        ("model.lora.target_modules=lm_head", "expected a list", "tied, they are one matrix"),
        ("model.lora.target_modules=all-linear", "expected a list", "leave the key out"),
        ("grpo.per_device_train_batch_size=20", "20 does not divide 48", "values that work: 8, 12, 16, 24"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line_with_what_does(override: str, said: str, works: str) -> None:
    fault = refused(override)
    assert said in fault.message and works in str(fault.hint)
    assert "\n" not in fault.message + str(fault.hint)
    assert fault.key.startswith(override.partition("=")[0])


def test_a_near_name_is_still_named() -> None:
    assert refused("model.lora.target_modules=[q_prj]").hint == "did you mean q_proj?"
