"""Whether Unsloth's own vLLM can serve a recipe on this GPU, and what stands in the way. It loads no model.

Read in unsloth and unsloth_zoo 2026.10.9: models/loader.py, models/llama.py, models/vision.py, vllm_utils.py. There some of
these end in an exception after minutes of loading, and some in a line that is printed while something else is done;
here they are said before, and the plain path is taken. tests/test_unsloth_support.py compares the tables with that source.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from toolkit.errors import ToolkitError

if TYPE_CHECKING:
    from toolkit.engine.machine import Machine
    from toolkit.recipe import Model, Recipe

Config = Mapping[str, Any]

TEXT_MODELS = frozenset({"gemma", "gemma2", "gemma3_text", "llama", "mistral", "phi3", "qwen2", "qwen3", "qwen3_moe"})
"""Model types without pictures whose layers `get_model_layer_config` names (unsloth_zoo/empty_model.py)."""
PICTURE_MODELS = frozenset(
    {
        "gemma3", "gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text", "idefics3", "mistral3",
        "muse_glimmer", "muse_glimmer_text", "qwen2_5_vl", "qwen3_5", "qwen3_5_moe", "qwen3_vl", "qwen3_vl_moe",
    }
)  # fmt: skip
"""VLLM_SUPPORTED_VLM (models/vision.py): their text is trained, and served."""
NEED_AMPERE = frozenset({"gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text"})
"""VLLM_NEEDS_SM80_MODEL_TYPES (models/loader.py)."""
LARGEST_RANK = 512
"""vLLM's largest rank of an adapter (`MaxLoRARanks`)."""


def refusal(recipe: Recipe, machine: Machine) -> str | None:
    """Why generation cannot go through Unsloth's vLLM here; None where it can."""
    if not machine.vllm:
        return "vLLM is not installed"
    return _by_machine(recipe.model, machine) or _by_keys(recipe.model, machine) or _by_model(recipe.model, machine)


def _by_machine(model: Model, machine: Machine) -> str | None:
    if machine.capability < (7, 0):
        major, minor = machine.capability
        return f"vLLM needs a GPU of compute capability 7.0, {machine.name} has {major}.{minor}"
    if "GB10" in machine.name.upper():
        return "Unsloth switches it off on a DGX Spark"
    if model.load_in_4bit and not machine.vllm_4bit:
        return "for 4-bit weights vLLM needs the package vllm-bnb-plugin"
    return None


def _by_keys(model: Model, machine: Machine) -> str | None:
    if model.load_in_8bit:
        return "vLLM has no 8-bit weights of bitsandbytes (model.load_in_8bit)"
    if model.full_finetuning:
        return "Unsloth's vLLM serves a frozen base with adapters (model.full_finetuning)"
    if model.dtype == "float32":
        return "Unsloth's vLLM computes in 16 bits (model.dtype: float32)"
    if model.lora.r > LARGEST_RANK:
        return f"vLLM serves adapters of rank {LARGEST_RANK} at most (model.lora.r: {model.lora.r})"
    return None


def _by_model(model: Model, machine: Machine) -> str | None:
    config = model_config(model.source, model.revision)
    kind = config.get("model_type")
    if kind is None:  # out of reach: loading will say so
        return None
    if kind not in TEXT_MODELS | PICTURE_MODELS:
        return f"Unsloth serves no models of type {kind}, or it was not checked"
    if kind in NEED_AMPERE and machine.capability < (8, 0):
        return f"vLLM needs a GPU of compute capability 8.0 for {kind}"
    if "auto_map" in config and kind not in TEXT_MODELS:
        return "the model brings code of its own"
    quantized = config.get("quantization_config") or {}
    if quantized.get("load_in_8bit"):
        return "the checkpoint is in bitsandbytes' 8 bits"
    if _mixture(config) and (model.load_in_4bit or quantized.get("load_in_4bit")):
        return "vLLM serves no adapters on a mixture of experts in 4 bits"
    return None


def _mixture(config: Config) -> bool:
    """As `_is_sparse_moe_config` in models/vision.py."""
    text = config.get("text_config") or config
    names = ("num_experts", "num_local_experts", "n_routed_experts", "enable_moe_block")
    return any(text.get(name) for name in names)


@cache
def model_config(source: str, revision: str | None) -> Config:
    """The base model's config.json; nothing where it is out of reach. Of a Hub model nothing else is downloaded for it."""
    from toolkit.atomic import read_json
    from toolkit.engine.source import checkpoint_of, from_hub, is_hub_name

    try:
        if is_hub_name(source):
            return read_json(from_hub(source, revision, files=("config.json",)) / "config.json")
        return read_json(checkpoint_of(source) / "config.json")
    except (ToolkitError, OSError):
        return {}
