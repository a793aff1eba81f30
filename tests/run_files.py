"""Reading runs, comparing them to the bit, and starting and stopping them as a user does."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from models import child_environment
from toolkit.rundir import RunDir


def lines(run: RunDir) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.metrics.read_text(encoding="utf-8").splitlines()]


def steps(run: RunDir) -> list[tuple[str, int]]:
    return [(line["stage"], line["step"]) for line in lines(run)]


def without_times(run: RunDir) -> list[dict[str, Any]]:
    return [
        {k: v for k, v in line.items() if k not in ("seconds", "tokens_per_second", "energy_j")} for line in lines(run)
    ]


def drawn(run: RunDir) -> list[dict[str, Any]]:
    from pyarrow import parquet

    return [row for file in sorted(run.completions.iterdir()) for row in parquet.read_table(file).to_pylist()]


def weights(folder: Path) -> dict[str, Any]:
    from safetensors.numpy import load_file

    return load_file(folder / "adapter_model.safetensors")


def assert_same_run(one: RunDir, other: RunDir) -> None:
    """Metrics, completions and both adapters, to the bit; only the clock may differ."""
    assert without_times(one) == without_times(other)
    assert drawn(one) == drawn(other)
    for folder, theirs in ((one.adapter, other.adapter), (one.warmup_adapter, other.warmup_adapter)):
        ours, expected = weights(folder), weights(theirs)
        assert ours.keys() == expected.keys()
        assert all((ours[name] == expected[name]).all() for name in expected)


def start(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "toolkit", "train", *words]
    with (folder / "output.txt").open("wb") as output:
        return subprocess.Popen(command, cwd=folder, stdout=output, stderr=output, env=child_environment())


def send_when(process: subprocess.Popen[bytes], output: Path, text: str, number: int) -> int:
    """Send the signal when the text has been shown; the exit code."""
    until = time.monotonic() + 900
    while text not in output.read_text(encoding="utf-8", errors="replace"):
        assert process.poll() is None and time.monotonic() < until, output.read_text(encoding="utf-8")[-3000:]
        time.sleep(0.05)
    process.send_signal(number)
    return process.wait(timeout=900)
