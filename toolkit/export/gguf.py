"""Turns the merged folder into GGUF files: one conversion at the weights' own precision, then one pass per type."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolkit.export.written import check_conversion, check_quant
from toolkit.llamacpp import FILE_TYPES, GgufFile, Importance, convert, quantize, save, split

SOURCE_TYPES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}
"""All quants come from the type of the merged weights, so that none of them depends on which others are
made."""

SCRATCH = ".gguf-"
"""How the folder for unfinished files begins; one that a killed export left is taken away by the next."""

IMATRIX = "imatrix/imatrix.gguf"
"""In a folder of its own: it is a GGUF file, but no model."""

PLAIN = ("f32", "f16", "bf16")
"""Types that an importance matrix does not change."""


@dataclass(frozen=True, slots=True)
class Ggufs:
    """What was written: the files of each type (several where it was split), what the converter warned of, and the
    importance matrix, if one was used."""

    files: dict[str, list[Path]]
    warnings: list[str]
    importance: Importance | None


def gguf_name(name: str, kind: str) -> str:
    """`<run>-<type>.gguf`."""
    return f"{name}-{kind}.gguf"


def write_ggufs(
    merged: Path,
    out: Path,
    *,
    name: str,
    kinds: Sequence[str],
    dtype: str,
    max_bytes: int | None = None,
    importance_of: Callable[[Path], Importance] | None = None,
) -> Ggufs:
    """Write one file per type into `out`. Files appear complete or not at all.

    `max_bytes`: larger files are split. `importance_of`: computes an importance matrix from the conversion.
    """
    source_type, files = SOURCE_TYPES[dtype], {}
    with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=out) as scratch:
        source = Path(scratch) / gguf_name("source", source_type)
        conversion = convert(merged, source, outtype=source_type, name=name)
        check_conversion(source, merged)
        weighed = importance_of is not None and any(kind not in PLAIN for kind in kinds)
        importance = importance_of(source) if importance_of and weighed else None
        if importance:
            (out / IMATRIX).parent.mkdir(exist_ok=True)
            save(importance, out / IMATRIX)
        for kind in sorted(kinds, key=lambda kind: kind == source_type):  # the conversion itself last: it is moved
            file = Path(scratch) / gguf_name(name, kind)
            _write(source, file, kind, importance)
            if kind != source_type:
                check_quant(file, GgufFile(source))
            files[kind] = _publish(file, out, max_bytes)
    return Ggufs({kind: files[kind] for kind in kinds}, list(conversion.warnings), importance)


def _write(source: Path, file: Path, kind: str, importance: Importance | None) -> None:
    if source.name == gguf_name("source", kind):
        os.replace(source, file)
        return
    weigh = None if kind in PLAIN else importance
    quantize(source, file, kind=kind, threads=os.cpu_count() or 1, importance=weigh)


def _publish(file: Path, out: Path, max_bytes: int | None) -> list[Path]:
    parts = [file] if max_bytes is None else split(file, max_bytes=max_bytes)
    for part in parts:
        os.replace(part, out / part.name)
    return [out / part.name for part in parts]


def without_imatrix(kinds: Sequence[str]) -> list[str]:
    """Those of the types that llama.cpp only writes with an importance matrix."""
    return [kind for kind in kinds if FILE_TYPES[kind].needs_imatrix]
