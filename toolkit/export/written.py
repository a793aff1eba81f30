"""Looks at every GGUF file right after it was written: nothing of the merged folder may be lost or changed in it.

It reads the header and counts; whether the file answers as the model does is shown by `toolkit verify`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from toolkit.errors import ExportError
from toolkit.export.checkpoint import open_checkpoint
from toolkit.export.folder import TOKENIZER, read_json, special_ids, token_text
from toolkit.export.match import LAYOUTS
from toolkit.llamacpp import CONTROL, GgufFile

NO_WEIGHT = re.compile(r"rotary_emb\.inv_freq$|\.experts\.")
"""Constants that some old checkpoints store, and experts, of which a GGUF file holds all in one tensor."""


def check_conversion(path: Path, merged: Path) -> None:
    """ExportError with everything that differs between the converted file and the folder that it was made from."""
    file, settings = GgufFile(path), read_json(merged / "tokenizer_config.json")
    if faults := [*_tensors(file, merged), *_tokens(file, merged, settings), *_special(file, merged, settings)]:
        raise ExportError("the converted file is not the merged model:\n" + "\n".join(faults), where=path.name)


def check_quant(path: Path, source: GgufFile) -> None:
    """A quantised file holds the same fields and tensors as the conversion that it came from."""
    file = GgufFile(path)
    if {name: tensor.shape for name, tensor in file.tensors.items()} != source.tensor_shapes:
        raise ExportError(f"{len(file.tensors)} tensors instead of {len(source.tensors)}", where=path.name)
    for name in ("general.architecture", "tokenizer.chat_template", "tokenizer.ggml.eos_token_id"):
        if file.field(name) != source.field(name):
            raise ExportError(f"{name} is lost", where=path.name)
    if file.tokens != source.tokens or file.token_types != source.token_types:
        raise ExportError("tokens are lost", where=path.name)


def _tensors(file: GgufFile, merged: Path) -> Iterator[str]:
    """Every weight of the language part is there, and nothing is zero that was not."""
    names = [name for name in map(_text_name, open_checkpoint(merged).tensors) if name and not NO_WEIGHT.search(name)]
    lost = sorted(set(names) - file.names_of(names).keys())
    if lost:
        yield f"{len(lost)} of {len(names)} tensors are not in it, e.g. {', '.join(lost[:3])}"


def _text_name(name: str) -> str | None:
    """The name as plain language models have it; None for what belongs to pictures or sound."""
    for body, head in LAYOUTS:
        if name.startswith(body) and not name.startswith(f"{body}language_model."):
            inside = name.removeprefix(body)
            return f"model.{inside}" if inside.startswith(("layers.", "embed_tokens.", "norm.")) else None
        if name.startswith(head):
            return f"lm_head.{name.removeprefix(head)}"
    return None


def _tokens(file: GgufFile, merged: Path, settings: dict[str, Any]) -> Iterator[str]:
    rows = file.tensor_shapes.get("token_embd.weight", (0,))[0]
    if len(file.tokens) != rows or len(file.token_types) != rows:
        yield f"{len(file.tokens)} tokens, {len(file.token_types)} token types, {rows} rows in the embedding"
    model = read_json(merged / TOKENIZER, {}).get("model", {})
    merges = len(model.get("merges") or [])
    if model.get("type") == "BPE" and file.field("tokenizer.ggml.model") == "gpt2" and file.n_merges != merges:
        yield f"{file.n_merges} merges instead of {merges}"
    if file.field("tokenizer.chat_template") != settings.get("chat_template"):
        yield "another chat template"


def _special(file: GgufFile, merged: Path, settings: dict[str, Any]) -> Iterator[str]:
    decoder = settings.get("added_tokens_decoder", {})
    special = {entry["content"]: int(number) for number, entry in decoder.items() if entry.get("special")}
    wrong = [text for text, number in special.items() if _kind(file, number) != CONTROL]
    if wrong:
        yield f"{len(wrong)} special tokens are not of the type CONTROL, e.g. {', '.join(wrong[:3])}"
    ids = special_ids(merged)
    for role in ("bos", "eos"):
        wanted = ids.get(token_text(settings.get(f"{role}_token")))
        found = file.field(f"tokenizer.ggml.{role}_token_id")
        if wanted is not None and found != wanted:
            yield f"the {role} token is {found} instead of {wanted}"


def _kind(file: GgufFile, number: int) -> int | None:
    return file.token_types[number] if number < len(file.token_types) else None
