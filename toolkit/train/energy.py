"""How much energy the machine's own counters say was spent, in joules. It estimates nothing: without counters there is no figure.

Processors: Linux's powercap (Intel and AMD RAPL), packages only, whose parts they include; often readable by root alone. NVIDIA
cards: NVML's counter since the driver was loaded (Volta and later). Both count everything that ran, not this process only.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")
NVML = "libnvidia-ml.so.1"

Counter = Callable[[], float]
"""Joules since some moment; None of them raises once it was found."""


class EnergyMeter:
    """Joules between two readings."""

    def __init__(self, powercap: Path = POWERCAP, nvml: str = NVML) -> None:
        self._counters = [*_packages(powercap), *_cards(nvml)]
        self._last = [read() for read, _ in self._counters]

    def since_last(self) -> float | None:
        """Joules since the last reading; None where the machine has no counter that can be read."""
        if not self._counters:
            return None
        now = [read() for read, _ in self._counters]
        spent = sum(
            new - old + (span if new < old else 0)
            for new, old, (_, span) in zip(now, self._last, self._counters, strict=True)
        )
        self._last = now
        return spent


def _packages(folder: Path) -> Iterator[tuple[Counter, float]]:
    """A counter for each processor package, with the joules after which it begins anew."""
    for zone in sorted(folder.glob("intel-rapl:[0-9]*")):
        if zone.name.count(":") == 1:
            try:
                span = _joules(zone / "max_energy_range_uj")
                _joules(zone / "energy_uj")
            except (OSError, ValueError):
                continue
            yield (lambda file=zone / "energy_uj": _joules(file)), span


def _joules(file: Path) -> float:
    return int(file.read_text(encoding="ascii")) / 1e6


def _cards(library: str) -> Iterator[tuple[Counter, float]]:
    """A counter for each NVIDIA card that has one."""
    try:
        nvml = ctypes.CDLL(library)
    except OSError:
        return
    count = ctypes.c_uint()
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return
    for index in range(count.value):
        handle = ctypes.c_void_p()
        millijoules = ctypes.c_ulonglong()
        if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
            continue
        if not nvml.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(millijoules)):
            yield (lambda handle=handle: _card(nvml, handle)), 0.0


def _card(nvml: ctypes.CDLL, handle: ctypes.c_void_p) -> float:
    millijoules = ctypes.c_ulonglong()
    nvml.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(millijoules))
    return millijoules.value / 1000
