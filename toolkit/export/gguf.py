"""Turns the merged folder into GGUF files: one conversion at the weights' own precision, then one pass per
type."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from pathlib import Path

from toolkit.errors import ExportError
from toolkit.export.checkpoint import Checkpoint
from toolkit.llamacpp import bits_per_weight, convert, quantize

SOURCE_TYPES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}
"""All quants come from the type of the merged weights, so that none of them depends on which others are
made."""

SCRATCH = ".gguf-"
"""How the folder for unfinished files begins; one that a killed export left is taken away by the next."""

VOCABULARY_BYTES = 50_000_000
"""Room for tokens, merges and alignment in one file; the largest vocabularies in use need half of it."""


def gguf_name(name: str, kind: str) -> str:
    """`<run>-<type>.gguf`."""
    return f"{name}-{kind}.gguf"


def write_ggufs(merged: Path, out: Path, *, name: str, kinds: list[str], dtype: str) -> list[str]:
    """Write one file per type into `out`; returns what the converter warned of. Files appear complete or
    not at all."""
    source_type = SOURCE_TYPES[dtype]
    with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=out) as scratch:
        source = Path(scratch) / gguf_name("source", source_type)
        conversion = convert(merged, source, outtype=source_type, name=name)
        for kind in kinds:
            if kind != source_type:
                quantize(source, out / gguf_name(name, kind), kind=kind, threads=os.cpu_count() or 1)
        if source_type in kinds:
            os.replace(source, out / gguf_name(name, source_type))
    return list(conversion.warnings)


def check_space(folder: Path, checkpoint: Checkpoint, kinds: list[str], *, freed_bytes: int) -> None:
    """Refuse before the first byte is written what the disk cannot hold."""
    n_weights = sum(math.prod(place.shape) for place in checkpoint.tensors.values())
    source = ["f32" if any(place.dtype == "F32" for place in checkpoint.tensors.values()) else "f16"] if kinds else []
    files = sum(int(n_weights * bits_per_weight(kind) / 8) + VOCABULARY_BYTES for kind in [*kinds, *source])
    need = checkpoint.size_bytes + files
    free = shutil.disk_usage(folder).free + freed_bytes
    if free < need:
        raise ExportError(
            f"the export needs {need / 1e9:.1f} GB, {free / 1e9:.1f} GB are free",
            where=str(folder),
            hint="name fewer types in export.gguf, or free some space",
        )
