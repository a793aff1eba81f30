"""Reads what was trained, a PEFT LoRA adapter or a whole model: which weight changes how, and where its numbers lie.

It refuses what merge.py cannot do exactly, and loads no weights.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolkit.errors import ExportError
from toolkit.export.checkpoint import DTYPES, Place, read_shard
from toolkit.rundir import ADAPTER_WEIGHTS as WEIGHTS
from toolkit.rundir import WHOLE_WEIGHTS, is_whole

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


@dataclass(frozen=True, slots=True)
class LoraChange:
    """W + scale · B·A, and for DoRA each row scaled to the length `magnitude`. Of an embedding, whose factors lie
    transposed: W + scale · (B·A)ᵀ."""

    down: Place
    up: Place
    scale: float
    magnitude: Place | None = None
    embedding: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        rows, columns = self.up.shape[0], self.down.shape[1]
        return (columns, rows) if self.embedding else (rows, columns)

    @property
    def rank(self) -> int:
        return self.down.shape[0]


Change = LoraChange | Place
"""What happens to a tensor of the base: it is added to, or another one stands in its place."""


@dataclass(slots=True)
class Adapter:
    """Changes by module path (`model.layers.0.mlp.up_proj`), tensors to put in place of the base's by name, and the
    copies of base weights that PEFT stores beside adapted embeddings, by module path. All lie in `file`."""

    file: Path
    changes: dict[str, LoraChange] = field(default_factory=dict)
    replaced: dict[str, Place] = field(default_factory=dict)
    copies: dict[str, Place] = field(default_factory=dict)
    ties: bool = False
    """Whether a change of the embedding is one of the tied output head, too (`ensure_weight_tying`)."""


def read_adapter(folder: Path) -> Adapter:
    """The adapter, complete and understood in every key; a whole model stands in place of all weights."""
    if is_whole(folder):
        return _whole(folder / WHOLE_WEIGHTS)
    if not (folder / CONFIG).is_file() or not (folder / WEIGHTS).is_file():
        raise ExportError(f"no adapter here: {CONFIG} and {WEIGHTS} are expected", where=str(folder))
    config: dict[str, Any] = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    _refuse_unknown(config, folder)
    return _sort(_plain(folder / WEIGHTS), config, folder)


def _plain(file: Path) -> dict[str, Place]:
    places = read_shard(file).tensors
    if odd := next((place.dtype for place in places.values() if place.dtype not in DTYPES), None):
        raise ExportError(f"the trained weights are stored as {odd}", where=str(file))
    return places


def _whole(file: Path) -> Adapter:
    """Of a tied head there is no tensor: it is the embedding, trained once."""
    places = _plain(file)
    return Adapter(file, replaced=places, ties=not any(name.endswith("lm_head.weight") for name in places))


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


_PARTS = re.compile(
    r"(.+)\.(lora_A|lora_B|lora_magnitude_vector|lora_embedding_A|lora_embedding_B|base_layer)(\.weight)?"
)


def _sort(places: dict[str, Place], config: dict[str, Any], folder: Path) -> Adapter:
    adapter = Adapter(folder / WEIGHTS, ties=bool(config.get("ensure_weight_tying")))
    parts: dict[str, dict[str, Place]] = {}
    for key, place in sorted(places.items()):
        if not key.startswith(PREFIX):
            raise ExportError(f"adapter key {key} does not begin with {PREFIX}", where=str(adapter.file))
        path = key.removeprefix(PREFIX)
        if found := _PARTS.fullmatch(path):
            parts.setdefault(found[1], {})[found[2]] = place
        elif "lora_" in path:
            raise ExportError(f"adapter key {key} is of a kind that cannot be merged", where=str(adapter.file))
        else:
            adapter.replaced[path] = place
    for path, found_parts in parts.items():
        if "base_layer" in found_parts:
            adapter.copies[path] = found_parts.pop("base_layer")
        adapter.changes[path] = _change(path, found_parts, config, folder)
    if bool(config.get("modules_to_save")) != bool(adapter.replaced):
        raise ExportError("modules_to_save and the adapter's tensors disagree", where=str(folder))
    if not adapter.changes and not adapter.replaced:
        raise ExportError("the adapter is empty", where=str(folder))
    return adapter


def _change(path: str, parts: dict[str, Place], config: dict[str, Any], folder: Path) -> LoraChange:
    """One module's change, from all its parts and no other."""
    kinds, dora = set(parts), bool(config.get("use_dora"))
    if kinds == {"lora_embedding_A", "lora_embedding_B"} and not dora:
        down, up = parts["lora_embedding_A"], parts["lora_embedding_B"]
        return LoraChange(down, up, scale_of(path, down.shape[0], config), embedding=True)
    if not kinds >= {"lora_A", "lora_B"}:
        raise ExportError(f"the adapter holds only half of {path}", where=str(folder / WEIGHTS))
    if ("lora_magnitude_vector" in kinds) != dora:
        raise ExportError("use_dora and the adapter's magnitude vectors disagree", where=str(folder))
    down, up = parts["lora_A"], parts["lora_B"]
    if len(down.shape) != 2 or len(up.shape) != 2 or down.shape[0] != up.shape[1]:
        raise ExportError(f"{path}: factors of {down.shape} and {up.shape}", where=str(folder / WEIGHTS))
    return LoraChange(down, up, scale_of(path, down.shape[0], config), parts.get("lora_magnitude_vector"))


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
