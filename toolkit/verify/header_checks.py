"""Checks of what a GGUF file says of itself and of the numbers in it, against the merged folder. They run no model."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from toolkit.llamacpp import CONTROL, GgufFile, bits_of, file_type_number
from toolkit.verify.contents import Contents
from toolkit.verify.limits import LIMITS, ROW_ERRORS, UNDECIDED, WHY
from toolkit.verify.material import Material
from toolkit.verify.record import Check, at_least, at_most, equal, failed, noted, within

WIDE = ("F32", "F16", "BF16")
SETTINGS = {
    "context_length": "max_position_embeddings",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.sliding_window": "sliding_window",
    "rope.freq_base": "rope_theta",
}
"""Fields of the header -> of config.json, whose damage the short texts here need not show: how far back a model can look."""
BLOCK = 32
"""Rows that this does not divide cannot be quantised at all; llama.cpp keeps them in 16 bits."""


def check_header(file: GgufFile, kind: str, material: Material) -> list[Check]:
    """Shape, type, vocabulary, special tokens, template."""
    config = material.text_config
    said = file.field("general.file_type")
    return [
        equal("no empty tensors", file.zero_tensors()[:5], [], "no tensor consists of zeros"),
        equal("layers", file.model_field("block_count"), config.get("num_hidden_layers"), "as in config.json"),
        equal("width", file.model_field("embedding_length"), config.get("hidden_size"), "as in config.json"),
        equal(
            "settings", list(_odd_settings(file, config)), [], "context, heads, rotation and window as in config.json"
        ),
        equal("file type", said, file_type_number(kind), f"the header's number for {kind}"),
        *_check_types(file, kind),
        *_check_vocabulary(file, material),
    ]


def _odd_settings(file: GgufFile, config: dict[str, Any]) -> Iterator[str]:
    """Fields that both sides have as one number for all layers, and that differ."""
    rope = config.get("rope_parameters") or {}
    known = rope.get("full_attention", rope) | config
    for field, key in SETTINGS.items():
        stored, wanted = file.model_field(field), known.get(key)
        if _is_number(stored) and _is_number(wanted) and not math.isclose(stored, wanted, rel_tol=1e-6):
            yield f"{field} {stored:g} instead of {wanted:g}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_types(file: GgufFile, kind: str) -> list[Check]:
    """What the tensors really are, whatever file name and header say."""
    matrices, least = file.matrix_types, LIMITS[kind].least_bits
    narrow = sorted(name for name, real in matrices.items() if bits_of(real) < least)
    could = [real for name, real in matrices.items() if file.tensors[name].shape[-1] % BLOCK == 0]
    wide = sum(real in WIDE for real in could) / max(1, len(could))
    checks = [equal("narrow tensors", narrow[:5], [], f"no matrix of {kind} has fewer than {least:g} bits a weight")]
    if least < 16:
        checks.append(at_most("share left wide", wide, 0.5, "of the matrices that could be quantised"))
    return checks


def _check_vocabulary(file: GgufFile, material: Material) -> list[Check]:
    spoken = material.spoken
    embedding = file.tensors.get("token_embd.weight")
    lost = [text for number, text in spoken.special.items() if _kind_of(file, number) != CONTROL]
    return [
        equal(
            "vocabulary",
            len(file.tokens),
            embedding.shape[0] if embedding else None,
            "one row of the embedding a token",
        ),
        equal("special tokens", lost[:5], [], f"all {len(spoken.special)} are of the type CONTROL"),
        *_check_merges(file, spoken.n_merges),
        equal("template", file.field("tokenizer.chat_template") == spoken.template, True, "byte-identical"),
    ]


def _check_merges(file: GgufFile, expected: int | None) -> list[Check]:
    """Of a byte-level vocabulary; llama.cpp ranks SentencePiece's tokens by scores instead."""
    if expected is None or file.field("tokenizer.ggml.model") != "gpt2":
        return []
    return [equal("merges", file.n_merges, expected, "as in tokenizer.json")]


def _kind_of(file: GgufFile, number: int) -> int | None:
    return file.token_types[number] if number < len(file.token_types) else None


def check_contents(found: Contents, kind: str) -> list[Check]:
    """Every matrix against the merged folder's, and how much of the training is in them."""
    rows = _check_rows(found)
    return [
        equal("tensors", found.missing[:5], [], "every matrix of the merged folder is in the file"),
        at_least("weights compared", found.compared, 0.5, "share of the file's weights that have a counterpart there"),
        rows,
        _check_share(found, kind, whole=rows.passed and not found.missing),
    ]


def _check_rows(found: Contents) -> Check:
    worst = {real: float(f"{error:.3g}") if error < 1e9 else None for real, (error, _) in sorted(found.worst.items())}
    limits = {real: ROW_ERRORS[real] for real in worst}
    beyond = [f"{name} ({real})" for real, (error, name) in found.worst.items() if not error <= ROW_ERRORS[real]]
    why = WHY["rows"] + (f"; the worst: {', '.join(beyond)}" if beyond else "")
    return Check(name="rows", value=worst, limit=limits, passed=bool(worst) and not beyond, why=why)


def _check_share(found: Contents, kind: str, *, whole: bool) -> Check:
    """The quantisation's noise cancels over millions of weights; what training changed does not. `whole`: the file is the merged
    model but for rounding."""
    name, share, (least, _) = "training in the weights", found.share, LIMITS[kind].share
    if share.value != share.value:
        return failed(name, None, "none of the tensors that training changed can be found in the file")
    if share.error > UNDECIDED:
        note = f"not judged (± {share.error:.2g}): what training changed is smaller than this type's noise"
        return noted(name, share.value, note)
    lost = f"; {WHY['steps']}" if whole and share.value < least else ""
    return within(name, share.value, LIMITS[kind].share, WHY["share"] + lost)
