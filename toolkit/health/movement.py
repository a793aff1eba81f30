"""How far training moved the weights it trains, from the files alone: safetensors read with numpy, no torch. It judges nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.errors import ToolkitError
from toolkit.rundir import ADAPTER_WEIGHTS, is_whole

if TYPE_CHECKING:
    import numpy

    from toolkit.rundir import RunDir

BLOCK_NUMBERS = 2**22
"""Numbers that are looked at together: whole models are larger than what should be held."""
KINDS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a tensor lies in a file: the format is 8 bytes of length, a JSON header, the values."""

    file: Path
    kind: str
    shape: tuple[int, ...]
    start: int

    def blocks(self) -> Iterator[numpy.ndarray[Any, Any]]:
        """Its values in turn, flat, in float32."""
        import numpy as np

        left, kind = math.prod(self.shape), np.dtype(KINDS[self.kind])
        with self.file.open("rb") as handle:
            handle.seek(self.start)
            while left:
                values = np.frombuffer(handle.read(min(left, BLOCK_NUMBERS) * kind.itemsize), dtype=kind)
                if not len(values):
                    raise ToolkitError("the file of weights ends too early", where=str(self.file))
                left -= len(values)
                if self.kind == "BF16":  # the upper half of a float32
                    values = (values.astype(np.uint32) << 16).view(np.float32)
                yield values.astype(np.float32)


def movement(run: RunDir) -> float | None:
    """Norm of the change over the norm of what was there when GRPO began; None where it cannot be told.

    With a warm-up, between its weights and the tuned ones (of an unfinished run: its newest checkpoint). Without one an
    adapter began as `lora_B` = 0, so the change is `lora_B`, and what was there is `lora_A`. A whole model began as its base,
    which the run does not hold; but the steps of its 16-bit numbers are known, and the distance to the nearest ones is the
    change as long as that is smaller than they are, which a change too small to learn from is. Of a base in float32 nothing
    is told so.
    """
    tuned = _tuned(run)
    if tuned is None:
        return None
    if before := _places(run.warmup_adapter):
        return _between(before, _places(tuned))
    return _from_steps(_places(tuned)) if is_whole(tuned) else _from_zero(_places(tuned))


def _tuned(run: RunDir) -> Path | None:
    newest = [*run.checkpoint_folders().values()][-1:]
    return next((folder for folder in (run.adapter, *newest) if _files(folder)), None)


def _files(folder: Path) -> list[Path]:
    """A whole model may lie in several."""
    return sorted(folder.glob("model*.safetensors")) or [file for file in [folder / ADAPTER_WEIGHTS] if file.is_file()]


def _places(folder: Path) -> dict[str, _Place]:
    found = {}
    for file in _files(folder):
        with file.open("rb") as handle:
            size = int.from_bytes(handle.read(8), "little")
            header = json.loads(handle.read(size))
        header.pop("__metadata__", None)
        for name, entry in header.items():
            start = 8 + size + entry["data_offsets"][0]
            found[name] = _Place(file, entry["dtype"], tuple(entry["shape"]), start)
    return found


def _between(before: dict[str, _Place], after: dict[str, _Place]) -> float | None:
    changed = there = 0.0
    for name, place in after.items():
        if name not in before or before[name].shape != place.shape:
            return None
        for old, new in zip(before[name].blocks(), place.blocks(), strict=True):
            changed, there = changed + _square(new - old), there + _square(old)
    return math.sqrt(changed / there) if there else None


def _from_zero(after: dict[str, _Place]) -> float | None:
    squares = {"lora_A": 0.0, "lora_B": 0.0}
    for name, place in after.items():
        for part in squares:
            squares[part] += sum(map(_square, place.blocks())) if part in name else 0.0
    return math.sqrt(squares["lora_B"] / squares["lora_A"]) if squares["lora_A"] else None


def _from_steps(after: dict[str, _Place]) -> float | None:
    """Of the two 16-bit types the one whose numbers the weights are nearer to. None where they are near to neither."""
    there, changed = 0.0, dict.fromkeys(_NEAREST, 0.0)
    for block in (block for place in after.values() for block in place.blocks()):
        there += _square(block)
        for kind, nearest in _NEAREST.items():
            changed[kind] += _square(block - nearest(block))
    least = math.sqrt(min(changed.values()) / there) if there else None
    return least if least is not None and least < SURELY else None


def _nearest_bfloat16(values: numpy.ndarray[Any, Any]) -> numpy.ndarray[Any, Any]:
    """Rounded to even, as torch does."""
    import numpy as np

    bits = values.view(np.uint32)
    return ((bits + (((bits >> 16) & 1) + 0x7FFF).astype(np.uint32)) & np.uint32(0xFFFF0000)).view(np.float32)


def _nearest_float16(values: numpy.ndarray[Any, Any]) -> numpy.ndarray[Any, Any]:
    import numpy as np

    with np.errstate(over="ignore"):
        return values.astype(np.float16).astype(np.float32)


_NEAREST: dict[str, Callable[[Any], Any]] = {"BF16": _nearest_bfloat16, "F16": _nearest_float16}
SURELY = 2.0**-14
"""Share of their size by which weights may be off the steps of 16-bit numbers so that this is their change, and not that they never
lay on them: what never did is off bfloat16's by 1.6e-3 and off float16's by 2e-4 (a step over the root of 12)."""


def _square(values: numpy.ndarray[Any, Any]) -> float:
    """Added up in pairs (numpy), and in float64 from block to block."""
    return float((values**2).sum())
