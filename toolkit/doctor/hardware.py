"""What this machine has: accelerators, memory, disk. It asks the system, never torch, so that it is quick and works without."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from toolkit.preflight import Finding, Status
from toolkit.preflight.installed import vllm_finding
from toolkit.rundir import cache_folder
from toolkit.versions import build

GIB = 2**30
LEAST_MEMORY_GIB = 4.0
"""The default recipe takes 4.6 GB at its peak; the smallest that trains takes 3."""
LEAST_DISK_GIB = 5.0
"""The set-up takes 2.5 GB, a run of the default with its export 1 GB."""
SMI_SECONDS = 10
_SMI = ("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits")
_NATIVE_BF16 = {"avx512_bf16", "amx_bf16", "bf16"}
"""Flags of x86 and ARM processors that compute in bfloat16."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """An NVIDIA GPU as its driver describes it."""

    name: str
    memory_gib: float
    driver: str


@dataclass(frozen=True, slots=True)
class Hardware:
    """What decides which recipes can run here."""

    gpus: tuple[Gpu, ...]
    threads: int
    bf16: bool
    memory_gib: float
    """Of the machine, or less where a container has a limit."""
    free_gib: float | None
    disk_gib: float
    """Free where runs/ and exports/ are made."""

    @property
    def usable_gpu(self) -> Gpu | None:
        """The first GPU, unless Unsloth was told to leave it alone."""
        return self.gpus[0] if self.gpus and os.environ.get("UNSLOTH_FORCE_CPU") != "1" else None


def look() -> Hardware:
    """This machine."""
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free = _available()
    return Hardware(
        gpus=tuple(_gpus()),
        threads=threads,
        bf16=bool(_NATIVE_BF16 & _processor_flags()),
        memory_gib=round(min(total, _limit() or total) / GIB, 1),
        free_gib=None if free is None else round(free / GIB, 1),
        disk_gib=round(shutil.disk_usage(Path.cwd()).free / GIB, 1),
    )


def _gpus() -> Iterator[Gpu]:
    try:
        done = subprocess.run(_SMI, capture_output=True, text=True, timeout=SMI_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return
    yield from parsed(done.stdout)


def parsed(table: str) -> Iterator[Gpu]:
    """GPUs from nvidia-smi's lines `name, MiB, driver`. A memory that it does not tell counts as none."""
    for line in table.splitlines():
        name, memory, driver = [cell.strip() for cell in line.rsplit(",", 2)]
        yield Gpu(name, round(int(memory) / 1024, 1) if memory.isdecimal() else 0.0, driver)


def _processor_flags() -> set[str]:
    lines = _text("/proc/cpuinfo").splitlines()
    flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return set(flags.partition(":")[2].split())


def _limit() -> int | None:
    """The memory that this container may use; None where there is no limit."""
    text = _text("/sys/fs/cgroup/memory.max").strip() or _text("/sys/fs/cgroup/memory/memory.limit_in_bytes").strip()
    return int(text) if text.isdecimal() else None


def _available() -> int | None:
    for line in _text("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def findings(hardware: Hardware) -> Iterator[Finding]:
    """The machine in lines."""
    yield from _accelerators(hardware)
    yield Finding("machine", "processor", f"{hardware.threads} threads, {platform.machine()}, {platform.system()}")
    native = "native" if hardware.bf16 else "emulated: weights in float32 take twice the memory"
    yield Finding("machine", "bfloat16 on the processor", native)
    if hardware.usable_gpu is None:
        yield vllm_finding()
    enough = hardware.memory_gib >= LEAST_MEMORY_GIB
    free = f", {hardware.free_gib} free" if hardware.free_gib is not None else ""
    hint = None if enough else f"the smallest recipes take {LEAST_MEMORY_GIB:g} GiB"
    yield Finding("machine", "memory, GiB", f"{hardware.memory_gib}{free}", "ok" if enough else "warning", hint)
    yield _disk("free disk here, GiB", hardware.disk_gib)
    yield _disk("free disk of the cache, GiB", _free_of_cache())


def _accelerators(hardware: Hardware) -> Iterator[Finding]:
    if not hardware.gpus:
        hint = "the small recipes run on the processor"
        yield Finding("machine", "accelerators", "none found (nvidia-smi)", "ok", hint)
    for gpu in hardware.gpus:
        yield Finding("machine", gpu.name, f"{gpu.memory_gib} GiB, driver {gpu.driver}", *_usable(hardware))


def _usable(hardware: Hardware) -> tuple[Status, str | None]:
    torch = build("torch") or ""
    if hardware.usable_gpu is None:
        return "warning", "not used: UNSLOTH_FORCE_CPU is 1"
    return ("warning", "this torch is a build for processors only") if torch.endswith("+cpu") else ("ok", None)


def _free_of_cache() -> float:
    """Of the nearest folder above that is there."""
    folder = cache_folder()
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return round(shutil.disk_usage(there).free / GIB, 1)


def _disk(what: str, free: float) -> Finding:
    enough = free >= LEAST_DISK_GIB
    return Finding(
        "machine", what, free, "ok" if enough else "warning", None if enough else "make clean; toolkit runs clean"
    )
