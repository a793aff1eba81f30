"""How far training moved an adapter, from the files alone: safetensors read with numpy, no torch. It judges nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy

    from toolkit.rundir import RunDir

WEIGHTS = "adapter_model.safetensors"


def movement(run: RunDir) -> float | None:
    """Norm of the change over the norm of what was there when GRPO began; None where one of the two is missing.

    With a warm-up, between its adapter and the tuned one (of an unfinished run: its newest checkpoint). Without one the
    adapter began as `lora_B` = 0, so the change is `lora_B`, and what was there is `lora_A`.
    """
    tuned = _tuned(run)
    if tuned is None:
        return None
    before = run.warmup_adapter / WEIGHTS
    return _between(before, tuned) if before.is_file() else _from_zero(tuned)


def _tuned(run: RunDir) -> Path | None:
    checkpoints = [path for path in run.checkpoints.glob("checkpoint-*") if (path / WEIGHTS).is_file()]
    newest = sorted(checkpoints, key=lambda path: int(path.name.rpartition("-")[2]))[-1:]
    found = [folder / WEIGHTS for folder in (run.adapter, *newest)]
    return next((file for file in found if file.is_file()), None)


def _between(before: Path, after: Path) -> float | None:
    old = dict(_tensors(before))
    changed = there = 0.0
    for name, new in _tensors(after):
        if name not in old or old[name].shape != new.shape:
            return None
        changed += float(((new - old[name]) ** 2).sum())
        there += float((old[name] ** 2).sum())
    return math.sqrt(changed / there) if there else None


def _from_zero(after: Path) -> float | None:
    squares = {"lora_A": 0.0, "lora_B": 0.0}
    for name, tensor in _tensors(after):
        for part in squares:
            squares[part] += float((tensor**2).sum()) if part in name else 0.0
    return math.sqrt(squares["lora_B"] / squares["lora_A"]) if squares["lora_A"] else None


def _tensors(file: Path) -> Iterator[tuple[str, numpy.ndarray[Any, Any]]]:
    """Name and values in float32 of each tensor. The format: 8 bytes of length, a JSON header, the values."""
    import numpy as np

    kinds = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
    with file.open("rb") as handle:
        size = int.from_bytes(handle.read(8), "little")
        header = json.loads(handle.read(size))
        header.pop("__metadata__", None)
        for name, entry in header.items():
            start, end = entry["data_offsets"]
            handle.seek(8 + size + start)
            values = np.frombuffer(handle.read(end - start), dtype=kinds[entry["dtype"]])
            if entry["dtype"] == "BF16":  # the upper half of a float32
                values = (values.astype(np.uint32) << 16).view(np.float32)
            yield name, values.astype(np.float32).reshape(entry["shape"])
