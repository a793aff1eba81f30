"""Reads what a GGUF file says of itself, and the tensors in it. It runs no model.

The header is parsed here and not by the gguf library, whose reader takes two seconds for a vocabulary and
accepts files that end within a tensor; block sizes, dequantisation and tensor names are the library's.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.errors import ExportError

if TYPE_CHECKING:
    import numpy

CONTROL = 3
"""llama.cpp's token type for special tokens, which are never printed."""

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_ITEMS = 100_000_000


@dataclass(frozen=True, slots=True)
class _Tensor:
    shape: tuple[int, ...]
    type: int
    begin: int
    end: int


class GgufFile:
    """A GGUF file, mapped and not loaded. Raises ExportError where the file is cut short or no GGUF file."""

    def __init__(self, path: Path) -> None:
        import numpy

        self.path = path
        try:
            self._bytes = numpy.memmap(path, dtype=numpy.uint8, mode="r")
            self._parse()
        except (OSError, ValueError, KeyError, struct.error, OverflowError, UnicodeDecodeError) as error:
            raise ExportError(f"not a whole GGUF file: {error}", where=str(path)) from error

    def _parse(self) -> None:
        from gguf import GGML_QUANT_SIZES

        cursor = _Cursor(self._bytes)
        magic, version, n_tensors, n_fields = struct.unpack("<4sIQQ", cursor.take(24))
        if magic != b"GGUF" or version not in (2, 3):
            raise ValueError(f"it begins with {magic!r}, version {version}")
        self._fields = {cursor.text(): cursor.value(cursor.number("I")) for _ in range(n_fields)}
        entries = {}
        for _ in range(n_tensors):
            name, n_axes = cursor.text(), cursor.number("I")
            axes = struct.unpack(f"<{n_axes}Q", cursor.take(8 * n_axes))
            entries[name] = (axes, cursor.number("I"), cursor.number("Q"))
        alignment = int(self._fields.get("general.alignment", 32))
        start = -(-cursor.at // alignment) * alignment
        self._tensors: dict[str, _Tensor] = {}
        for name, (axes, kind, offset) in entries.items():
            block, block_bytes = GGML_QUANT_SIZES[_type_of(kind)]
            end = start + offset + math.prod(axes) // block * block_bytes
            if end > len(self._bytes):
                raise ValueError(f"{name} should end at byte {end}, the file has {len(self._bytes)}")
            self._tensors[name] = _Tensor(tuple(reversed(axes)), kind, start + offset, end)

    def field(self, name: str) -> Any:
        """A field of the header; None where there is none."""
        return self._fields.get(name)

    def model_field(self, name: str) -> Any:
        """A field of the model's own architecture, like `block_count`."""
        return self.field(f"{self.architecture}.{name}")

    @property
    def architecture(self) -> str:
        return str(self.field("general.architecture"))

    @cached_property
    def tokens(self) -> list[str]:
        return list(self.field("tokenizer.ggml.tokens") or [])

    @property
    def token_types(self) -> list[int]:
        return list(self.field("tokenizer.ggml.token_type") or [])

    @property
    def n_merges(self) -> int:
        return len(self.field("tokenizer.ggml.merges") or [])

    @property
    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Tensor name -> shape as torch counts it (rows first)."""
        return {name: tensor.shape for name, tensor in self._tensors.items()}

    @property
    def tensor_types(self) -> dict[str, int]:
        """How many tensors have which type: the truth about the quantisation, whatever the file is called."""
        return dict(sorted(Counter(_type_of(tensor.type).name for tensor in self._tensors.values()).items()))

    def zero_tensors(self) -> list[str]:
        """Names of tensors that hold nothing but zero bytes."""
        return [name for name, tensor in self._tensors.items() if not self._bytes[tensor.begin : tensor.end].any()]

    def read(self, names: list[str]) -> dict[str, numpy.ndarray]:
        """Tensors by name, dequantised to float32."""
        import numpy
        from gguf.quants import dequantize, quant_shape_to_byte_shape

        found = {}
        for name in names:
            tensor = self._tensors[name]
            raw = self._bytes[tensor.begin : tensor.end]
            kind = _type_of(tensor.type)
            if kind.name in ("F32", "F16"):
                raw = raw.view(numpy.float32 if kind.name == "F32" else numpy.float16).reshape(tensor.shape)
            else:
                raw = raw.reshape(quant_shape_to_byte_shape(tensor.shape, kind))
            found[name] = numpy.asarray(dequantize(raw, kind), dtype=numpy.float32).reshape(tensor.shape)
        return found

    def names_of(self, hf_names: list[str]) -> dict[str, str]:
        """Hugging Face tensor name -> name in this file, for those that the architecture's table knows."""
        from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

        arch = next((key for key, name in MODEL_ARCH_NAMES.items() if name == self.architecture), None)
        if arch is None:
            return {}
        table = get_tensor_name_map(arch, int(self.model_field("block_count") or 0))
        mapped = {name: table.get_name(name, try_suffixes=(".weight", ".bias")) for name in hf_names}
        return {name: there for name, there in mapped.items() if there in self._tensors}

    def as_stored(self, hf_name: str, weight: numpy.ndarray) -> numpy.ndarray:
        """The Hugging Face tensor in this file's order of rows: llama files interleave the halves of
        rotary heads."""
        name = hf_name.removesuffix(".weight")
        if self.architecture != "llama" or not name.endswith(("q_proj", "k_proj")):
            return weight
        heads = int(self.model_field("attention.head_count" if name.endswith("q_proj") else "attention.head_count_kv"))
        halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
        return halves.swapaxes(1, 2).reshape(weight.shape)


def _type_of(number: int) -> Any:
    from gguf import GGMLQuantizationType

    return GGMLQuantizationType(number)


class _Cursor:
    """Reads on from where it stands; the end of the file is an error."""

    def __init__(self, data: numpy.ndarray) -> None:
        self._data = data.data
        self.at = 0

    def take(self, count: int) -> memoryview:
        if not 0 <= count <= len(self._data) - self.at:
            raise ValueError(f"it ends within its header, at byte {len(self._data)}")
        self.at += count
        return self._data[self.at - count : self.at]

    def number(self, code: str) -> Any:
        return struct.unpack(f"<{code}", self.take(struct.calcsize(code)))[0]

    def text(self) -> str:
        return bytes(self.take(self.number("Q"))).decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY:
            return self.number(_SCALARS[kind])
        item, count = self.number("I"), self.number("Q")
        if count > _MAX_ITEMS:
            raise ValueError(f"a list of {count} items in the header")
        if item in _SCALARS:
            return list(struct.unpack(f"<{count}{_SCALARS[item]}", self.take(count * struct.calcsize(_SCALARS[item]))))
        return self._texts(count) if item == _STRING else [self.value(item) for _ in range(count)]

    def _texts(self, count: int) -> list[str]:
        """`text` many times, in one loop: vocabularies have a quarter of a million entries."""
        length_at, data, at, found = struct.Struct("<Q").unpack_from, self._data, self.at, []
        for _ in range(count):
            start = at + 8
            at = start + length_at(data, at)[0]
            if at > len(data):
                raise ValueError(f"it ends within its header, at byte {len(data)}")
            found.append(str(data[start:at], "utf-8"))
        self.at = at
        return found
