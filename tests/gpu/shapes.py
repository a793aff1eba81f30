"""Models of real shapes with random weights and SmolLM2's tokenizer, for machines that real weights cannot reach."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tiny import EMBEDDING_SCALE, write_base, write_tokenizer

VOCABULARY = {"vocab_size": 49152, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 64, "rope_theta": 500000.0,
    },
    "gemma": {
        "hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 26, "num_attention_heads": 4,
        "num_key_value_heads": 1, "head_dim": 256, "sliding_window": 512, "query_pre_attn_scalar": 256,
    },
}  # fmt: skip
"""Llama 3.2 1B and Gemma 3 1B as their config.json has them, but for the vocabulary."""
_SMALL = {
    "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 64,
    "num_key_value_heads": 2,
}  # fmt: skip
CPU_SHAPE: dict[str, dict[str, Any]] = {
    "llama": _SMALL,
    "gemma": _SMALL | {"sliding_window": 64, "query_pre_attn_scalar": 64},
}


def write_shape(folder: Path, family: str, shape: dict[str, Any]) -> Path:
    """A 16-bit checkpoint folder with a tokenizer."""
    if family == "llama":
        write_base(folder, **shape)
    else:
        _write_gemma(folder, shape)
    write_tokenizer(folder)
    return folder


def _write_gemma(folder: Path, shape: dict[str, Any]) -> None:
    import torch
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    torch.manual_seed(7)
    sizes: dict[str, Any] = VOCABULARY | shape
    config = Gemma3TextConfig(**sizes, max_position_embeddings=1024, initializer_range=0.01)
    model: Any = Gemma3ForCausalLM(config)
    model.get_input_embeddings().weight.data *= EMBEDDING_SCALE
    model.to(torch.bfloat16).save_pretrained(folder)
