"""The memory estimate's arithmetic: shapes from configurations, terms from shapes, what to change first. Nothing is loaded."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from models import SIZES, SMOLLM2, small_recipe
from toolkit.engine.machine import Machine
from toolkit.errors import EngineError
from toolkit.estimate import (
    CARDS,
    Estimate,
    Shape,
    changes,
    estimate,
    from_config,
    layer_bytes,
    on_cards,
    published,
    shape_of,
)
from toolkit.estimate.advice import changed
from toolkit.estimate.shape import PUBLISHED
from toolkit.estimate.terms import GIB, LIBRARIES_GIB, NF4_BYTES
from toolkit.recipe import Recipe, load_recipe
from toolkit.recipe.schema import Warmup

CPU = Machine("cpu", True, "a CPU", 2, 16.0)
GPU = Machine("cuda", True, "a GPU", 8, 24.0)
T4 = CARDS[0]
SHAPE = Shape(1000, 64, 128, 2, 4, 2, 16)


def recipe(**grpo: Any) -> Recipe:
    """8 completions of 20 tokens to 2 prompts of 10, rank 4 on all projections, 16 bits."""
    lengths = {"max_prompt_length": 10, "max_completion_length": 20, "prompts_per_step": 2, "num_generations": 4}
    model = {"load_in_4bit": False, "dtype": "auto", "fast_inference": False, "lora": {"r": 4}}
    return small_recipe("org/model", model=model, warmup=None, grpo=lengths | {"optim": "adamw_torch"} | grpo)


def term(found: Estimate, name: str) -> float:
    (size,) = [each.gib for each in found.terms if each.name == name]
    return size * GIB


# Shapes ---------------------------------------------------------------------------------------------------


def test_a_folder_is_read_by_its_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SIZES), encoding="utf-8")
    shape = shape_of(small_recipe(str(tmp_path)).model)
    assert (shape.layers, shape.key_heads, shape.head_size, shape.tied) == (2, 2, 16, True)


def test_the_weights_are_those_of_the_built_model() -> None:
    from models import tiny_llama

    model = tiny_llama()
    shape = from_config(model.config.to_dict(), origin="")
    matrices = sum(p.numel() for name, p in model.named_parameters() if "proj" in name)
    assert shape.matrices == matrices and shape.embeddings == model.get_input_embeddings().weight.numel()


def test_a_gguf_header_says_the_same_as_the_configuration() -> None:
    found = shape_of(small_recipe(SMOLLM2).model)
    assert replace(found, origin="") == replace(PUBLISHED["smollm2-135m"], origin="")


def test_language_and_vision_are_told_apart() -> None:
    vision = {"hidden_size": 10, "num_hidden_layers": 2, "intermediate_size": 20}
    shape = from_config({"text_config": SIZES, "vision_config": vision, "model_type": "gemma3"}, origin="")
    assert shape.hidden == 64 and shape.other_weights == 2 * (4 * 100 + 2 * 200)


def test_a_mixture_has_its_experts() -> None:
    one = from_config(SIZES, origin="")
    eight = from_config(SIZES | {"num_experts": 8, "moe_intermediate_size": 96}, origin="")
    mlp = 2 * 3 * 64 * 96
    assert eight.matrices == one.matrices + 7 * mlp


@pytest.mark.parametrize(("name", "shape"), PUBLISHED.items())
def test_published_shapes_have_the_size_in_their_name(name: str, shape: Shape) -> None:
    size = name.rpartition("-")[2]
    said = float(size[:-1]) * (1e9 if size[-1] == "b" else 1e6)
    assert math.isclose(shape.weights, said, rel_tol=0.25)


@pytest.mark.parametrize(
    ("source", "known"),
    [
        ("unsloth/gemma-3-1b-it", "gemma-3-1b"), ("google/gemma-3-1b-it", "gemma-3-1b"),
        ("unsloth/Llama-3.2-3B-Instruct-unsloth-bnb-4bit", "llama-3.2-3b"), ("Qwen/Qwen2.5-1.5B-Instruct", "qwen2.5-1.5b"),
        ("meta-llama/Meta-Llama-3.1-8B", "llama-3.1-8b"), ("org/model", None),
    ],
)  # fmt: skip
def test_a_copy_has_the_shape_of_its_original(source: str, known: str | None) -> None:
    found = published(source)
    assert (found and found.layers) == (PUBLISHED[known].layers if known else None)
    assert found is None or found.quantized == source.endswith("bnb-4bit")


def test_an_unknown_model_of_the_hub_is_said_to_be_one() -> None:
    with pytest.raises(EngineError, match=r"config.json is not in the cache") as caught:
        shape_of(small_recipe("org/nowhere").model)
    assert caught.value.where == "org/nowhere"


def test_a_configuration_without_the_numbers_is_no_crash() -> None:
    with pytest.raises(EngineError, match="hidden_size"):
        from_config({"model_type": "mamba"}, origin="config.json")


# Terms ------------------------------------------------------------------------------------------------------


def test_weights_adapter_gradients_and_optimiser_are_counted() -> None:
    found = estimate(recipe(), SHAPE, CPU)
    assert term(found, "weights") == 2 * SHAPE.weights
    trained = 2 * 4 * (3 * (64 + 128) + 2 * (64 + 64) + 2 * (64 + 32))
    assert term(found, "adapter") == term(found, "gradients") == 4 * trained
    assert term(found, "optimiser (adamw_torch)") == 8 * trained
    assert found.of("always") * GIB > term(found, "weights") + LIBRARIES_GIB * GIB


@pytest.mark.parametrize(("optim", "each"), [("adamw_8bit", 2), ("paged_lion_8bit", 1), ("paged_adamw_32bit", 8)])
def test_optimisers_differ_by_their_moments(optim: str, each: int) -> None:
    found = estimate(recipe(optim=optim), SHAPE, GPU)
    assert term(found, f"optimiser ({optim})") == each * term(found, "adapter") / 4


def test_sgd_has_no_moments_and_adafactor_rows_and_columns() -> None:
    assert "optimiser (sgd)" not in [each.name for each in estimate(recipe(optim="sgd"), SHAPE, GPU).terms]
    found = estimate(recipe(optim="adafactor"), SHAPE, GPU)
    assert term(found, "optimiser (adafactor)") < term(found, "adapter")


def test_four_bits_are_nf4_with_wide_embeddings() -> None:
    found = estimate(changed(recipe(), "model.load_in_4bit", True), SHAPE, GPU)
    assert term(found, "weights in 4 bits") == pytest.approx(SHAPE.matrices * NF4_BYTES)
    assert term(found, "embeddings, 16-bit parts") == 2 * SHAPE.embeddings
    assert pytest.approx(0.5159, abs=1e-4) == NF4_BYTES


def test_a_copys_wide_modules_stay_wide() -> None:
    copy = replace(
        SHAPE, quantized=True, wide_modules=("lm_head", "model.layers.1.mlp", "model.layers.0.self_attn.q_proj")
    )
    found = estimate(recipe(), copy, GPU)
    wide = 3 * 64 * 128 + 64 * 64
    assert term(found, "weights in 4 bits") == pytest.approx((SHAPE.matrices - wide) * NF4_BYTES)


def test_bitsandbytes_packs_as_the_estimate_says() -> None:
    """The real quantiser: bytes of a packed matrix with its constants."""
    torch = pytest.importorskip("torch")
    functional = pytest.importorskip("bitsandbytes.functional")
    packed, state = functional.quantize_4bit(
        torch.randn(512, 1024), blocksize=64, quant_type="nf4", compress_statistics=True
    )
    constants = state.absmax.nbytes + state.state2.absmax.nbytes
    assert packed.nbytes + constants == pytest.approx(512 * 1024 * NF4_BYTES, rel=0.01)


def test_activations_grow_with_tokens_and_checkpointing_keeps_one_layer() -> None:
    whole = estimate(recipe(gradient_checkpointing=False), SHAPE, CPU)
    less = estimate(recipe(gradient_checkpointing=True), SHAPE, CPU)
    assert term(whole, "activations") > 1.5 * term(less, "activations")
    half = estimate(recipe(gradient_checkpointing=False, per_device_train_batch_size=4), SHAPE, CPU)
    assert term(half, "activations") * 2 == pytest.approx(term(whole, "activations"))


def test_logits_are_tokens_times_vocabulary() -> None:
    found = estimate(recipe(), SHAPE, CPU)
    assert term(found, "logits") == 8 * 20 * 1000 * 16  # below one chunk of the head
    long = estimate(recipe(max_completion_length=100, prompts_per_step=8), SHAPE, CPU)
    assert term(long, "logits") == (4 * 3200 + 12 * 1024) * 1000


def test_sliding_windows_and_kl_take_trls_own_way() -> None:
    assert term(estimate(recipe(beta=0.1), SHAPE, CPU), "activations") > term(
        estimate(recipe(), SHAPE, CPU), "activations"
    )
    slides = estimate(recipe(), replace(SHAPE, window=8), CPU)
    assert term(slides, "activations") > term(estimate(recipe(), SHAPE, CPU), "activations")


def test_a_warm_up_has_its_own_phase_and_the_largest_counts() -> None:
    plain = recipe(gradient_checkpointing=False)
    warmed = plain.model_copy(update={"warmup": Warmup(batch_size=64)})
    found = estimate(warmed, SHAPE, CPU)
    assert found.of("warm-up") * GIB == 64 * 30 * 2 * layer_bytes(SHAPE, 2) and found.of("warm-up") > found.of(
        "backward"
    )
    assert found.gib == found.of("always") + found.of("warm-up") > estimate(plain, SHAPE, CPU).gib


def test_the_cache_holds_keys_and_values_of_all_completions() -> None:
    found = estimate(recipe(), SHAPE, CPU)
    assert term(found, "KV cache") == 2 * 2 * 2 * 16 * 8 * 30 * 2


def test_vllm_takes_its_share_of_the_card() -> None:
    asked = changed(recipe(), "model.fast_inference", True)
    (card,) = [found for found in on_cards(asked, SHAPE) if found.machine.name == "L4"]
    assert card.setting.generator == "unsloth"
    assert term(card, "vLLM's KV cache") + term(card, "weights") == pytest.approx(0.6 * 22.0 * GIB)


def test_a_card_without_bfloat16_computes_in_float16() -> None:
    (old, new) = (next(c for c in on_cards(recipe(), SHAPE) if c.machine.name == name) for name in ("T4", "L4"))
    assert (old.setting.dtype, new.setting.dtype) == ("float16", "bfloat16")


# What to change -------------------------------------------------------------------------------------------------


def test_the_first_change_costs_time_only_and_has_a_value() -> None:
    large = load_recipe("smollm2-gsm8k", ["grpo.per_device_train_batch_size=32"]).recipe
    shape = PUBLISHED["smollm2-135m"]
    before = estimate(large, shape, replace(CPU, memory_gib=4.0))
    assert before.verdict == "too large"
    first, *_ = found = changes(large, shape, before)
    assert first.key == "grpo.per_device_train_batch_size" and 32 % first.value == 0
    assert first.saves_gib == pytest.approx(before.gib - first.then_gib)
    assert found[-1].fits and f"{first.key}: {first.value} saves" in str(first)


def test_every_change_is_one_that_the_recipe_takes() -> None:
    machine, shape = replace(CPU, memory_gib=1.5), PUBLISHED["smollm2-135m"]
    smaller = load_recipe("smollm2-gsm8k").recipe
    found = changes(smaller, shape, estimate(smaller, shape, machine))
    for change in found:
        smaller = Recipe.model_validate(changed(smaller, change.key, change.value).model_dump())
    assert estimate(smaller, shape, machine).gib == pytest.approx(found[-1].then_gib)


def test_on_a_card_vllm_gives_way() -> None:
    asked = changed(load_recipe("llama32-gsm8k").recipe, "model.gpu_memory_utilization", 0.95)
    shape = PUBLISHED["llama-3.2-3b"]
    (card,) = [found for found in on_cards(asked, shape) if found.machine.name == "T4"]
    assert card.verdict != "fits"
    assert card.as_json()["terms"]["always: vLLM's KV cache"] > 5
