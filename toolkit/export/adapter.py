"""Reads a PEFT LoRA adapter: which module of the base gets which change. It refuses what merge.py cannot
do exactly."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.errors import ExportError

if TYPE_CHECKING:
    import torch

WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
PREFIX = "base_model.model."

SAFE_FIELDS = frozenset(
    {
        "alpha_pattern", "auto_mapping", "base_model_name_or_path", "exclude_modules", "inference_mode",
        "init_lora_weights", "layers_pattern", "layers_to_transform", "lora_alpha", "lora_dropout", "megatron_core",
        "modules_to_save", "peft_type", "peft_version", "qalora_group_size", "r", "rank_pattern", "revision",
        "target_modules", "task_type", "use_dora", "use_rslora", "ensure_weight_tying",
    }
)  # fmt: skip
"""Fields of adapter_config.json that merge.py honours, or that do not touch the arithmetic. Any other one
that is set (`bias`, `fan_in_fan_out`, `layer_replication`, `trainable_token_indices`, …) changes what the
adapter means."""

SAFE_INITS = (None, True, False, "gaussian", "orthogonal", "eva", "lora_ga")
"""Initialisations that leave the base as it was. PiSSA, OLoRA, CorDA and LoftQ train against a changed
base."""


@dataclass(slots=True)
class LoraChange:
    """W + scale · B·A, and for DoRA each row scaled to the length `magnitude`."""

    down: torch.Tensor
    up: torch.Tensor
    scale: float
    magnitude: torch.Tensor | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.up.shape[0], self.down.shape[1])


@dataclass(slots=True)
class Adapter:
    """Changes by module path (`model.layers.0.mlp.up_proj`), and tensors to put in place of the base's by
    name."""

    changes: dict[str, LoraChange] = field(default_factory=dict)
    replaced: dict[str, torch.Tensor] = field(default_factory=dict)


def read_adapter(folder: Path) -> Adapter:
    """The adapter, complete and understood in every key."""
    from safetensors.torch import load_file

    if not (folder / CONFIG).is_file() or not (folder / WEIGHTS).is_file():
        raise ExportError(f"no adapter here: {CONFIG} and {WEIGHTS} are expected", where=str(folder))
    config: dict[str, Any] = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    _refuse_unknown(config, folder)
    try:
        tensors = load_file(folder / WEIGHTS)
    except Exception as error:  # safetensors has its own error classes for damaged files
        raise ExportError(f"the adapter cannot be read: {error}", where=str(folder / WEIGHTS)) from error
    return _sort(tensors, config, folder)


def _refuse_unknown(config: dict[str, Any], folder: Path) -> None:
    if config.get("peft_type") != "LORA":
        raise ExportError(f"only LoRA adapters can be merged, not {config.get('peft_type')!r}", where=str(folder))
    odd = {key: value for key, value in config.items() if key not in SAFE_FIELDS and value not in _EMPTY}
    if odd:
        settings = ", ".join(f"{key}={value!r}" for key, value in sorted(odd.items()))
        raise ExportError(f"an adapter with {settings} cannot be merged exactly", where=str(folder / CONFIG))
    if config.get("init_lora_weights") not in SAFE_INITS:
        how = config["init_lora_weights"]
        raise ExportError(f"init_lora_weights={how!r} changes the base while training", where=str(folder / CONFIG))


_EMPTY: tuple[Any, ...] = (None, False, {}, [], "", "none", "megatron.core")


def _sort(tensors: dict[str, torch.Tensor], config: dict[str, Any], folder: Path) -> Adapter:
    adapter, parts = Adapter(), {"lora_A": {}, "lora_B": {}, "lora_magnitude_vector": {}}
    for key, tensor in sorted(tensors.items()):
        if not key.startswith(PREFIX):
            raise ExportError(f"adapter key {key} does not begin with {PREFIX}", where=str(folder / WEIGHTS))
        path = key.removeprefix(PREFIX)
        found = re.fullmatch(r"(.+)\.(lora_A|lora_B|lora_magnitude_vector)(\.weight)?", path)
        if found:
            parts[found[2]][found[1]] = tensor
        elif "lora_" in path:
            raise ExportError(f"adapter key {key} is of a kind that cannot be merged", where=str(folder / WEIGHTS))
        else:
            adapter.replaced[path] = tensor
    downs, ups, magnitudes = parts.values()
    if unpaired := sorted(downs.keys() ^ ups.keys()) + sorted(magnitudes.keys() - downs.keys()):
        raise ExportError(f"the adapter holds only half of {unpaired[0]}", where=str(folder / WEIGHTS))
    if bool(config.get("use_dora")) != bool(magnitudes) or (magnitudes and magnitudes.keys() != downs.keys()):
        raise ExportError("use_dora and the adapter's magnitude vectors disagree", where=str(folder))
    if bool(config.get("modules_to_save")) != bool(adapter.replaced):
        raise ExportError("modules_to_save and the adapter's tensors disagree", where=str(folder))
    for path, down in downs.items():
        scale = scale_of(path, int(down.shape[0]), config)
        adapter.changes[path] = LoraChange(down, ups[path], scale, magnitudes.get(path))
    if not adapter.changes and not adapter.replaced:
        raise ExportError("the adapter is empty", where=str(folder))
    return adapter


def scale_of(path: str, rank: int, config: dict[str, Any]) -> float:
    """lora_alpha / r, or / sqrt(r) for rank-stabilised LoRA, with PEFT's per-module patterns."""
    expected = _by_pattern(path, config.get("rank_pattern"), config["r"])
    if rank != expected:
        raise ExportError(f"{path} has rank {rank}, {CONFIG} says {expected}")
    alpha = _by_pattern(path, config.get("alpha_pattern"), config["lora_alpha"])
    return alpha / math.sqrt(rank) if config.get("use_rslora") else alpha / rank


def _by_pattern(path: str, patterns: dict[str, Any] | None, default: Any) -> Any:
    """The value of the first pattern that is the path's end, as PEFT matches them."""
    for pattern, value in (patterns or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", path):
            return value
    return default
