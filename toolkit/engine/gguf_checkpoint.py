"""Turns a GGUF file into a normal 16-bit checkpoint whose tokens are llama.cpp's. It trains and exports nothing.

transformers reads the weights. The tokenizer it rebuilds has traps that would only show much later: the end token may be the
wrong one, and the pre-tokenizer (how text is split before the merges) is not taken from the file. Both are set from the
file's own metadata here, and the result is compared with llama.cpp's tokenizer before the checkpoint gets its name.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from toolkit import console
from toolkit.atomic import replacing, sha256_of
from toolkit.errors import EngineError
from toolkit.llamacpp import GgufFile
from toolkit.llamacpp.vocabulary import tokens_of
from toolkit.rundir import cache_folder

LAYOUT = 2
"""Raised when this module writes something else for the same file, so that old conversions are not taken."""

# What llama.cpp calls a pre-tokenizer (`tokenizer.ggml.pre`) -> its splitting rule; None splits every digit off.
_LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPLITS: dict[str, str | None] = {
    "smollm": None,
    "llama-bpe": _LLAMA3,
    "qwen2": _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}"),
}
_SPECIAL = {
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "pad": "padding_token_id",
    "unk": "unknown_token_id",
}

PROBES = (
    "What is 12 + 345?",
    "  two  spaces,\ttab\n\nnewlines\r\n",
    "1234567890 3.14 1,248",
    "naïve Ünïcode — 漢字 🙂 e\u0301",
    "don't I'LL we've",
    "<|im_start|>user\nhi<|im_end|>\n<reasoning>\n1 + 1 = 2\n</reasoning>",
    "",
    " ",
    "def f(x):\n    return x**2  # square\n",
)
"""Texts on which tokenizers of one vocabulary differ: digits, white space, Unicode, contractions, special tokens."""


def converted(file: Path) -> Path:
    """The checkpoint folder of this GGUF file: made once, found by the hash of the file's bytes."""
    folder = cache_folder() / "checkpoints" / f"{file.stem}-{sha256_of(file)[:16]}-v{LAYOUT}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _one_process(folder):
            if not folder.is_dir():
                console.note(f"turning {console.untrusted(file.name)} into a checkpoint (once)")
                with replacing(folder) as temporary:
                    _convert(file, temporary)
    return folder


@contextmanager
def _one_process(folder: Path) -> Iterator[None]:
    """A second run that starts meanwhile waits, instead of replacing a checkpoint that the first has open."""
    with folder.with_name(f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _convert(file: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig

    tokenizer = _tokenizer(file)
    _compare(tokenizer, file)
    model = AutoModelForCausalLM.from_pretrained(
        file.parent,
        gguf_file=file.name,
        quantization_config=GgufConfig(dequantize=True),  # else the weights stay packed
        dtype=torch.bfloat16,
    )
    _forget_gguf(model, file)
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.generation_config.eos_token_id = model.config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _forget_gguf(model: Any, file: Path) -> None:
    """Dequantised weights are normal weights, which `save_pretrained` only believes without these marks."""
    for name in ("quantization_config", "_pre_quantization_dtype"):
        if hasattr(model.config, name):
            delattr(model.config, name)
    model.hf_quantizer = None
    model.is_quantized = False
    model.config._name_or_path = file.stem


def _tokenizer(file: Path) -> Any:
    from transformers import AutoTokenizer

    header = GgufFile(file)  # first: it says so where this is no whole GGUF file
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    for role, key in _SPECIAL.items():
        if (token_id := header.field(f"tokenizer.ggml.{key}")) is not None:
            setattr(tokenizer, f"{role}_token", tokenizer.convert_ids_to_tokens(int(token_id)))
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    pre = header.field("tokenizer.ggml.pre")
    if hasattr(tokenizer._tokenizer.model, "byte_fallback") and "<0x00>" not in tokenizer.get_vocab():
        tokenizer._tokenizer.model.byte_fallback = False  # else a converter takes it for a SentencePiece vocabulary
        tokenizer._tokenizer.model.fuse_unk = False
    if pre in _SPLITS:
        tokenizer._tokenizer.pre_tokenizer = _pre_tokenizer(_SPLITS[pre])
    tokenizer.chat_template = header.field("tokenizer.chat_template") or tokenizer.chat_template
    tokenizer.model_max_length = int(header.model_field("context_length"))
    tokenizer.clean_up_tokenization_spaces = False
    return tokenizer


def _pre_tokenizer(pattern: str | None) -> Any:
    from tokenizers import Regex, pre_tokenizers

    if pattern is None:
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _compare(tokenizer: Any, file: Path) -> None:
    """EngineError where one text becomes other tokens than in llama.cpp: training on them would teach another model."""
    for text, theirs in zip(PROBES, tokens_of(file, PROBES), strict=True):
        ours = tokenizer.encode(text, add_special_tokens=False)
        if ours != theirs:
            detail = f"{text!r} becomes {ours[:12]} instead of {theirs[:12]}"
            hint = "give model.source the original checkpoint (a folder or a Hub name)"
            raise EngineError(f"the tokenizer in this file cannot be rebuilt: {detail}", where=str(file), hint=hint)
