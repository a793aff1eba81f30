"""A Ray to work on: found or started, and what its machines have room for. It runs nothing there."""

from __future__ import annotations

import logging
import os
import re
import secrets
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from toolkit import versions
from toolkit.errors import MissingExtraError, ToolkitError

LOCAL, RUNNING = "local", "auto"
INSTALL = ".venv/bin/python -m pip install --no-deps --requirement requirements/ray.txt"
FORMS = "--ray local, --ray auto, --ray HOST:PORT or --ray ray://HOST:PORT"
TOKEN = "one that asks for a token wants RAY_AUTH_MODE=token and RAY_AUTH_TOKEN here, too"
REACH_S = 10
_ADDRESS = re.compile(r"(ray://)?\[?([^\s/\]\[]+)\]?:(\d{1,5})")
_NO_KILLING = {"RAY_memory_monitor_refresh_ms": "0"}
"""Ray would end its workers where any program has filled the machine's memory; the training itself explains a lack of it."""
_STORE_BYTES = 100 * 2**20
"""Of Ray's object store, of which it would else take a third of the memory: only words go through it."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What Ray may use of one machine."""

    cores: int
    gpus: int


def require_ray() -> None:
    """MissingExtraError with the command that installs it, where Ray is not installed."""
    if versions.build("ray") is None:
        missing = MissingExtraError("ray", "ray")
        missing.hint = INSTALL
        raise missing


@contextmanager
def connected(address: str, *, workers: int = 1) -> Iterator[None]:
    """Ray within the block. `local` starts one that listens on loopback alone and ends with the block; `auto` finds one here.

    `workers`: for so many a Ray of its own has cores, whatever the machine has.
    """
    require_ray()
    _require_reachable(address)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    with ExitStack() as stack:
        arguments: dict[str, Any] = {"address": address}
        if address == LOCAL:
            # Ray's own switch for machines that cannot be part of a cluster. Without it every port is open to the network,
            # and whoever reaches one runs code here; _node_ip_address="127.0.0.1" is replaced by the outer address.
            os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
            # Against this machine's other users. Ray would leave a token of its own, readable, in the home folder.
            os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)} | _NO_KILLING
            scratch = stack.enter_context(_short_folder())
            arguments |= _own_ray(scratch, workers)
        ray = _begin(address, arguments)
        from ray.exceptions import RayError, RayTaskError  # type: ignore[import-not-found]

        stack.callback(ray.shutdown)
        try:
            yield
        except RayTaskError:  # a bug in what ran there
            raise
        except RayError as error:
            raise ToolkitError(f"Ray was lost: {_first_line(error)}", where=address, hint="ray status") from error


def _own_ray(scratch: str, workers: int) -> dict[str, Any]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {
        "num_cpus": max(cores, workers),
        "include_dashboard": False,
        "object_store_memory": _STORE_BYTES,
        "_temp_dir": scratch,
    }


def _begin(address: str, arguments: dict[str, Any]) -> Any:
    import ray  # type: ignore[import-not-found]

    try:
        ray.init(**arguments, log_to_driver=False, logging_level=logging.CRITICAL)
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        hint = "--ray local, or start one: ray start --head" if address == RUNNING else f"{FORMS}; {TOKEN}"
        raise ToolkitError(f"Ray cannot be reached: {_first_line(error)}", where=address, hint=hint) from error
    return ray


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:300]


def _short_folder() -> tempfile.TemporaryDirectory[str]:
    """For Ray's sockets, whose whole path may have 107 characters; its files there go away with it."""
    folder = None if len(tempfile.gettempdir()) < 20 else "/tmp"
    return tempfile.TemporaryDirectory(prefix="ray-", dir=folder, ignore_cleanup_errors=True)


def _require_reachable(address: str) -> None:
    """Ray itself would try for minutes."""
    if address in (LOCAL, RUNNING):
        return
    found = _ADDRESS.fullmatch(address)
    if not found:
        raise ToolkitError(f"{address[:60]} is no address of a Ray", hint=FORMS)
    try:
        socket.create_connection((found[2], int(found[3])), timeout=REACH_S).close()
    except (OSError, OverflowError) as error:
        raise ToolkitError(f"Ray cannot be reached: {error}", where=address, hint=FORMS) from error


def machines() -> list[Machine]:
    """Those of the Ray that is connected, as far as they are there now."""
    import ray  # type: ignore[import-not-found]

    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    gpus = os.environ.get("UNSLOTH_FORCE_CPU") != "1"
    return [Machine(int(found.get("CPU", 0)), int(found.get("GPU", 0)) if gpus else 0) for found in alive]


def cores_each(found: Sequence[Machine], workers: int, *, gpus: int = 1) -> int:
    """How many cores each of so many workers can have, every worker whole on one machine; where there are GPUs, one.

    `gpus`: how many of them a worker needs, where there are any. ToolkitError where the workers find no room.
    """
    there_are_gpus = any(machine.gpus for machine in found)
    for cores in (1,) if there_are_gpus else range(max((machine.cores for machine in found), default=0), 0, -1):
        if sum(_room(machine, cores, gpus if there_are_gpus else 0) for machine in found) >= workers:
            return cores
    unit = "GPUs" if there_are_gpus else "cores"
    there = sum(machine.gpus if there_are_gpus else machine.cores for machine in found)
    needed = f"{workers} times {gpus} GPUs" if there_are_gpus and gpus > 1 else f"{workers} {unit}"
    raise ToolkitError(f"this Ray has {there} {unit}, and {needed} are needed", hint="ray status shows them")


def _room(machine: Machine, cores: int, gpus: int) -> int:
    return min(machine.cores // cores, machine.gpus // gpus if gpus else machine.cores)
