"""Reads what a GGUF file says of itself, and the tensors in it. It runs no model.

The header is parsed here and not by the gguf library, whose reader takes two seconds for a vocabulary and
accepts files that end within a tensor; tensor names are the library's.
"""

from __future__ import annotations

import math
import re
import struct
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.errors import ExportError
from toolkit.llamacpp.dequantize import TYPES, dequantize

if TYPE_CHECKING:
    import numpy

CONTROL = 3
"""llama.cpp's token type for special tokens, which are never printed."""

_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_ITEMS = 100_000_000


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: its shape as torch counts it (rows first), its type's number, and its bytes."""

    shape: tuple[int, ...]
    type: int
    data: numpy.ndarray


def shard_paths(path: Path) -> list[Path]:
    """All files of a model that lies in several (`…-00001-of-00003.gguf`), in order; else the file itself."""
    found = _SHARD.fullmatch(path.name)
    if not found:
        return [path]
    return [path.with_name(f"{found[1]}-{number:05}-of-{found[3]}.gguf") for number in range(1, int(found[3]) + 1)]


class GgufFile:
    """A GGUF file, mapped and not loaded; of one in several shards, all of them, whichever is named. Raises ExportError
    where a file is cut short, missing or no GGUF file."""

    def __init__(self, path: Path) -> None:
        self.path, self.shards = path, shard_paths(path)
        self._fields: dict[str, Any] = {}
        self.tensors: dict[str, TensorInfo] = {}
        for number, shard in enumerate(self.shards):
            try:
                self._parse(shard, number)
            except (OSError, ValueError, KeyError, struct.error, OverflowError, UnicodeDecodeError) as error:
                raise ExportError(f"not a whole GGUF file: {error}", where=str(shard)) from error
        expected = self.field("split.tensors.count")
        if expected is not None and len(self.tensors) != expected:
            raise ExportError(f"its shards hold {len(self.tensors)} of {expected} tensors", where=str(path))

    def _parse(self, path: Path, number: int) -> None:
        import numpy

        data = numpy.memmap(path, dtype=numpy.uint8, mode="r")
        cursor = _Cursor(data)
        magic, version, n_tensors, n_fields = struct.unpack("<4sIQQ", cursor.take(24))
        if magic != b"GGUF" or version not in (2, 3):
            raise ValueError(f"it begins with {magic!r}, version {version}")
        fields = {cursor.text(): cursor.value(cursor.number("I")) for _ in range(n_fields)}
        if number == 0:
            self._fields, self._raw_fields = fields, data[24 : cursor.at]
        if (fields.get("split.no", 0), fields.get("split.count", 1) or 1) != (number, len(self.shards)):
            raise ValueError(f"its header calls it shard {fields.get('split.no', 0)} of {fields.get('split.count', 1)}")
        entries = {}
        for _ in range(n_tensors):
            name, n_axes = cursor.text(), cursor.number("I")
            axes = struct.unpack(f"<{n_axes}Q", cursor.take(8 * n_axes))
            entries[name] = (axes, cursor.number("I"), cursor.number("Q"))
        alignment = int(fields.get("general.alignment", 32))
        start = -(-cursor.at // alignment) * alignment
        for name, (axes, kind, offset) in entries.items():
            if kind not in TYPES:
                raise ValueError(f"{name} is of a type that is not known, number {kind}")
            _, block, block_bytes = TYPES[kind]
            end = start + offset + math.prod(axes) // block * block_bytes
            if end > len(data):
                raise ValueError(f"{name} should end at byte {end}, the file has {len(data)}")
            self.tensors[name] = TensorInfo(tuple(reversed(axes)), kind, data[start + offset : end])

    @property
    def raw_fields(self) -> tuple[bytes, int]:
        """All fields as they are written in the (first) file, and how many."""
        return bytes(self._raw_fields), len(self._fields)

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
        return {name: tensor.shape for name, tensor in self.tensors.items()}

    @property
    def tensor_types(self) -> dict[str, int]:
        """How many tensors have which type: the truth about the quantisation, whatever the file is called."""
        return dict(sorted(Counter(TYPES[tensor.type][0] for tensor in self.tensors.values()).items()))

    @property
    def matrix_types(self) -> dict[str, str]:
        """Name -> type of the tensors with two axes or more: those that a quantisation is about."""
        return {name: TYPES[tensor.type][0] for name, tensor in self.tensors.items() if len(tensor.shape) > 1}

    @property
    def bits_per_weight(self) -> float:
        """Bits that the tensors take, over the numbers in them."""
        bits = sum(8 * len(tensor.data) for tensor in self.tensors.values())
        return bits / sum(math.prod(tensor.shape) for tensor in self.tensors.values())

    def zero_tensors(self) -> list[str]:
        """Names of tensors that hold nothing but zero bytes."""
        return [name for name, tensor in self.tensors.items() if not tensor.data.any()]

    def rows(self, name: str, begin: int = 0, end: int | None = None) -> numpy.ndarray:
        """Rows of a tensor, dequantised to float32: an array of shape (end - begin, length of a row)."""
        tensor = self.tensors[name]
        count = math.prod(tensor.shape[:-1])
        return dequantize(tensor.data.reshape(count, -1)[begin : count if end is None else end], TYPES[tensor.type][0])

    def read(self, names: list[str]) -> dict[str, numpy.ndarray]:
        """Tensors by name, dequantised to float32."""
        return {name: self.rows(name).reshape(self.tensors[name].shape) for name in names}

    def known_names(self, hf_names: Iterable[str], *, layers: int | None = None) -> dict[str, str]:
        """Hugging Face tensor name -> name in a file of this architecture, for those that its table knows. `layers`: how many
        there are, where the header does not say (an adapter's)."""
        from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

        arch = next((key for key, name in MODEL_ARCH_NAMES.items() if name == self.architecture), None)
        if arch is None:
            return {}
        table = get_tensor_name_map(arch, layers or int(self.model_field("block_count") or 0))
        # As the converter does for models that also see pictures.
        plain = {name: name.replace("language_model.", "") for name in hf_names}
        mapped = {name: table.get_name(text, try_suffixes=(".weight", ".bias")) for name, text in plain.items()}
        return {name: there for name, there in mapped.items() if there is not None}

    def names_of(self, hf_names: Iterable[str]) -> dict[str, str]:
        """The same, for those that this file holds."""
        return {name: there for name, there in self.known_names(hf_names).items() if there in self.tensors}

    def rotary_order(self, hf_name: str) -> numpy.ndarray | None:
        """In which order llama files hold the rows of this query or key projection; None for other tensors."""
        name = hf_name.removesuffix(".weight")
        if not name.endswith(("q_proj", "k_proj")):
            return None
        heads = int(self.model_field("attention.head_count" if name.endswith("q_proj") else "attention.head_count_kv"))
        return interleaved(self.tensors[self.names_of([hf_name])[hf_name]].shape[0], heads)


def interleaved(rows: int, heads: int) -> numpy.ndarray:
    """The order of rows in which the two halves of each rotary head alternate, as llama.cpp wants some architectures'."""
    import numpy

    return numpy.arange(rows).reshape(heads, 2, rows // heads // 2).swapaxes(1, 2).ravel()


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
