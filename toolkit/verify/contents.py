"""Compares the numbers in a GGUF file with the merged folder's, tensor by tensor, and with the base's where training
changed them. It runs no model.

So a file proves itself before it says a word: a region that was never written, weights of another run, a training that
is not in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.llamacpp import GgufFile
from toolkit.verify.stats import Strength, WeightStrength, row_errors
from toolkit.verify.weights import opened

if TYPE_CHECKING:
    import numpy

BLOCK_NUMBERS = 4_000_000
"""Numbers that are compared at once: an embedding of a quarter of a million tokens would not fit in memory."""


@dataclass(frozen=True, slots=True)
class Folders:
    """Where the checkpoints lie, and which tensors differ between them."""

    base: Path
    merged: Path
    changed: frozenset[str]


@dataclass(slots=True)
class Contents:
    """What a file's matrices hold."""

    missing: list[str]
    """Matrices of the merged folder that the file should have and has not, by their name in the file."""
    compared: float
    """Share of the file's matrix numbers that could be compared."""
    share: Strength
    """Of what training changed."""
    worst: dict[str, tuple[float, str]] = field(default_factory=dict)
    """Tensor type -> largest error of a row, and the tensor that it is in."""


def compare(file: GgufFile, folders: Folders) -> Contents:
    """Read the file once, and the matrices of the folders beside it."""
    strength = WeightStrength()
    shapes = {name: shape for name, shape in file.tensor_shapes.items() if len(shape) > 1}
    with opened(folders.merged) as merged, opened(folders.base) as base:
        names = file.names_of(merged)
        found = Contents(_missing(file, merged), 0.0, strength.result)
        interleaved = _interleaved(file, names, merged)
        done = 0
        for hf, there in names.items():
            if there not in shapes:
                continue
            order = file.rotary_order(hf) if interleaved else None
            before = base[hf].get_tensor(hf) if hf in folders.changed and hf in base else None
            _compare_tensor(found, strength, file, there, merged[hf].get_tensor(hf), before, order)
            done += math.prod(shapes[there])
    found.share = strength.result
    found.compared = done / max(1, sum(map(math.prod, shapes.values())))
    return found


def _missing(file: GgufFile, merged: dict[str, Any]) -> list[str]:
    """A head that is tied to the embedding need not be there."""
    return sorted(set(file.known_names(merged).values()) - set(file.tensor_shapes) - {"output.weight"})


def _interleaved(file: GgufFile, names: dict[str, str], merged: dict[str, Any]) -> bool:
    """Whether this file holds the rows of rotary heads interleaved: the converter does so for some architectures."""
    import numpy

    hf = next((name for name in names if name.endswith("q_proj.weight")), None)
    if hf is None:
        return False
    stored, wanted = file.rows(names[hf]), merged[hf].get_tensor(hf).float().numpy()
    plain, turned = (numpy.linalg.norm(stored - rows) for rows in (wanted, wanted[file.rotary_order(hf)]))
    return bool(turned < plain)


def _compare_tensor(
    found: Contents,
    strength: WeightStrength,
    file: GgufFile,
    name: str,
    tuned: Any,
    base: Any | None,
    order: numpy.ndarray | None,
) -> None:
    kind = file.matrix_types[name]
    for begin, end in _blocks(file.tensor_shapes[name]):
        rows = slice(begin, end) if order is None else order[begin:end]
        stored, wanted = file.rows(name, begin, end), _numbers(tuned, rows)
        error = float(row_errors(stored, wanted).max())
        found.worst[kind] = max(found.worst.get(kind, (0.0, name)), (error, name))
        if base is not None:
            strength.add(_numbers(base, rows), wanted, stored)


def _numbers(tensor: Any, rows: Any) -> numpy.ndarray:
    return tensor.reshape(-1, tensor.shape[-1])[rows].float().numpy()


def _blocks(shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    count = math.prod(shape[:-1])
    step = max(1, BLOCK_NUMBERS // shape[-1])
    return ((begin, min(begin + step, count)) for begin in range(0, count, step))
