"""Merges a LoRA adapter into a 16-bit checkpoint, rows by rows from disk to disk. It knows no model class.

Arithmetic is fp32 with one rounding to the base's type (or none, where float32 is asked for); every tensor that the adapter
does not name is copied byte for byte. Only some rows of one tensor are in memory at a time, whatever the size of the model.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from toolkit.errors import ExportError
from toolkit.export.adapter import Change, read_adapter
from toolkit.export.checkpoint import (
    DTYPES,
    Checkpoint,
    Place,
    Shard,
    header_of,
    open_checkpoint,
    read_rows,
)
from toolkit.export.match import Plan, match

if TYPE_CHECKING:
    import torch

COPY_BYTES = 16 * 2**20

Rows = Callable[["torch.Tensor", int, int], "torch.Tensor"]
"""Rows `first` to `last` of a tensor in fp32 -> what they become."""


@dataclass(frozen=True, slots=True)
class Merged:
    """What was written: the tensors that the adapter changed or added, and the type of the weights."""

    changed: tuple[str, ...]
    dtype: str
    size_bytes: int
    unties: bool
    """Whether the output head is a tensor of its own now."""


def merge(base: Path, adapter: Path, out: Path, *, wide: bool = False) -> Merged:
    """Write the merged shards (and index) into the folder `out`, under the base's file names.

    `wide`: all weights in float32, so that nothing is rounded away; else each in the base's own type.
    """
    dtype = "F32" if wide else None
    checkpoint = open_checkpoint(base)
    tuned = read_adapter(adapter)
    plan = match(tuned, checkpoint)
    with open(tuned.file, "rb") as factors, _one_thread():
        for name, copy in plan.copies.items():
            _compare(checkpoint, name, factors, copy)
        for shard in checkpoint.shards:
            _write_shard(shard, out / shard.path.name, plan, factors, dtype)
    if checkpoint.index:
        _write_index(checkpoint, out, plan, dtype)
    size = sum((out / shard.path.name).stat().st_size for shard in checkpoint.shards)
    first = checkpoint.tensors[min([*plan.changes, *(origin for origin, _ in plan.added.values())])]
    return Merged(plan.changed, DTYPES[dtype or first.dtype], size, plan.unties)


@contextmanager
def _one_thread() -> Iterator[None]:
    """The products are small: several threads of OpenMP would wait for each other longer than they calculate, most of all
    beside the thread that writes. And results do not depend on how many there are."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _compare(checkpoint: Checkpoint, name: str, factors: BinaryIO, copy: Place) -> None:
    """ExportError where the adapter was trained beside other weights than the base's."""
    import torch

    with open(checkpoint.shard_of(name).path, "rb") as source:
        for first, last in copy.blocks():
            stored = read_rows(source, checkpoint.tensors[name], first, last)
            if not torch.equal(stored, read_rows(factors, copy, first, last).to(stored.dtype)):
                raise ExportError(f"the adapter holds a copy of {name} that differs from the base", where=factors.name)


def _write_shard(shard: Shard, out: Path, plan: Plan, factors: BinaryIO, dtype: str | None) -> None:
    """A piece is made while the one before it is being written."""
    with open(shard.path, "rb") as source, open(out, "wb") as target, ThreadPoolExecutor(1) as writer:
        before: Future[int] | None = None
        for piece in _pieces(shard, plan, source, factors, dtype):
            if before:
                before.result()
            before = writer.submit(target.write, piece)
        if before:
            before.result()
        target.flush()
        os.fsync(target.fileno())


def _pieces(
    shard: Shard, plan: Plan, source: BinaryIO, factors: BinaryIO, dtype: str | None
) -> Iterator[bytes | memoryview]:
    """The merged file from its first byte to its last."""
    added = {name: origin for name, (origin, _) in plan.added.items() if origin in shard.tensors}
    origins = {name: shard.tensors[added.get(name, name)] for name in [*shard.tensors, *added]}
    written = {name: place.written_as(dtype) for name, place in origins.items()}
    if written == shard.tensors:
        yield from _copied(source, 0, shard.header_bytes)
    else:
        yield header_of(written, shard.metadata)
    for name, place in origins.items():
        change = plan.added[name][1] if name in added else plan.changes.get(name)
        yield from _tensor(name, source, place, change, factors, written[name].dtype)


def _tensor(
    name: str, source: BinaryIO, place: Place, change: Change | None, factors: BinaryIO, dtype: str
) -> Iterator[bytes | memoryview]:
    import torch

    if change is None and dtype == place.dtype:
        yield from _copied(source, place.begin, place.end - place.begin)
        return
    rows, kind = _rows(change, factors), getattr(torch, DTYPES[dtype])
    for first, last in place.blocks():
        with torch.inference_mode():
            stored = read_rows(source, place, first, last)
            merged = rows(stored.to(torch.float32, copy=True), first, last).to(kind).contiguous()
            # A sum is finite only of finite numbers, and ten times faster than to ask each of them.
            if not merged.sum(dtype=torch.float32).isfinite() and not merged.isfinite().all():
                raise ExportError(f"{name} holds infinite or undefined numbers after merging")
        yield merged.view(torch.uint8).numpy().data


def _rows(change: Change | None, factors: BinaryIO) -> Rows:
    """The change as arithmetic on some rows. PEFT's formulas: peft/tuners/lora/layer.py and dora.py."""
    if change is None:
        return lambda weight, first, last: weight
    if isinstance(change, Place):
        return lambda _, first, last: read_rows(factors, change, first, last).float()
    up, down = read_rows(factors, change.up).float(), read_rows(factors, change.down).float()
    if change.embedding:
        up, down = down.T, up.T
    if change.magnitude is None:
        return lambda weight, first, last: weight.addmm_(up[first:last], down, alpha=change.scale)
    magnitude = read_rows(factors, change.magnitude).float().flatten()

    def scaled(weight: torch.Tensor, first: int, last: int) -> torch.Tensor:
        weight.addmm_(up[first:last], down, alpha=change.scale)
        return weight.mul_((magnitude[first:last] / weight.norm(dim=1))[:, None])

    return scaled


def _copied(source: BinaryIO, begin: int, count: int) -> Iterator[bytes]:
    source.seek(begin)
    while count:
        piece = source.read(min(count, COPY_BYTES))
        if not piece:
            raise ExportError("the base model ends too early; it changed while being read")
        yield piece
        count -= len(piece)


def _write_index(checkpoint: Checkpoint, out: Path, plan: Plan, dtype: str | None) -> None:
    """The base's index with what was added, and the true size of all tensors, which not every base's index has."""
    assert checkpoint.index is not None
    text = checkpoint.index.read_text(encoding="utf-8")
    content = json.loads(text)
    places = checkpoint.tensors
    homes = {name: checkpoint.shard_of(origin).path.name for name, (origin, _) in plan.added.items()}
    all_places = [*places.values(), *(places[origin] for origin, _ in plan.added.values())]
    size = sum(place.end - place.begin for place in (place.written_as(dtype) for place in all_places))
    metadata = content.get("metadata") or {}
    if homes or metadata.get("total_size") != size:
        content["weight_map"] = dict(sorted((content["weight_map"] | homes).items()))
        content["metadata"] = metadata | {"total_size": size}
        text = json.dumps(content, indent=2) + "\n"
    (out / checkpoint.index.name).write_text(text, encoding="utf-8")
