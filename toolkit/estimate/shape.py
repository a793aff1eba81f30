"""A model's shape, from its configuration alone: a config.json (folder, cache, Hub), a GGUF header, or a table of published ones.

It reads no weights and counts no bytes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.atomic import read_json
from toolkit.engine.source import is_hub_name, local_path
from toolkit.errors import EngineError

if TYPE_CHECKING:
    from toolkit.llamacpp import GgufFile
    from toolkit.recipe import Model

HUB_SECONDS = 5.0
"""Patience for one small file."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The numbers of a decoder from which its memory follows. Sizes are counts of weights or of entries, never bytes."""

    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    key_heads: int
    head_size: int
    tied: bool = True
    """Whether the output head is the embedding."""
    window: int | None = None
    """Tokens that a sliding-window layer looks back; None where every layer attends to all."""
    experts: int = 1
    other_weights: int = 0
    """Of parts that are loaded and not trained: a vision tower."""
    quantized: bool = False
    """Whether the files themselves are 4-bit (a `-bnb-4bit` copy)."""
    wide_modules: tuple[str, ...] = ()
    """Modules that such a copy leaves in 16 bits."""
    origin: str = ""
    """Where all this was read."""

    @property
    def projections(self) -> dict[str, tuple[int, int]]:
        """Name -> (inputs, outputs) of one layer's matrices, the experts' as one of them each."""
        queries, keys = self.heads * self.head_size, self.key_heads * self.head_size
        return {
            "q_proj": (self.hidden, queries),
            "k_proj": (self.hidden, keys),
            "v_proj": (self.hidden, keys),
            "o_proj": (queries, self.hidden),
            "gate_proj": (self.hidden, self.intermediate),
            "up_proj": (self.hidden, self.intermediate),
            "down_proj": (self.intermediate, self.hidden),
        }

    @property
    def matrices(self) -> int:
        """Weights of the projections in all layers: what 4 bits are about."""
        parts = ("gate_proj", "up_proj", "down_proj")
        sizes = [(name, rows * columns) for name, (rows, columns) in self.projections.items()]
        return self.layers * sum(size * (self.experts if name in parts else 1) for name, size in sizes)

    @property
    def embeddings(self) -> int:
        """Weights of the embedding, and of the head where it is another matrix: they stay in 16 bits."""
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def weights(self) -> int:
        """All of them but norms and biases, which are thousandths."""
        return self.matrices + self.embeddings + self.other_weights


def shape_of(model: Model, *, ask_hub: bool = False) -> Shape:
    """The shape of a recipe's base model. Only `ask_hub` uses the network, for one small file.

    EngineError where nothing here says it.
    """
    if is_hub_name(model.source):
        return _of_hub(model, ask_hub=ask_hub)
    path = local_path(model.source)
    if path.is_dir():
        return from_config(read_json(path / "config.json"), origin="config.json")
    from toolkit.llamacpp import GgufFile

    return from_header(GgufFile(path))


def _of_hub(model: Model, *, ask_hub: bool) -> Shape:
    if (file := _in_cache(model)) or (ask_hub and (file := _fetched(model))):
        return from_config(read_json(file), origin="config.json of the Hub")
    if known := published(model.source):
        return known
    hint = "connect to the Hub once, or name a folder or a GGUF file in model.source"
    raise EngineError("its config.json is not in the cache and was not fetched", where=model.source, hint=hint)


def _in_cache(model: Model) -> Path | None:
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return None
    found = try_to_load_from_cache(model.source, "config.json", revision=model.revision)
    return Path(found) if isinstance(found, str) else None


def _fetched(model: Model) -> Path | None:
    """None for whatever reason: that the Hub, or the model, is out of reach has its own finding."""
    try:
        from httpx import HTTPError
        from huggingface_hub import hf_hub_download

        found = hf_hub_download(model.source, "config.json", revision=model.revision, etag_timeout=HUB_SECONDS)
    except (ImportError, HTTPError, OSError, ValueError):
        return None
    return Path(found)


def from_config(config: Mapping[str, Any], *, origin: str) -> Shape:
    """From transformers' config.json. A model that also sees pictures has its language part in `text_config`."""
    text = {**config, **(config.get("text_config") or {})}
    try:
        hidden, heads = int(text["hidden_size"]), int(text["num_attention_heads"])
        kinds = set(text.get("layer_types") or [])
        slides = "sliding_attention" in kinds or bool(text.get("sliding_window_pattern"))
        slides = slides or (text.get("sliding_window") is not None and text.get("use_sliding_window", True))
        quantization = config.get("quantization_config") or text.get("quantization_config") or {}
        return Shape(
            vocabulary=int(text["vocab_size"]),
            hidden=hidden,
            intermediate=int(text.get("moe_intermediate_size") or text["intermediate_size"]),
            layers=int(text["num_hidden_layers"]),
            heads=heads,
            key_heads=int(text.get("num_key_value_heads") or heads),
            head_size=int(text.get("head_dim") or hidden // heads),
            tied=bool(text.get("tie_word_embeddings", str(text.get("model_type", "")).startswith("gemma"))),
            window=int(text.get("sliding_window") or 0) or None if slides else None,
            experts=int(text.get("num_experts") or text.get("num_local_experts") or 1),
            other_weights=_vision(config.get("vision_config")),
            quantized=bool(quantization),
            wide_modules=tuple(quantization.get("llm_int8_skip_modules") or ()),
            origin=origin,
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise EngineError(f"its configuration says no {error}", where=origin) from error


def _vision(config: Any) -> int:
    """Weights of a vision transformer: four square projections and two of the MLP in each layer."""
    if not isinstance(config, Mapping):
        return 0
    hidden, layers = int(config.get("hidden_size") or 0), int(config.get("num_hidden_layers") or 0)
    return layers * (4 * hidden**2 + 2 * hidden * int(config.get("intermediate_size") or 4 * hidden))


def from_header(file: GgufFile) -> Shape:
    """From a GGUF file, which is trained as the 16-bit checkpoint that is made of it."""
    heads, hidden = int(file.model_field("attention.head_count")), int(file.model_field("embedding_length"))
    others = sum(math.prod(shape) for name, shape in file.tensor_shapes.items() if name.startswith("v."))
    return Shape(
        vocabulary=len(file.tokens),
        hidden=hidden,
        intermediate=int(file.model_field("feed_forward_length")),
        layers=int(file.model_field("block_count")),
        heads=heads,
        key_heads=int(file.model_field("attention.head_count_kv") or heads),
        head_size=int(file.model_field("attention.key_length") or hidden // heads),
        tied="output.weight" not in file.tensors,
        window=file.model_field("attention.sliding_window"),
        experts=int(file.model_field("expert_count") or 1),
        other_weights=others,
        origin="GGUF header",
    )


def _table(
    vocabulary: int,
    hidden: int,
    intermediate: int,
    layers: int,
    heads: int,
    key_heads: int,
    head_size: int,
    **more: Any,
) -> Shape:
    origin = "the toolkit's table of published configurations"
    return Shape(vocabulary, hidden, intermediate, layers, heads, key_heads, head_size, origin=origin, **more)


# vocabulary, hidden, intermediate, layers, heads, key heads, head size: from each model's config.json on the Hub.
PUBLISHED: dict[str, Shape] = {
    "gemma-3-270m": _table(262144, 640, 2048, 18, 4, 1, 256, window=512),
    "gemma-3-1b": _table(262144, 1152, 6912, 26, 4, 1, 256, window=512),
    "llama-3.2-1b": _table(128256, 2048, 8192, 16, 32, 8, 64),
    "llama-3.2-3b": _table(128256, 3072, 8192, 28, 24, 8, 128),
    "llama-3.1-8b": _table(128256, 4096, 14336, 32, 32, 8, 128, tied=False),
    "qwen2.5-0.5b": _table(151936, 896, 4864, 24, 14, 2, 64),
    "qwen2.5-1.5b": _table(151936, 1536, 8960, 28, 12, 2, 128),
    "qwen2.5-3b": _table(151936, 2048, 11008, 36, 16, 2, 128),
    "qwen2.5-7b": _table(152064, 3584, 18944, 28, 28, 4, 128, tied=False),
    "qwen3-0.6b": _table(151936, 1024, 3072, 28, 16, 8, 128),
    "qwen3-1.7b": _table(151936, 2048, 6144, 28, 16, 8, 128),
    "qwen3-4b": _table(151936, 2560, 9728, 36, 32, 8, 128),
    "qwen3-8b": _table(151936, 4096, 12288, 36, 32, 8, 128, tied=False),
    "smollm2-135m": _table(49152, 576, 1536, 30, 9, 3, 64),
    "smollm2-360m": _table(49152, 960, 2560, 32, 15, 5, 64),
    "smollm2-1.7b": _table(49152, 2048, 8192, 24, 32, 32, 64),
}
_VARIANT = re.compile(r"(-it|-instruct|-base|-unsloth|-bnb-4bit|-pt|-\d{4})+$")
_FOUR_BIT = "-bnb-4bit"


def published(source: str) -> Shape | None:
    """The shape of a well-known model by its name on the Hub, whoever copied it there; None for others."""
    name = source.rpartition("/")[2].casefold()
    known = PUBLISHED.get(_VARIANT.sub("", name).replace("meta-llama-", "llama-"))
    return replace(known, quantized=name.endswith(_FOUR_BIT)) if known else None
