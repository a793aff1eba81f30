"""Checks one GGUF file of an export from its bytes to its answers. What each check compares stands in the `…_checks`."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolkit.atomic import sha256_of
from toolkit.errors import ExportError
from toolkit.llamacpp import (
    FILE_TYPES,
    SPEED_TOKENS,
    GgufFile,
    LlamaModel,
    open_model,
    shard_paths,
    try_file,
)
from toolkit.verify.contents import Folders, compare
from toolkit.verify.gguf_checks import check_answers, check_predictions, check_tokens
from toolkit.verify.header_checks import check_contents, check_header
from toolkit.verify.lora_checks import check_lora
from toolkit.verify.material import Material
from toolkit.verify.merged_checks import check_bytes
from toolkit.verify.record import Check, FileResult, failed

SIDE_BY_SIDE = 16
"""Answers that llama.cpp writes together."""

THREADS = max(1, (os.cpu_count() or 1) // 2)
"""Twice as many, beside another busy program, are slower."""


@dataclass(frozen=True, slots=True)
class Shipped:
    """A GGUF file of the export (of one in shards the first), its type, and the SHA-256 of its files as at the export."""

    path: Path
    type: str
    expected: dict[str, str]
    folder: str = ""
    """Its folder in the export, as `adapter/`."""


@dataclass(slots=True)
class _Seen:
    """What was found out before the file ended, or the checks did."""

    checks: list[Check] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)


def shipped_files(export: Path, manifest: dict[str, Any]) -> list[Shipped]:
    """Files of the manifest, and any other GGUF file that lies there, with their types."""
    listed = [Shipped(export / entry["file"], entry["type"], _expected(entry)) for entry in manifest["files"]]
    known = {name for shipped in listed for name in [shipped.path.name, *shipped.expected]}
    for path in sorted(export.glob("*.gguf")):
        if path.name not in known:
            fitting = [kind for kind in FILE_TYPES if path.stem.endswith(kind)]
            listed.append(Shipped(path, max(fitting, key=len, default="f16"), {}))
    return listed


def _expected(entry: dict[str, Any]) -> dict[str, str]:
    return {part["file"]: part["sha256"] for part in entry.get("parts") or [entry]}


def check_file(shipped: Shipped, material: Material, folders: Folders) -> FileResult:
    """All that can be said of one model file. A file that cannot be opened or run gets a verdict, not an exception."""
    seen, started = _Seen(), time.monotonic()
    try:
        hashes = _hashes(shipped, seen)
        _check_contents(shipped, material, folders, seen)
    except ExportError as error:
        hashes = _hashes_of(shipped.path)
        seen.checks.append(failed("opens", None, _without_paths(error, shipped.path)))
    return _result(shipped, hashes, seen, started)


def check_adapter_file(shipped: Shipped, material: Material, folders: Folders, beside: Shipped | None) -> FileResult:
    """The same for the adapter alone, put on `beside`."""
    seen, started = _Seen(), time.monotonic()
    try:
        hashes = _hashes(shipped, seen)
        widest = (beside.path, beside.type) if beside else None
        seen.checks += check_lora(shipped.path, folders, material, widest)
    except ExportError as error:
        hashes = _hashes_of(shipped.path)
        seen.checks.append(failed("opens", None, _without_paths(error, shipped.path)))
    return _result(shipped, hashes, seen, started)


def _hashes(shipped: Shipped, seen: _Seen) -> dict[str, str]:
    if not shipped.path.is_file():
        raise ExportError("the file is missing", where=str(shipped.path))
    hashes = _hashes_of(shipped.path)
    seen.checks.append(check_bytes("unchanged since export", hashes, shipped.expected))
    return hashes


def _hashes_of(path: Path) -> dict[str, str]:
    return {part.name: sha256_of(part) for part in shard_paths(path) if part.is_file()}


def _without_paths(error: ExportError, path: Path) -> str:
    """llama.cpp's own words name the file with its folder; a certificate names no folder of this machine."""
    message = error.message
    for folder in {str(path.parent), str(path.parent.resolve())}:
        message = message.replace(f"{folder}/", "")
    return message


def _result(shipped: Shipped, hashes: dict[str, str], seen: _Seen, started: float) -> FileResult:
    parts = [part for part in shard_paths(shipped.path) if part.is_file()]
    result = FileResult(
        file=shipped.folder + shipped.path.name,
        type=shipped.type,
        sha256=hashes.get(shipped.path.name),
        hashes={shipped.folder + name: digest for name, digest in hashes.items()},
        size_bytes=sum(part.stat().st_size for part in parts),
        passed=bool(seen.checks) and all(check.passed for check in seen.checks),
        checks=seen.checks,
        seconds=round(time.monotonic() - started, 1),
        **seen.numbers,
    )
    return result.model_copy(update={"perplexity": result.value("perplexity")})


def _check_contents(shipped: Shipped, material: Material, folders: Folders, seen: _Seen) -> None:
    file, kind = GgufFile(shipped.path), shipped.type
    seen.numbers |= {"tensor_types": file.tensor_types, "bits_per_weight": round(file.bits_per_weight, 3)}
    seen.checks += check_header(file, kind, material)
    try_file(shipped.path, [chat.text for chat in material.spoken.chats])
    seen.checks += check_contents(compare(file, folders), kind)
    count = min(SIDE_BY_SIDE, len(material.asked.prompts))
    with open_model(shipped.path, context=_room(material), sequences=count, threads=THREADS) as model:
        seen.checks += check_tokens(model, material)
        seen.checks += check_predictions(model, kind, material)
        answers, seen.numbers["task"] = check_answers(model, material)
        seen.checks += answers
        seen.numbers |= _cost(model, material)


def _room(material: Material) -> int:
    longest = max(len(text.ids) for text in material.texts)
    asked = max(map(len, material.asked.prompts)) + material.asked.max_new
    return max(longest, asked, SPEED_TOKENS) + 8


def _cost(model: LlamaModel, material: Material) -> dict[str, Any]:
    """Speed, and memory for one chat of the recipe's longest length."""
    ids = material.texts[0].ids
    speed, per_token = model.speed(ids), model.cache_bytes_per_token(ids)
    return {
        "tokens_per_second": {"prefill": round(speed.prefill, 1), "decode": round(speed.decode, 1)},
        "memory_bytes": model.weight_bytes + round(per_token * material.recipe.model.max_seq_length),
    }
