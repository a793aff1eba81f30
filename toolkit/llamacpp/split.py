"""Splits a large GGUF file into shards as llama.cpp's gguf-split does: named so that it finds them from the first.

The bytes of the tensors stay as they are. All header fields stand in the first shard.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from toolkit.atomic import replacing
from toolkit.errors import ExportError
from toolkit.llamacpp.header import GgufFile, TensorInfo

ALIGNMENT = 32
COPY_BYTES = 16 * 2**20
_U16, _I32 = 2, 5
"""GGUF's numbers of the types uint16 and int32."""

Named = list[tuple[str, TensorInfo]]


def split(path: Path, *, max_bytes: int) -> list[Path]:
    """Shards of at most `max_bytes` beside the file, which is removed; or the file itself, where it is not larger.

    ExportError where one tensor alone is larger.
    """
    if path.stat().st_size <= max_bytes:
        return [path]
    file = GgufFile(path)
    if file.field("general.alignment") not in (None, ALIGNMENT):
        raise ExportError(f"a file aligned to {file.field('general.alignment')} bytes cannot be split", where=str(path))
    parts = _parts(file, len(file.raw_fields[0]), max_bytes)
    shards = [path.with_name(f"{path.stem}-{n:05}-of-{len(parts):05}.gguf") for n in range(1, len(parts) + 1)]
    for number, (shard, tensors) in enumerate(zip(shards, parts, strict=True)):
        own = file.raw_fields if number == 0 else (b"", 0)
        with replacing(shard) as scratch, open(scratch, "wb") as out:
            out.write(_header(tensors, own, (number, len(parts), len(file.tensors))))
            for _, tensor in tensors:
                for begin in range(0, len(tensor.data), COPY_BYTES):
                    out.write(tensor.data[begin : begin + COPY_BYTES].data)
                out.write(bytes(-len(tensor.data) % ALIGNMENT))
    path.unlink()
    return shards


def _parts(file: GgufFile, fields_bytes: int, max_bytes: int) -> list[Named]:
    """The tensors in their order, as many to a shard as fit with its header."""
    parts: list[Named] = [[]]
    size = _header_bytes(fields_bytes)
    for name, tensor in file.tensors.items():
        need = _padded(len(tensor.data)) + _info_bytes(name, tensor)
        if parts[-1] and size + need > max_bytes:
            parts.append([])
            size = _header_bytes(0)
        size += need
        if size > max_bytes:
            what = f"{name} alone needs {size / 1e6:.0f} MB, more than export.max_shard_size"
            raise ExportError(what, where=str(file.path), hint="a larger max_shard_size")
        parts[-1].append((name, tensor))
    return parts


def _header_bytes(fields_bytes: int) -> int:
    """Without the entries of tensors; with room for the padding behind them."""
    return 24 + fields_bytes + len(_split_fields(0, 0, 0)) + ALIGNMENT


def _info_bytes(name: str, tensor: TensorInfo) -> int:
    return 8 + len(name.encode("utf-8")) + 4 + 8 * len(tensor.shape) + 4 + 8


def _padded(count: int) -> int:
    return -(-count // ALIGNMENT) * ALIGNMENT


def _header(tensors: Named, own: tuple[bytes, int], place: tuple[int, int, int]) -> bytes:
    """`own`: fields as bytes, and how many; `place`: number of this shard, of all shards, of all tensors."""
    fields, n_fields = own
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), n_fields + 3) + fields + _split_fields(*place)
    head += b"".join(_infos(tensors))
    return head + bytes(-len(head) % ALIGNMENT)


def _infos(tensors: Named) -> Iterator[bytes]:
    offset = 0
    for name, tensor in tensors:
        axes = tuple(reversed(tensor.shape))
        yield _text(name) + struct.pack(f"<I{len(axes)}QIQ", len(axes), *axes, tensor.type, offset)
        offset += _padded(len(tensor.data))


def _split_fields(number: int, count: int, n_tensors: int) -> bytes:
    return (
        _text("split.no") + struct.pack("<IH", _U16, number)
        + _text("split.count") + struct.pack("<IH", _U16, count)
        + _text("split.tensors.count") + struct.pack("<Ii", _I32, n_tensors)
    )  # fmt: skip


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode("utf-8"))) + text.encode("utf-8")
