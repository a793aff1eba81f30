"""Holds every merged weight to PEFT's own merge in fp32. It runs no model.

Predictions show that an adapter is there; a wrong scale in one module of many shows in its weights only.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.engine.peft_reference import merges
from toolkit.verify.weights import opened

if TYPE_CHECKING:
    import torch

BODIES = ("model.language_model.", "language_model.model.", "model.")
HEADS = ("language_model.lm_head.", "lm_head.")
"""What tensors of text models begin with, in memory or in a checkpoint; the longest first."""
FP32_SLACK = 2**-20
"""Of the summands: where base and change cancel, two orders of adding in fp32 differ by so much."""


def unlike_peft(model: Any, merged: Path) -> tuple[list[str], int]:
    """Tensors of the merged folder that are not PEFT's, to one unit in their type's last place; and how many were compared.

    `model` is the base in fp32 with the adapter put on it.
    """
    return _unlike(merges(model), merged)


def unlike_whole(trained: Path, merged: Path) -> tuple[list[str], int]:
    """The same after full fine-tuning, for which `trained` holds all weights: nothing is added, they are rounded once."""
    with opened(trained) as held:
        wanted = ((name, handle.get_tensor(name).float()) for name, handle in held.items())
        return _unlike(((name, tensor, tensor) for name, tensor in wanted), merged)


def _unlike(wanted: Iterator[tuple[str, torch.Tensor, torch.Tensor]], merged: Path) -> tuple[list[str], int]:
    odd, count = [], 0
    with opened(merged) as stored:
        for name, before, wanted_here in wanted:
            there = next((known for known in _spellings(name) if known in stored), None)
            count += 1
            if there is None or not _near(stored[there].get_tensor(there), before, wanted_here):
                odd.append(there or name)
    return odd, count


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
