"""Starts several processes of one command on this machine through torch's elastic agent (`torchrun`'s), and waits for them.

Ctrl-C and SIGTERM are handed on to all of them, who agree on the step after which they stop. It trains nothing.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from toolkit.errors import EngineError, ToolkitError
from toolkit.parallel import loopback
from toolkit.parallel.environment import Machines

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

MEETING_S = 900
"""How long machines wait for each other at the start, in seconds."""


def require_devices(processes: int) -> None:
    """ToolkitError unless every process has a GPU, where this machine has any."""
    import torch

    gpus = torch.cuda.device_count()
    if 0 < gpus < processes:
        raise ToolkitError(f"{processes} processes need a GPU each; there are {gpus}", hint=f"--processes {gpus}")


def run_processes(words: Sequence[str], *, processes: int, machines: Machines, go_on: Callable[[], str]) -> int:
    """`python -m toolkit WORDS` in so many processes on this machine: 0, or the exit code of the one that failed first.

    Raises EngineError where one was killed; `go_on` gives the command that goes on then.
    """
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # its reports of failures; ours says it
    _share_machine(processes, machines)
    # In a thread the agent leaves signals alone: its own way with them is to kill after half a minute.
    with ThreadPoolExecutor(1) as pool, _signals_handed_on():
        launched = pool.submit(
            elastic_launch(_config(processes, machines), sys.executable), "-u", "-m", "toolkit", *words
        )
        try:
            _wait(launched)
        except ChildFailedError as error:
            return _exit_code(error, go_on)
    return 0


def _wait(launched: Future[Any]) -> None:
    """A plain `result()` would keep signals waiting, too."""
    while not launched.done():
        try:
            launched.result(timeout=0.2)
        except TimeoutError:
            continue
    launched.result()


def _config(processes: int, machines: Machines) -> Any:
    from torch.distributed.launcher.api import LaunchConfig

    alone = machines.count == 1
    if alone:
        loopback.register()
    return LaunchConfig(
        min_nodes=machines.count,
        max_nodes=machines.count,
        nproc_per_node=processes,
        run_id="toolkit",
        rdzv_backend=loopback.BACKEND if alone else "static",
        rdzv_endpoint=f"{machines.address}:{machines.port}",
        rdzv_configs={"rank": machines.rank},
        rdzv_timeout=MEETING_S,
        max_restarts=0,
        local_addr=loopback.ADDRESS if alone else None,
    )


def _share_machine(processes: int, machines: Machines) -> None:
    """Each process its part of the cores: all would else take all. On one machine they talk over loopback."""
    if machines.count == 1 and sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // processes)))


@contextmanager
def _signals_handed_on() -> Iterator[None]:
    """The agent starts its processes in sessions of their own, which a terminal's Ctrl-C does not reach."""
    import psutil

    def hand_on(number: int, _frame: object) -> None:
        for child in psutil.Process().children():
            child.send_signal(number)

    before = {number: signal.signal(number, hand_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit_code(error: ChildFailedError, go_on: Callable[[], str]) -> int:
    """A process that failed by itself has said why; one that was killed could not."""
    for rank, failure in sorted(error.failures.items()):
        if failure.exitcode < 0 and failure.exitcode not in (-signal.SIGTERM, -signal.SIGINT):
            name = signal.Signals(-failure.exitcode).name
            raise EngineError(f"process {rank} of the training was killed ({name}), and the others ended", hint=go_on())
    return max(0, error.get_first_failure()[1].exitcode) or 1
