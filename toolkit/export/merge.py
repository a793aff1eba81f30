"""Merges a LoRA adapter into a 16-bit checkpoint, tensor by tensor from disk to disk. It knows no model
class.

Arithmetic is fp32 with one rounding to the base's type; every tensor that the adapter does not name is copied
byte for byte. Only one tensor is in memory at a time, whatever the size of the model.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from toolkit.errors import ExportError
from toolkit.export.adapter import Adapter, LoraChange, read_adapter
from toolkit.export.checkpoint import Checkpoint, Place, Shard, open_checkpoint

if TYPE_CHECKING:
    import torch

COPY_BYTES = 16 * 2**20

RENAMES = (("", ""), ("model.language_model.", "language_model.model."), ("model.language_model.", "model."))
"""Beginnings of module paths in memory -> in the checkpoint. transformers renames the text part of models
that also see pictures; one rule must fit all keys of an adapter."""

Change = Callable[["torch.Tensor"], "torch.Tensor"]


@dataclass(frozen=True, slots=True)
class Merged:
    """What was written: the tensors that the adapter changed, and the type of the weights."""

    changed: tuple[str, ...]
    dtype: str
    size_bytes: int


def merge(base: Path, adapter: Path, out: Path) -> Merged:
    """Write the merged shards (and index) into the folder `out`, under the base's file names."""
    checkpoint = open_checkpoint(base)
    changes = match(read_adapter(adapter), checkpoint)
    for shard in checkpoint.shards:
        _write_shard(shard, out / shard.path.name, changes)
    if checkpoint.index:
        shutil.copyfile(checkpoint.index, out / checkpoint.index.name)
    first = checkpoint.tensors[min(changes)]
    return Merged(tuple(sorted(changes)), DTYPES[first.dtype], checkpoint.size_bytes)


DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


def match(adapter: Adapter, checkpoint: Checkpoint) -> dict[str, Change]:
    """Tensor name in the checkpoint -> its change. Exact and one to one, or an error with examples of both
    sides."""
    places = checkpoint.tensors
    wanted: dict[str, Change] = {f"{path}.weight": _lora(change) for path, change in adapter.changes.items()}
    wanted |= {name: _replacement(tensor) for name, tensor in adapter.replaced.items()}
    shapes = {f"{path}.weight": change.shape for path, change in adapter.changes.items()}
    shapes |= {name: tuple(tensor.shape) for name, tensor in adapter.replaced.items()}
    for old, new in RENAMES:
        renamed = {name: new + name.removeprefix(old) for name in wanted if name.startswith(old)}
        if len(renamed) == len(wanted) and all(name in places for name in renamed.values()):
            break
    else:
        _raise_unmatched(sorted(wanted), places)
    for name, there in renamed.items():
        if shapes[name] != places[there].shape:
            raise ExportError(f"{name} is {shapes[name]} in the adapter, {places[there].shape} in the base")
        if places[there].dtype not in DTYPES:
            raise ExportError(
                f"{there} is stored as {places[there].dtype}: an adapter is merged into 16-bit weights only",
                where=str(checkpoint.folder),
            )
    return {renamed[name]: change for name, change in wanted.items()}


def _raise_unmatched(wanted: list[str], places: dict[str, Place]) -> None:
    missing = [name for name in wanted if name not in places]
    tied = " (this base ties its head to the embedding)" if missing == ["lm_head.weight"] else ""
    raise ExportError(
        f"{len(missing)} of the adapter's {len(wanted)} tensors are not in the base{tied}.\n"
        f"adapter: {', '.join(missing[:3])}\nbase:    {', '.join(sorted(places)[:3])}"
    )


def _lora(change: LoraChange) -> Change:
    def apply(weight: torch.Tensor) -> torch.Tensor:
        weight += (change.up.float() @ change.down.float()) * change.scale
        if change.magnitude is not None:
            weight *= (change.magnitude.float().flatten() / weight.norm(dim=1))[:, None]
        return weight

    return apply


def _replacement(tensor: torch.Tensor) -> Change:
    return lambda _weight: tensor.float()


def _write_shard(shard: Shard, out: Path, changes: dict[str, Change]) -> None:
    with open(shard.path, "rb") as source, open(out, "wb") as target:
        _copy(source, target, shard.header_bytes)
        for name, place in shard.tensors.items():
            if name in changes:
                target.write(_changed(source.read(place.end - place.begin), place, name, changes[name]))
            else:
                _copy(source, target, place.end - place.begin)
        target.flush()
        os.fsync(target.fileno())


def _copy(source: BinaryIO, target: BinaryIO, count: int) -> None:
    while count:
        block = source.read(min(count, COPY_BYTES))
        if not block:
            raise ExportError("the base model ends too early; it changed while being read")
        target.write(block)
        count -= len(block)


def _changed(data: bytes, place: Place, name: str, change: Change) -> bytes:
    import torch

    dtype = getattr(torch, DTYPES[place.dtype])
    weight = torch.frombuffer(bytearray(data), dtype=dtype).reshape(place.shape).to(torch.float32, copy=True)
    with torch.inference_mode():
        merged = change(weight).to(dtype).contiguous()
    if not torch.isfinite(merged).all():
        raise ExportError(f"{name} holds infinite or undefined numbers after merging")
    return merged.view(torch.uint8).numpy().tobytes()
