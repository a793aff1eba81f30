"""What goes wrong with GGUF files, done to a right one on purpose. Each function changes the file in place."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tiny import edit_gguf
from toolkit.llamacpp import GgufFile

Damage = Callable[[Path], object]
TEMPLATE = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"


def cut(path: Path, share: float) -> None:
    """Ends too early: an interrupted download."""
    os.truncate(path, int(path.stat().st_size * share))


def zero_from(path: Path, share: float) -> None:
    """As an interrupted copy leaves a file: the right size, the rest never written."""
    size = path.stat().st_size
    _write_zeros(path, int(size * share), size - int(size * share))


def zero_hole(path: Path) -> None:
    """One page of the disk, somewhere in the embedding of seldom tokens, was never written."""
    tensor = GgufFile(path).tensors["token_embd.weight"].data
    landmark = tensor[len(tensor) * 9 // 10 :][:256].tobytes()
    _write_zeros(path, path.read_bytes().index(landmark), 4096)


def _write_zeros(path: Path, at: int, count: int) -> None:
    with open(path, "rb+") as handle:
        handle.seek(at)
        handle.write(bytes(count))


def double_bos(path: Path) -> None:
    """The template writes the begin token, and then what began with it already."""
    template = GgufFile(path).field("tokenizer.chat_template")
    edit_gguf(path, tokenizer__chat_template="{{ bos_token }}" + template)


def lose_stop(path: Path, stop: str, left: str) -> None:
    """The token that ends an answer has another text; `left` is the only stop then."""
    tokens = GgufFile(path).tokens
    number = tokens.index(stop)
    changed = [*tokens[:number], "<|a_word|>", *tokens[number + 1 :]]
    edit_gguf(path, tokenizer__ggml__tokens=changed, tokenizer__ggml__eos_token_id=tokens.index(left))


def stop_at_line_breaks(path: Path) -> None:
    edit_gguf(path, tokenizer__ggml__eos_token_id=GgufFile(path).tokens.index("Ċ"))


def plain_special_tokens(path: Path) -> None:
    """Special tokens are of the type NORMAL: their text is printed, and texts that look like them are not."""
    edit_gguf(path, tokenizer__ggml__token_type=[1] * len(GgufFile(path).tokens))


def drop_merges(path: Path) -> None:
    merges = GgufFile(path).field("tokenizer.ggml.merges")
    edit_gguf(path, tokenizer__ggml__merges=merges[: len(merges) // 10])


def swap_tokens(path: Path) -> None:
    """Two words of the vocabulary have changed places: as many tokens, all of the right type."""
    tokens = GgufFile(path).tokens
    one, other = tokens.index("Ġthe"), tokens.index("Ġof")
    tokens[one], tokens[other] = tokens[other], tokens[one]
    edit_gguf(path, tokenizer__ggml__tokens=tokens)
