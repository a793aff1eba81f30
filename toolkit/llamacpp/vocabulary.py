"""The vocabulary of a GGUF file without its weights: how llama.cpp splits a text into tokens. It runs no
model."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from toolkit.errors import ExportError
from toolkit.llamacpp.library import last_log_lines, library


def tokens_of(path: Path, texts: Iterable[str]) -> list[list[int]]:
    """Token ids of each text, special tokens read as such, no BOS added."""
    with _vocabulary(path) as (lib, vocabulary):
        return [tokenize(lib, vocabulary, text, add_special=False) for text in texts]


def adds_bos(path: Path) -> bool:
    """Whether llama.cpp puts BOS before a prompt by itself. Where the header does not say, it knows by kind of tokenizer."""
    with _vocabulary(path) as (lib, vocabulary):
        return bool(lib.llama_vocab_get_add_bos(vocabulary))


@contextmanager
def _vocabulary(path: Path) -> Iterator[tuple[Any, Any]]:
    lib = library()
    parameters = lib.llama_model_default_params()
    parameters.vocab_only = True
    model = lib.llama_model_load_from_file(os.fsencode(path.resolve()), parameters)
    if not model:
        raise ExportError("llama.cpp cannot read the file:\n" + "\n".join(last_log_lines()), where=str(path))
    try:
        yield lib, lib.llama_model_get_vocab(model)
    finally:
        lib.llama_model_free(model)


def tokenize(lib: Any, vocabulary: Any, text: str, *, add_special: bool) -> list[int]:
    """Token ids of one text. `add_special`: with BOS where the file says so."""
    data = text.encode("utf-8")
    room = len(data) + 8
    ids = (lib.llama_token * room)()
    count = lib.llama_tokenize(vocabulary, data, len(data), ids, room, add_special, True)
    if count < 0:
        raise ExportError(f"llama.cpp could not tokenise a text of {len(text)} characters")
    return list(ids[:count])
