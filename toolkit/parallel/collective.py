"""What the processes of one training tell each other, through torch's process group. Alone, every question answers itself."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from toolkit.errors import EngineError
from toolkit.parallel.environment import place

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

PATIENCE = timedelta(hours=12)
"""The first process evaluates and saves while the others wait. One that has died is noticed at once, by its connection."""


def start() -> None:
    """Join the group that the environment describes; nothing where this process is alone, or has joined already."""
    import torch

    here = place()
    if here.world == 1 or torch.distributed.is_initialized():
        return
    os.environ.update(here.variables())  # Slurm's names are unknown to what is built on torch
    cuda = torch.cuda.is_available() and os.environ.get("UNSLOTH_FORCE_CPU") != "1"
    if cuda:
        torch.cuda.set_device(here.local_rank)
    torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=PATIENCE)


def end() -> None:
    """Leave the group; nobody waits."""
    import torch

    if _together():
        torch.distributed.destroy_process_group()


def from_first(value: T) -> T:
    """What the first process has here."""
    import torch

    if not _together():
        return value
    held = [value]
    torch.distributed.broadcast_object_list(held, src=0)
    return held[0]


def gathered(value: T) -> list[T]:
    """What every process has here, in the order of their ranks."""
    import torch

    if not _together():
        return [value]
    found: list[Any] = [None] * place().world
    torch.distributed.all_gather_object(found, value)
    return found


def any_process(flag: bool) -> bool:
    """Whether it is so in any process."""
    return any(gathered(flag))


class LostProcess(EngineError):
    """Another process of this training has died."""


@contextmanager
def lost_processes(go_on: str) -> Iterator[None]:
    """LostProcess in place of torch's errors; `go_on`: the command that goes on."""
    try:
        yield
    except RuntimeError as error:
        if not _together() or not (type(error).__name__.startswith("Dist") or "gloo" in str(error)):
            raise
        raise LostProcess("another process of this training has died", hint=go_on) from error


def average_gradients(parameters: Iterable[torch.nn.Parameter]) -> None:
    """The mean of every gradient over all processes; one that a process lacks counts as zeros there.

    Where no process has any they stay absent, as with one process.
    """
    import torch

    wanted = [parameter for parameter in parameters if parameter.requires_grad]
    found = [parameter.grad is not None for parameter in wanted]
    if not any_process(any(found)):
        return
    flat = torch.cat([_gradient(parameter).float().flatten() for parameter in wanted])
    torch.distributed.all_reduce(flat)
    flat /= place().world
    for parameter, piece in zip(wanted, flat.split([parameter.numel() for parameter in wanted]), strict=True):
        parameter.grad = piece.view_as(parameter).to(parameter.dtype)


def _gradient(parameter: torch.nn.Parameter) -> torch.Tensor:
    import torch

    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _together() -> bool:
    """Whether this process has joined the others. (vLLM's group of one process does not count.)"""
    return place().world > 1
