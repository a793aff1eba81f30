"""Safetensors files on the disk: a model's shards, the place of every tensor in them, and some rows of one. It changes nothing.

The format is a length, a JSON header and the bytes of the tensors, so that a merged copy can keep the header
and the bytes of every tensor that it does not change exactly as they are.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from toolkit.errors import ExportError

if TYPE_CHECKING:
    import torch

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000
"""The limit of the safetensors library."""

DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
"""Types of plain weights, by their name in a header -> in torch."""

SIZES = {"BF16": 2, "F16": 2, "F32": 4}
"""Bytes of one of their numbers."""

BLOCK_WEIGHTS = 2**20
"""How many weights are worked on at a time: 4 MB in fp32, whatever the size of the tensor."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor lies: `begin` and `end` count from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def n_rows(self) -> int:
        return self.shape[0] if self.shape else 1

    @property
    def row_bytes(self) -> int:
        return (self.end - self.begin) // max(1, self.n_rows)

    def blocks(self) -> Iterator[tuple[int, int]]:
        """First and last row (exclusive) of each block."""
        step = max(1, BLOCK_WEIGHTS // max(1, math.prod(self.shape[1:])))
        for first in range(0, self.n_rows, step):
            yield first, min(first + step, self.n_rows)

    def written_as(self, dtype: str | None) -> Place:
        """What its numbers take in another of the DTYPES (None: their own); numbers that are no plain weights stay as they are."""
        if dtype is None or self.dtype not in DTYPES:
            return self
        return replace(self, dtype=dtype, end=self.begin + math.prod(self.shape) * SIZES[dtype])


@dataclass(frozen=True, slots=True)
class Shard:
    """One safetensors file; `tensors` in the order in which they lie in it, `metadata` as its header has it."""

    path: Path
    header_bytes: int
    tensors: dict[str, Place]
    metadata: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All shards of a model, and the index file that names them, where there is one."""

    folder: Path
    shards: tuple[Shard, ...]
    index: Path | None

    @property
    def tensors(self) -> dict[str, Place]:
        return {name: place for shard in self.shards for name, place in shard.tensors.items()}

    def shard_of(self, name: str) -> Shard:
        return next(shard for shard in self.shards if name in shard.tensors)

    @property
    def size_bytes(self) -> int:
        return sum(shard.path.stat().st_size for shard in self.shards)


def open_checkpoint(folder: Path) -> Checkpoint:
    """The checkpoint of a model folder; other safetensors files that lie there are not looked at."""
    index = folder / INDEX
    if not index.is_file():
        if not (folder / SINGLE).is_file():
            raise ExportError(f"the base model has neither {SINGLE} nor {INDEX}", where=str(folder))
        return Checkpoint(folder, (read_shard(folder / SINGLE),), None)
    weight_map: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    shards = tuple(read_shard(folder / name) for name in sorted(set(weight_map.values())))
    held = {name: shard.path.name for shard in shards for name in shard.tensors}
    if held != weight_map:
        wrong = sorted(name for name in held.keys() | weight_map.keys() if held.get(name) != weight_map.get(name))
        raise ExportError(f"{INDEX} and the shards differ in {len(wrong)} tensors, e.g. {wrong[0]}", where=str(folder))
    return Checkpoint(folder, shards, index)


def read_shard(path: Path) -> Shard:
    """The header of one file, checked against its size."""
    if not path.is_file():
        raise ExportError("a shard of the base model is missing", where=str(path))
    size = path.stat().st_size
    with open(path, "rb") as handle:
        length = int.from_bytes(handle.read(8), "little")
        if not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
            raise ExportError("not a safetensors file, or cut short", where=str(path))
        try:
            header: dict[str, Any] = json.loads(handle.read(length))
        except ValueError as error:
            raise ExportError(f"not a safetensors file: {error}", where=str(path)) from error
    metadata = header.pop("__metadata__", None)
    start = 8 + length
    places = {
        name: Place(entry["dtype"], tuple(entry["shape"]), *(start + offset for offset in entry["data_offsets"]))
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"])
    }
    end = start
    for place in places.values():
        if place.begin != end:
            raise ExportError("tensors overlap or leave holes", where=str(path))
        end = place.end
    if end != size:
        raise ExportError(f"the file has {size} bytes, its header speaks of {end}", where=str(path))
    return Shard(path, start, places, metadata)


def header_of(tensors: dict[str, Place], metadata: dict[str, str] | None) -> bytes:
    """The header of a file with these tensors in turn; their places count for nothing but type, shape and size."""
    at, entries = 0, {}
    for name, place in tensors.items():
        size = place.end - place.begin
        entries[name] = {"dtype": place.dtype, "shape": list(place.shape), "data_offsets": [at, at + size]}
        at += size
    content = ({"__metadata__": metadata} if metadata else {}) | entries
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % 8)  # the tensors begin at a multiple of 8, as the library writes them
    return len(text).to_bytes(8, "little") + text


def read_rows(handle: BinaryIO, place: Place, first: int = 0, last: int | None = None) -> torch.Tensor:
    """Some rows of a tensor, or all of it, in its own type and in memory of its own."""
    import torch

    last = place.n_rows if last is None else last
    data = torch.empty((last - first) * place.row_bytes, dtype=torch.uint8)
    handle.seek(place.begin + first * place.row_bytes)
    if handle.readinto(data.numpy().data) != data.numel():  # type: ignore[attr-defined]
        raise ExportError("a file of weights ends too early; it changed while being read")
    return data.view(getattr(torch, DTYPES[place.dtype])).reshape(last - first, *place.shape[1:])
