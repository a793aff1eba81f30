"""A safetensors checkpoint on the disk: its shards, the place of every tensor in them. It loads no weights.

The format is a length, a JSON header and the bytes of the tensors, so that a merged copy can keep the header
and the bytes of every tensor that it does not change exactly as they are.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.errors import ExportError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000
"""The limit of the safetensors library."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor lies: `begin` and `end` count from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Shard:
    """One safetensors file; `tensors` in the order in which they lie in it."""

    path: Path
    header_bytes: int
    tensors: dict[str, Place]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All shards of a model, and the index file that names them, where there is one."""

    folder: Path
    shards: tuple[Shard, ...]
    index: Path | None

    @property
    def tensors(self) -> dict[str, Place]:
        return {name: place for shard in self.shards for name, place in shard.tensors.items()}

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
        header: dict[str, Any] = json.loads(handle.read(length))
    header.pop("__metadata__", None)
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
    return Shard(path, start, places)
