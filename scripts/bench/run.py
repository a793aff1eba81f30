"""Measures rollouts and whole GRPO steps: a plain script by the book, the toolkit, the toolkit with vLLM.

    python scripts/bench/run.py [--rounds 5] [--rows 8 32 64] [--source MODEL] [--keep]

Each way is a process of its own that waits while another one works; they take turns in every round, so that what else the
machine does meets all of them alike. Medians, and their ratios to the plain script, are what to read.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import workload

HERE = Path(__file__).resolve().parent
DOCS = HERE.parents[1] / "docs"
Run = dict[str, float]


class Side:
    """A way of doing it, in its process."""

    def __init__(self, name: str, source: str, prompts: int) -> None:
        self.name = name
        self._noise = tempfile.TemporaryFile("w+")  # noqa: SIM115 (as long as the process)
        environment = os.environ | {"PYTHONPATH": f"{HERE.parents[1]}{os.pathsep}{HERE}", "GOMP_SPINCOUNT": "10000"}
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "side.py"), name, source, str(prompts)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._noise, text=True, env=environment,
        )  # fmt: skip
        self._answer()

    def _answer(self) -> Run:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            self._noise.seek(0)
            raise SystemExit(f"{self.name} failed:\n{self._noise.read()[-3000:]}")
        return json.loads(line)

    def ask(self, **request: Any) -> Run:
        """Do one thing: what it took."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def end(self) -> float:
        """Stop it; the most memory it held, in GB."""
        assert self._process.stdin
        self._process.stdin.close()
        _, _, usage = os.wait4(self._process.pid, 0)
        return usage.ru_maxrss * 1024 / 1e9


def measure(sides: list[Side], requests: dict[str, dict[str, Any]], rounds: int) -> dict[str, dict[str, list[Run]]]:
    """Every request of every way, `rounds` times after one that does not count."""
    found: dict[str, dict[str, list[Run]]] = {what: {side.name: [] for side in sides} for what in requests}
    for number in range(rounds + 1):
        for what, request in requests.items():
            for side in sides:
                run = side.ask(**request)
                if number:
                    found[what][side.name].append(run)
        print(f"round {number} of {rounds}" if number else "warmed up", file=sys.stderr, flush=True)
    return found


def summary(runs: dict[str, list[Run]]) -> dict[str, dict[str, Any]]:
    """Per way the medians, and how many times as fast as the first way it is."""
    middle = {
        name: statistics.median(run["seconds"] / run["tokens"] for run in measured) for name, measured in runs.items()
    }
    return {
        name: {
            "seconds": round(statistics.median(run["seconds"] for run in measured), 2),
            "tokens": round(statistics.median(run["tokens"] for run in measured)),
            "tokens_per_second": round(1 / middle[name]),
            "times_as_fast": round(next(iter(middle.values())) / middle[name], 2),
            **(
                {"generation_s": round(statistics.median(run["scored_s"] for run in measured), 2)}
                if "scored_s" in measured[0]
                else {}
            ),
            **({"gpu_gb": round(max(run["gpu_gb"] for run in measured), 2)} if "gpu_gb" in measured[0] else {}),
            "each": [round(run["seconds"], 2) for run in measured],
        }
        for name, measured in runs.items()
    }


COLUMNS = {
    "seconds": "seconds", "generation_s": "of which generation", "tokens": "tokens", "tokens_per_second": "tokens a second",
    "times_as_fast": "times as fast", "gpu_gb": "GPU memory, GB",
}  # fmt: skip


def table(result: dict[str, Any]) -> str:
    """In Markdown; the GPU's memory only where there is one."""
    rows = [(what, name, row) for what, ways in result["measured"].items() for name, row in ways.items()]
    shown = {key: title for key, title in COLUMNS.items() if key != "gpu_gb" or any(key in row for *_, row in rows)}
    lines = [
        f"{result['date']}, {result['machine']}, {result['rounds']} rounds, medians\n",
        f"| what | way | {' | '.join(shown.values())} |",
        "|---" * (2 + len(shown)) + "|",
        *(f"| {what} | {name} | {' | '.join(str(row.get(key, '')) for key in shown)} |" for what, name, row in rows),
    ]
    peaks = ", ".join(f"{name} {peak}" for name, peak in result["peak_gb"].items())
    return "\n".join([*lines, f"\nPeak memory of the process, GB: {peaks}."])


def keep(result: dict[str, Any]) -> None:
    """In docs/benchmarks.json, and its table in docs/benchmarks.md, between the two marks."""
    (DOCS / "benchmarks.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    page = DOCS / "benchmarks.md"
    before, mark, rest = page.read_text(encoding="utf-8").partition("<!-- measured -->\n")
    after = rest.partition("<!-- end -->\n")[2]
    page.write_text(f"{before}{mark}\n{table(result)}\n\n<!-- end -->\n{after}", encoding="utf-8")


def machine() -> str:
    """What it was measured on, without its name."""
    import torch

    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").is_file() else []
    model = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor())
    gpu = f"{torch.cuda.get_device_name()}, " if torch.cuda.is_available() else ""
    return f"{gpu}{os.cpu_count()} cores, {model}, {platform.system()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, nargs="*", default=[8, 32, 64], help="sizes of rollouts, in completions")
    parser.add_argument(
        "--prompts", type=int, default=4, help="prompts of a GRPO step, 8 completions each; 0 = no steps"
    )
    parser.add_argument("--source", default=workload.SMOLLM2)
    parser.add_argument(
        "--ways", nargs="+", default=["plain", "toolkit", *(["fast"] if find_spec("vllm") else [])],
        help="the first is what the others are compared with",
    )  # fmt: skip
    parser.add_argument("--keep", action="store_true", help="put the figures into docs/benchmarks.md and .json")
    given = parser.parse_args()
    requests: dict[str, dict[str, Any]] = {
        f"rollouts, {rows} × {workload.TOKENS}": {"do": "rollouts", "rows": rows} for rows in given.rows
    }
    if given.prompts:
        requests[f"GRPO step, {workload.GROUP * given.prompts} × {workload.TOKENS}"] = {"do": "step"}
    sides = [Side(name, given.source, given.prompts or 1) for name in given.ways]
    runs = measure(sides, requests, given.rounds)
    result = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "rounds": given.rounds,
        "measured": {what: summary(ways) for what, ways in runs.items()},
        "peak_gb": {side.name: round(side.end(), 1) for side in sides},
    }
    print(f"\n{table(result)}")
    if given.keep:
        keep(result)


if __name__ == "__main__":
    main()
