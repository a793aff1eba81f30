"""How much of the disk an export needs, before its first byte is written."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from pathlib import Path

from toolkit.errors import ExportError
from toolkit.estimate.disk import export_types, gguf_bytes
from toolkit.export.checkpoint import Checkpoint

EMBEDDINGS = ("embed_tokens.weight", "lm_head.weight")


def check_space(
    folder: Path,
    checkpoint: Checkpoint,
    kinds: Sequence[str],
    *,
    adapter_bytes: int,
    split_bytes: int | None,
    freed_bytes: int,
    wide: bool = False,
) -> None:
    """Refuse what the disk cannot hold. `split_bytes`: files above it are split, and lie there twice meanwhile;
    `freed_bytes`: what an earlier export in this folder will give back; `wide`: merged weights are float32."""
    need = needed_bytes(checkpoint, kinds, adapter_bytes=adapter_bytes, split_bytes=split_bytes, wide=wide)
    free = shutil.disk_usage(folder).free + freed_bytes
    if free < need:
        raise ExportError(
            f"the export needs {need / 1e9:.1f} GB, {free / 1e9:.1f} GB are free",
            where=str(folder),
            hint="name fewer types in export.gguf, or free some space",
        )


def needed_bytes(
    checkpoint: Checkpoint,
    kinds: Sequence[str],
    *,
    adapter_bytes: int = 0,
    split_bytes: int | None = None,
    wide: bool = False,
) -> int:
    """Upper estimate of all files of an export, and of those that are there only while it is made."""
    counts = {name: math.prod(place.shape) for name, place in checkpoint.tensors.items()}
    embeddings = sum(count for name, count in counts.items() if name.endswith(EMBEDDINGS))
    matrices = sum(counts.values()) - embeddings

    odd = any(place.shape[1] % 256 for place in checkpoint.tensors.values() if len(place.shape) > 1)
    wide = wide or any(place.dtype == "F32" for place in checkpoint.tensors.values())
    source = "f32" if wide else "f16"
    files = [
        gguf_bytes(kind, matrices=matrices, embeddings=embeddings, odd_rows=odd) for kind in export_types(kinds, source)
    ]
    twice = max((size for size in files if split_bytes is not None and size > split_bytes), default=0)
    # Beside the merged shards: a head that is no longer tied, and the adapter as PEFT and as llama.cpp have it.
    merged = max(checkpoint.size_bytes, 4 * sum(counts.values())) if wide else checkpoint.size_bytes
    return merged + embeddings * 4 + sum(files) + twice + 4 * adapter_bytes
