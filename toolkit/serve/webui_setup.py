"""Installs Open WebUI into an environment of its own, from the pins in requirements/open-webui.txt. It starts nothing.

Not beside the training libraries: each pins other versions of the same packages.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from toolkit import console
from toolkit.errors import ToolkitError

PINS = Path(__file__).resolve().parents[2] / "requirements" / "open-webui.txt"
PYTHONS = ((3, 11), (3, 12))
"""What Open WebUI runs on."""
STAMP = "toolkit-setup.json"
"""Written last: an environment without it was not finished, or is somebody else's."""
FREE_BYTES = 5 * 10**9


def set_up(folder: Path) -> Path:
    """Its Python. Does nothing where the folder already holds what the pins say."""
    python, stamp, wanted = folder / "bin" / "python", folder / STAMP, _wanted()
    if stamp.is_file() and json.loads(stamp.read_text()) == wanted:
        return python.absolute()
    if folder.exists() and any(folder.iterdir()) and not (folder / "pyvenv.cfg").is_file():
        raise ToolkitError("this folder holds something else than an environment", where=str(folder))
    free = shutil.disk_usage(_existing(folder)).free
    if free < FREE_BYTES:
        raise ToolkitError(
            f"Open WebUI needs {FREE_BYTES / 1e9:.0f} GB, {free / 1e9:.1f} GB are free", where=str(folder)
        )
    console.note(f"setting Open WebUI up in {folder}: about 3 GB, some minutes, once")
    shutil.rmtree(folder, ignore_errors=True)
    log = folder.parent / "setup.log"
    folder.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"")
    for what, command in _steps(folder, python):
        console.note(f"  {what}")
        _run(command, log)
    stamp.write_text(json.dumps(wanted) + "\n")
    return python.absolute()


def _wanted() -> dict[str, str]:
    if not PINS.is_file():
        raise ToolkitError("the pins of Open WebUI are missing: this needs a checkout of the toolkit", where=str(PINS))
    return {"pins": hashlib.sha256(PINS.read_bytes()).hexdigest()}


def _steps(folder: Path, python: Path) -> Iterator[tuple[str, Sequence[str]]]:
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--progress-bar", "off"]
    torch = [line for line in PINS.read_text().splitlines() if line.startswith("torch==")]
    yield "an empty environment", [_python(), "-m", "venv", str(folder)]
    # First, and from where the toolkit's own came: what needs it would bring the build for CUDA. Its own needs come afterwards.
    yield "torch", [*pip, "--no-deps", *_torch_source(), *torch]
    yield "Open WebUI and what it needs", [*pip, "--requirement", str(PINS)]
    yield "a trial of what was installed", [str(python), "-c", "import open_webui, torch, uvicorn"]


def _python() -> str:
    if sys.version_info[:2] in PYTHONS:
        return sys.executable
    found = [shutil.which(f"python{major}.{minor}") for major, minor in PYTHONS]
    if path := next(filter(None, found), None):
        return path
    raise ToolkitError("Open WebUI needs Python 3.11 or 3.12, and there is none", hint="install one of them")


def _torch_source() -> list[str]:
    """Options of pip for the index or folder with wheels that `make setup TORCH_INDEX=…` was given."""
    stamp = Path(sys.prefix) / "setup.json"
    given = (
        os.environ.get("TORCH_INDEX") or (stamp.is_file() and json.loads(stamp.read_text()).get("torch_index")) or ""
    )
    if given and Path(given).expanduser().is_dir():
        return ["--no-index", "--find-links", str(Path(given).expanduser().resolve())]
    return ["--index-url", given] if given else []


def _run(command: Sequence[str], log: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    with log.open("ab") as output:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment, check=False
        )
    if done.returncode:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-12:])
        raise ToolkitError(f"Open WebUI could not be set up:\n{tail}", where=str(log))


def _existing(path: Path) -> Path:
    return next(parent for parent in [path.absolute(), *path.absolute().parents] if parent.exists())
