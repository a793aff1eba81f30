"""Writes a SentencePiece `tokenizer.model` from a tokenizer.json, for converters that read nothing else.

transformers 5 saves no tokenizer.model, and a base that comes from a GGUF file has none. llama.cpp's converter makes
Gemma files from it. A BPE vocabulary with byte fallback is a SentencePiece one: its merges, in order, are its scores.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_SPACE = "\u2581"
_BPE = 2
"""SentencePiece's number of the model type."""
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE_PIECE = 1, 2, 3, 4, 6
_NEVER = -1e6
"""Score of a piece that no merge makes: a single character, or one that stands for itself."""


def is_needed(config: dict[str, Any], tokenizer: dict[str, Any]) -> bool:
    """Whether this is a Gemma with such a vocabulary: other converters take the tokenizer.json."""
    architectures = config.get("architectures") or [""]
    model = tokenizer.get("model", {})
    spelled = model.get("type") == "BPE" and "<0x00>" in model.get("vocab", {})
    return architectures[0].startswith("Gemma") and spelled


def write_tokenizer_model(tokenizer: dict[str, Any], out: Path) -> None:
    """Pieces in the order of their ids, typed as llama.cpp's converter wants them."""
    from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]  # made at import

    model, added = tokenizer["model"], {token["content"]: token for token in tokenizer.get("added_tokens", [])}
    ids: dict[str, int] = model["vocab"] | {text: token["id"] for text, token in added.items()}
    scores = merge_scores(model.get("merges") or [])
    proto = ModelProto()
    proto.trainer_spec.model_type = _BPE
    proto.trainer_spec.byte_fallback = True
    proto.trainer_spec.unk_id = ids[model["unk_token"]]
    proto.normalizer_spec.name = "identity"
    proto.normalizer_spec.add_dummy_prefix = False
    proto.normalizer_spec.remove_extra_whitespaces = False
    proto.normalizer_spec.escape_whitespaces = True
    for text, _ in sorted(ids.items(), key=lambda item: item[1]):
        kind = _kind(text, model["unk_token"], added.get(text))
        score = scores.get(text, _NEVER) if kind == _NORMAL else 0.0
        proto.pieces.add(piece=text.replace(" ", _SPACE), score=score, type=kind)
    out.write_bytes(proto.SerializeToString(deterministic=True))


def merge_scores(merges: list[Any]) -> dict[str, float]:
    """Piece -> score: minus the place of the first merge that makes it. Merges are pairs, or texts with a space."""
    pieces = ["".join(merge.split(" ", 1) if isinstance(merge, str) else merge) for merge in merges]
    order: dict[str, float] = {}
    for piece in pieces:
        order.setdefault(piece, -float(len(order)))
    return order


def _kind(text: str, unknown: str, added: dict[str, Any] | None) -> int:
    if text == unknown:
        return _UNKNOWN
    if _BYTE.fullmatch(text):
        return _BYTE_PIECE
    if added is None:
        return _NORMAL
    return _CONTROL if added.get("special") else _USER_DEFINED
