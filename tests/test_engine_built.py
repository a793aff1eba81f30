"""The real model, adapter and trainers take every argument they are given, and hold every value of the recipe."""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import unsloth_side
from effects import CPU, GPU, setting
from recipe_keys import EFFECTS, WITH_GPU, with_values
from toolkit.engine import arguments
from toolkit.engine.trainers import _as_asked
from toolkit.errors import EngineError
from toolkit.rewards import REWARDS
from undecided import undecided

pytest_plugins = ("shared",)

Ask = Callable[..., Any]
EVERYTHING_ELSE: dict[str, Any] = {
    key: effect.value
    for key, effect in EFFECTS.items()
    if key.split(".")[0] in ("grpo", "model", "warmup")
    and key
    not in (
        "model.source",
        "model.revision",
        "model.fast_inference",
        "model.gpu_memory_utilization",
        "model.load_in_8bit",
        "model.standby",
        "model.vllm_server",
        "model.full_finetuning",
        "grpo.max_prompt_length",
    )
} | {"seed": 7, "grpo.importance_sampling_level": "token"}  # a sequence ratio goes with another loss_type
ON_THE_TRAINER = {
    name: "epsilon_low" if name == "epsilon" else name
    for name in (
        "num_generations", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "beta", "loss_type",
        "scale_rewards", "importance_sampling_level", "epsilon", "epsilon_high", "num_iterations",
        "mask_truncated_completions", "max_completion_length",
    )
}  # fmt: skip


@pytest.fixture(scope="module")
def accepted(unsloth_process: Ask) -> dict[str, list[str]]:
    return unsloth_process(unsloth_side.accepted_arguments)


def test_every_argument_is_one_that_the_pinned_libraries_take(accepted: dict[str, list[str]]) -> None:
    recipe = with_values(WITH_GPU)
    for on in (CPU, GPU):
        resolved = setting(recipe, on)
        assert set(arguments.grpo_arguments(recipe, resolved, Path())) <= set(accepted["grpo"])
        assert set(arguments.warmup_arguments(recipe, resolved, Path())) <= set(accepted["warmup"])
    for_lora = {
        name
        for name in arguments.adapter_arguments(recipe)
        if name not in ("random_state", "use_gradient_checkpointing")
    }
    assert for_lora <= set(accepted["lora"])
    assert set(arguments.adapter_arguments(recipe)) <= set(accepted["adapter"])
    # Seeding the load is a GPU argument; Unsloth's CPU loader swallows what it does not know.
    assert set(arguments.load_arguments(recipe, setting(recipe), "s")) - set(accepted["load"]) == {"random_state"}


def test_every_field_of_trls_configuration_is_passed_or_known_to_decide_nothing(accepted: dict[str, list[str]]) -> None:
    """So that a new TRL, with a new field or without an old one, does not change the algorithm under a recipe."""
    recipe = with_values()
    passed = set(arguments.grpo_arguments(recipe, setting(recipe), Path()))
    assert set(arguments.DECIDED) | set(arguments.FROM_RECIPE) <= passed
    left = undecided()
    assert len(left) == len(set(left)) and not passed & set(left)
    assert set(accepted["grpo"]) - passed == set(left)


def test_an_argument_that_a_configuration_changes_is_an_error() -> None:
    """As Unsloth's for a GPU does with reward scaling under Dr. GRPO's loss."""
    recipe = with_values({"grpo.loss_type": "dr_grpo"})
    asked = arguments.grpo_arguments(recipe, setting(recipe), Path())
    assert _as_asked(lambda **given: SimpleNamespace(**given), asked).scale_rewards == "group"
    with pytest.raises(EngineError, match="scale_rewards False where 'group' was asked for"):
        _as_asked(lambda **given: SimpleNamespace(**(given | {"scale_rewards": False})), asked)


def test_the_kl_terms_reference_is_the_base_model(unsloth_process: Ask, tiny_checkpoint: Path) -> None:
    """TRL would keep a copy of the adapter that a warm-up has made."""
    found = unsloth_process(unsloth_side.built, with_values({"grpo.beta": 0.1, "model.source": str(tiny_checkpoint)}))
    assert found["adapters"] == ["default"] and found["trainer"]["beta"] == 0.1


def signature_in_source(file: str, kind: str, function: str) -> set[str]:
    """Parameter names as they are written in a file of the installed unsloth that only a GPU can import."""
    spec = find_spec("unsloth")
    assert spec is not None and spec.origin is not None
    tree = ast.parse((Path(spec.origin).parent / file).read_text(encoding="utf-8"))
    (owner,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == kind]
    (found,) = [node for node in owner.body if isinstance(node, ast.FunctionDef) and node.name == function]
    return {argument.arg for argument in [*found.args.args, *found.args.kwonlyargs]}


def test_every_argument_is_one_that_unsloth_takes_on_a_gpu() -> None:
    """Read in its source: on a GPU a wrong name is printed as ignored and training goes on without it."""
    recipe = with_values(WITH_GPU)
    loader = signature_in_source("models/loader.py", "FastLanguageModel", "from_pretrained")
    adapter = signature_in_source("models/llama.py", "FastLlamaModel", "get_peft_model")
    assert set(arguments.load_arguments(recipe, setting(recipe, GPU), "s")) <= loader
    assert set(arguments.adapter_arguments(recipe)) <= adapter


@pytest.fixture(scope="module")
def before(unsloth_process: Ask, tiny_checkpoint: Path) -> dict[str, Any]:
    return unsloth_process(unsloth_side.built, with_values({"model.source": str(tiny_checkpoint)}))


@pytest.fixture(scope="module")
def after(unsloth_process: Ask, tiny_checkpoint: Path) -> dict[str, Any]:
    """Built from a recipe in which every key has its other value."""
    return unsloth_process(unsloth_side.built, with_values(EVERYTHING_ELSE, {"model.source": str(tiny_checkpoint)}))


def test_the_built_trainer_holds_every_value_of_the_recipe(before: dict[str, Any], after: dict[str, Any]) -> None:
    for name in (key.removeprefix("grpo.") for key in EFFECTS if key.startswith("grpo.")):
        if name in ("prompts_per_step", "max_prompt_length", "resample_rounds"):
            continue
        value = EVERYTHING_ELSE[f"grpo.{name}"]
        assert after["grpo"][name] == value, name
        if name in ON_THE_TRAINER:
            assert after["trainer"][ON_THE_TRAINER[name]] == value, name
        if name != "importance_sampling_level":
            assert before["grpo"][name] != value, name
    assert after["grpo"]["generation_batch_size"] == 2 * 4 != before["grpo"]["generation_batch_size"] * 2
    assert (before["class"], after["class"]) == ("LeanGRPOTrainer", "ResamplingGRPOTrainer")
    assert after["grpo"]["seed"] == after["grpo"]["data_seed"] == 7


def test_a_sequence_ratio_reaches_the_built_trainer(unsloth_process: Ask, tiny_checkpoint: Path) -> None:
    recipe = with_values({"grpo.importance_sampling_level": "sequence", "model.source": str(tiny_checkpoint)})
    assert unsloth_process(unsloth_side.built, recipe)["trainer"]["importance_sampling_level"] == "sequence"


def test_the_built_warm_up_holds_every_value_of_the_recipe(before: dict[str, Any], after: dict[str, Any]) -> None:
    found = {
        name: after["warmup"][name]
        for name in ("max_steps", "per_device_train_batch_size", "learning_rate", "max_length")
    }
    assert found == {"max_steps": 3, "per_device_train_batch_size": 4, "learning_rate": 1e-4, "max_length": 256}
    assert all(before["warmup"][name] != value for name, value in found.items())
    assert after["warmup"]["completion_only_loss"] is True


def test_the_built_adapter_holds_every_value_of_the_recipe(before: dict[str, Any], after: dict[str, Any]) -> None:
    expected = {
        "r": 32,
        "lora_alpha": 64,
        "lora_dropout": 0.1,
        "target_modules": ["q_proj", "v_proj"],
        "use_rslora": True,
    }
    assert {name: after["lora"][name] for name in expected} == expected
    assert all(before["lora"][name] != value for name, value in expected.items())
    assert after["model"]["adapted"] == ["q_proj", "v_proj"] and len(before["model"]["adapted"]) == 7
    assert after["model"]["scaling"] == pytest.approx(64 / 32**0.5)
    assert before["model"]["scaling"] == pytest.approx(16 / 4)


def test_the_loaded_model_is_what_the_recipe_says(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert (before["model"]["dtype"], after["model"]["dtype"]) == ("float32", "bfloat16")
    assert (before["model"]["four_bit"], after["model"]["four_bit"]) == (False, True)
    assert (before["model"]["max_seq_length"], after["model"]["max_seq_length"]) == (128, 256)
    assert (before["model"]["checkpointing"], after["model"]["checkpointing"]) == (True, False)


def test_the_built_optimizer_is_the_one_named(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert before["optimizer"][0] == "AdamW" and before["changes"] == ["grpo.optim"]
    assert after["optimizer"][0] == "Adafactor" and after["changes"] == []


def test_rewards_reach_the_trainer_by_name_and_with_their_weights(unsloth_process: Ask, tiny_checkpoint: Path) -> None:
    weights = {f"rewards.{name}.weight": at + 0.5 for at, name in enumerate(REWARDS)}
    found = unsloth_process(unsloth_side.built, with_values(weights, {"model.source": str(tiny_checkpoint)}))
    assert found["rewards"] == list(REWARDS)
    assert found["reward_weights"] == list(weights.values())


def test_another_seed_gives_another_adapter(
    unsloth_process: Ask, tiny_checkpoint: Path, before: dict[str, Any]
) -> None:
    place = {"model.source": str(tiny_checkpoint)}
    again, other = (unsloth_process(unsloth_side.built, with_values(place, {"seed": seed})) for seed in (3407, 7))
    assert again["model"]["first_weights"] == before["model"]["first_weights"] != other["model"]["first_weights"]
