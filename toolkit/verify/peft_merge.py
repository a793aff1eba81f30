"""Holds every merged weight to PEFT's own merge in fp32, or to the weights that full fine-tuning left. It runs no model.

Predictions show that an adapter is there; a wrong scale in one module of many shows in its weights only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.engine.peft_reference import merges
from toolkit.verify.stats import WeightStrength
from toolkit.verify.weights import opened

if TYPE_CHECKING:
    import torch

BODIES = ("model.language_model.", "language_model.model.", "model.")
HEADS = ("language_model.lm_head.", "lm_head.")
"""What tensors of text models begin with, in memory or in a checkpoint; the longest first."""
BLOCK_NUMBERS = 2**22
"""Numbers that are compared at once."""
FP32_SLACK = 2**-20
"""Of the summands: where base and change cancel, two orders of adding in fp32 differ by so much."""


@dataclass(frozen=True, slots=True)
class Merge:
    """The merged weights beside what they are merged of, in fp32."""

    unlike: list[str]
    """Tensors that are something else, to one unit in their type's last place."""
    count: int
    """How many were compared."""
    share: float
    """Of the way from the base's weights to the trained ones, least squares over all of these tensors: what rounding left."""


def merge_of_peft(model: Any, merged: Path) -> Merge:
    """The merged folder beside PEFT's merge. `model` is the base in fp32 with the adapter put on it."""
    return _compared(merges(model), merged)


def merge_of_whole(base: Path, trained: Path, merged: Path) -> Merge:
    """The same after full fine-tuning, for which `trained` holds all weights: nothing is added, they are rounded once."""
    with opened(trained) as held, opened(base) as before:
        named = ((name, _found(name, before), handle.get_tensor(name).float()) for name, handle in held.items())
        return _compared(((name, after if was is None else was.float(), after) for name, was, after in named), merged)


def _compared(wanted: Iterator[tuple[str, torch.Tensor, torch.Tensor]], merged: Path) -> Merge:
    """`wanted`: name, the base's tensor, the trained one."""
    odd, count, share = [], 0, WeightStrength()
    with opened(merged) as stored:
        for name, before, after in wanted:
            got, count = _found(name, stored), count + 1
            if got is None or not _near(got, before, after):
                odd.append(name)
            if got is not None and got.shape == after.shape == before.shape:
                for parts in zip(
                    *(tensor.flatten().split(BLOCK_NUMBERS) for tensor in (before, after, got)), strict=True
                ):
                    share.add(*(part.float().numpy() for part in parts))
    return Merge(odd, count, share.result.value)


def _found(name: str, stored: dict[str, Any]) -> torch.Tensor | None:
    there = next((known for known in _spellings(name) if known in stored), None)
    return stored[there].get_tensor(there) if there else None


def _spellings(name: str) -> Iterator[str]:
    """The name as in memory, and as checkpoints spell it."""
    yield name
    for group in (BODIES, HEADS):
        for begin in group:
            if name.startswith(begin):
                yield from (other + name.removeprefix(begin) for other in group)
                return


def _near(got: torch.Tensor, before: torch.Tensor, wanted: torch.Tensor) -> bool:
    import torch

    if got.shape != wanted.shape:
        return False
    precision = torch.finfo(got.dtype)
    _, exponent = torch.frexp(wanted.abs().clamp_min(precision.tiny))
    last_place = precision.eps * torch.exp2((exponent - 1).float())
    slack = FP32_SLACK * (before.abs() + (wanted - before).abs())
    return bool(((got.float() - wanted).abs() <= last_place + slack).all())
