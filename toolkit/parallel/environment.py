"""Who this process is among those of one training, from what launchers put into the environment. It starts and connects nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from toolkit.errors import ToolkitError

DEFAULT_PORT = 29500
"""Torch's own."""


@dataclass(frozen=True, slots=True)
class Place:
    """A process among `world` ones; `rank` 0 writes the records. `local_rank` counts the processes of one machine."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1
    address: str = "127.0.0.1"
    port: int = DEFAULT_PORT

    def variables(self) -> dict[str, str]:
        """What torch, Accelerate and Unsloth read."""
        return {
            "RANK": str(self.rank), "WORLD_SIZE": str(self.world), "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_world), "MASTER_ADDR": self.address, "MASTER_PORT": str(self.port),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Machines:
    """The machines of one training: how many, which one this is, and where the first one listens."""

    count: int = 1
    rank: int = 0
    address: str = "127.0.0.1"
    port: int = 0
    """Not used where there is one machine only: its processes meet at a free one, on loopback."""


def place(environ: Mapping[str, str] = os.environ) -> Place:
    """This process as torchrun, Accelerate, Ray Train, PyTorchJob or Slurm's srun describe it; alone where none does."""
    if "WORLD_SIZE" in environ or "RANK" in environ:
        return _torch_place(environ)
    if _number(environ, "SLURM_STEP_NUM_TASKS", 1) > 1:
        return _slurm_place(environ)
    return Place()


def first(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this process writes the records: the only one, or the one of rank 0."""
    return place(environ).rank == 0


def _torch_place(environ: Mapping[str, str]) -> Place:
    missing = [name for name in ("RANK", "WORLD_SIZE") if name not in environ]
    if missing:
        raise ToolkitError(
            f"the environment describes one of several processes, but {missing[0]} is not set",
            hint="set RANK and WORLD_SIZE, or neither; on one machine: toolkit train RECIPE --processes N",
        )
    rank, world = _number(environ, "RANK"), _number(environ, "WORLD_SIZE")
    if not 0 <= rank < world:
        raise ToolkitError(f"RANK is {rank}, and WORLD_SIZE {world}", hint="ranks count from 0 to WORLD_SIZE - 1")
    if world > 1 and "MASTER_ADDR" not in environ:
        raise ToolkitError("MASTER_ADDR is not set", hint="the address of the machine of rank 0, for every process")
    local = _number(environ, "LOCAL_RANK", 0)  # PyTorchJob sets none: it starts one process a pod
    address, port = environ.get("MASTER_ADDR", "127.0.0.1"), _number(environ, "MASTER_PORT", DEFAULT_PORT)
    return Place(rank, world, local, _number(environ, "LOCAL_WORLD_SIZE", 1), address, port)


def _slurm_place(environ: Mapping[str, str]) -> Place:
    """A task of an srun step. In a batch script itself, which is no step, every task's variables are set, too."""
    return Place(
        rank=_number(environ, "SLURM_PROCID"),
        world=_number(environ, "SLURM_STEP_NUM_TASKS"),
        local_rank=_number(environ, "SLURM_LOCALID"),
        local_world=_number(environ, "SLURM_STEP_TASKS_PER_NODE", 1),
        address=environ.get("MASTER_ADDR") or first_host(environ.get("SLURM_STEP_NODELIST", "")),
        port=_slurm_port(environ),
    )


def alone(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment without what makes a process one of several: for steps that the first one makes by itself."""
    ours = (*Place().variables(), "SLURM_STEP_NUM_TASKS")
    return {name: value for name, value in environ.items() if name not in ours}


def machines(environ: Mapping[str, str] = os.environ) -> Machines:
    """The machines that a cluster's environment speaks of, each to start processes of its own; one where it speaks of none."""
    if "LOCAL_RANK" in environ:
        return Machines()
    if "PET_NNODES" in environ:  # PyTorchJob with nprocPerNode: torchrun's own variables
        port = _number(environ, "PET_MASTER_PORT", DEFAULT_PORT)
        rank, address = _number(environ, "PET_NODE_RANK"), environ.get("PET_MASTER_ADDR", "127.0.0.1")
        return Machines(_number(environ, "PET_NNODES"), rank, address, port)
    if _number(environ, "WORLD_SIZE", 1) > 1:
        here = _torch_place(environ)
        return Machines(here.world, here.rank, here.address, here.port)
    tasks = _number(environ, "SLURM_STEP_NUM_TASKS", 1)
    if tasks > 1 and tasks == _number(environ, "SLURM_STEP_NUM_NODES", 1):
        address = environ.get("MASTER_ADDR") or first_host(environ.get("SLURM_STEP_NODELIST", ""))
        return Machines(tasks, _number(environ, "SLURM_NODEID"), address, _slurm_port(environ))
    return Machines()


def first_host(nodes: str) -> str:
    """The first name of a Slurm node list, which folds numbers: `gpu[03-07,9],cpu1` begins with `gpu03`."""
    found = re.match(r"([^\[,]+)(?:\[(\d+)[^\]]*\])?([^\[,]*)", nodes)
    if not found:
        raise ToolkitError("Slurm's node list names no machine", hint="set MASTER_ADDR to the machine of rank 0")
    return f"{found[1]}{found[2] or ''}{found[3]}"


def _slurm_port(environ: Mapping[str, str]) -> int:
    """The same for all tasks of a step, and another for other jobs on the same machine."""
    job = _number(environ, "SLURM_JOB_ID", 0)
    return _number(environ, "MASTER_PORT", 20_000 + job % 20_000)


def _number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    """A variable as a number; Slurm writes counts as `4(x2)` where several machines have the same."""
    text = environ.get(name)
    if text is None and default is not None:
        return default
    found = re.fullmatch(r"(\d+)(\(x\d+\).*|,.*)?", text or "")
    if not found:
        what = "is not set" if text is None else f"is {text[:40]!r}, which is no number"
        raise ToolkitError(
            f"the environment variable {name} {what}", hint="it is the launcher's: srun, torchrun, PyTorchJob"
        )
    return int(found[1])
