"""Makes .venv exactly as requirements/ says. Standard library only: it runs before anything is installed.

A set-up is complete or it is not: the stamp is written last and names what it was made from, and what does
not match it is built anew from an empty folder, because pip takes a package left half unpacked for
installed. scripts/setup.sh finds the Python that runs this file.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "setup.json"
MARKER = VENV / "setup.unfinished"
LOG = VENV / "setup.log"
PROMPT = "grpo-toolkit"
FREE_BYTES = 5 * 10**9
"""Room for the CPU set (2.5 GB) and what pip unpacks and builds meanwhile."""

NO_SETS = ("browser", "dev", "open-webui")
"""Pins that are no machine's set: for tests and checks, and for an environment of Open WebUI's own."""

LLAMA_CMAKE_ARGS = "-DGGML_NATIVE=OFF -DLLAVA_BUILD=OFF"
"""No instructions that only the building machine has: pip caches the wheel under a name that tells neither
flags nor processor, so a native build that turns up on another machine (a shared home, a restored CI cache)
dies there of an illegal instruction. On x86-64 this leaves AVX2 and FMA. The vision library is not used
here and is slow to compile. CMAKE_ARGS in the environment replaces these flags, and is then built past the
cache."""


class SetupError(Exception):
    """Set-up cannot go on; the text says what the user does next."""


# --- what is wanted, and what is there


def choices(stamp: dict) -> tuple[str, str]:
    """(EXTRA, TORCH_INDEX) as given, else as last time, so that a later plain `make` keeps them."""
    extra = os.environ.get("EXTRA") or stamp.get("extra") or "cpu"
    torch_index = os.environ.get("TORCH_INDEX") or stamp.get("torch_index") or ""
    return extra, torch_index


def lock_files(extra: str) -> list[Path]:
    folder = ROOT / "requirements"
    known = sorted(path.stem for path in folder.glob("*.txt") if path.stem not in NO_SETS)
    if extra not in known:
        raise SetupError(f"there is no pinned set for EXTRA={extra!r}. There is one for: {', '.join(known)}.")
    return [folder / f"{extra}.txt", folder / "dev.txt"]


def pins(paths: list[Path]) -> list[str]:
    lines = [line.split("#")[0].strip() for path in paths for line in path.read_text().splitlines()]
    return [line for line in lines if line]


def fingerprint(paths: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()


def wanted(stamp: dict) -> dict:
    """What the stamp of a complete set-up says, apart from `entries`."""
    extra, torch_index = choices(stamp)
    return {
        "extra": extra,
        "torch_index": torch_index,
        "root": str(ROOT),
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "environment": fingerprint([*lock_files(extra), Path(__file__)]),
        "project": fingerprint([ROOT / "pyproject.toml"]),
    }


def read_stamp() -> dict:
    try:
        stamp = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def entries() -> list[str]:
    """The top of what is installed. A package removed or replaced by hand shows here."""
    folders = [VENV / "bin", VENV / "share", *VENV.glob("lib/python*/site-packages")]
    return sorted(
        f"{folder.relative_to(VENV)}/{name}"
        for folder in folders
        if folder.is_dir()
        for name in os.listdir(folder)
        if name != "__pycache__"
    )


def trouble() -> str | None:
    """Why .venv has to be built anew; None when at most the project itself has to be installed again."""
    stamp = read_stamp()
    if MARKER.exists():
        return "the last set-up did not finish"
    if not stamp:
        return "there is no finished .venv"
    reasons = {
        "root": "the folder was moved",
        "python": "the Python version changed",
        "extra": "another EXTRA was asked for",
        "torch_index": "another TORCH_INDEX was asked for",
        "environment": "the pinned packages changed",
    }
    want = wanted(stamp)
    for key, reason in reasons.items():
        if stamp.get(key) != want[key]:
            return reason
    missing = sorted(set(stamp.get("entries", [])) - set(entries()))
    return f"{missing[0]} is missing from .venv" if missing else None


def is_ready() -> bool:
    stamp = read_stamp()
    return trouble() is None and stamp.get("project") == wanted(stamp)["project"]


# --- doing it


def say(text: str) -> None:
    print(f"set-up: {text}", flush=True)


@contextlib.contextmanager
def only_one() -> Iterator[None]:
    """Two terminals may type `make` at once; the second waits and then finds the work done."""
    with open(ROOT / ".setup.lock", "w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another set-up is running here; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def environment(**extra: str) -> dict[str, str]:
    """The caller's environment without what would lead pip or Python away from .venv."""
    strays = {
        "PYTHONPATH",
        "PYTHONHOME",
        "PIP_TARGET",
        "PIP_PREFIX",
        "PIP_USER",
        "VIRTUAL_ENV",
        "__PYVENV_LAUNCHER__",
    }
    return {key: value for key, value in os.environ.items() if key not in strays} | extra


def run(command: list[str], env: dict[str, str] | None = None) -> None:
    """Run with the output in the log; a terminal sees the last line and the seconds."""
    started, live = time.monotonic(), sys.stdout.isatty()
    with LOG.open("a") as log:
        log.write(f"\n$ {' '.join(command)}\n")
        process = subprocess.Popen(
            command, cwd=ROOT, env=env or environment(), text=True, errors="replace",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            log.write(line)
            if live and (text := line.strip()):
                print(f"\r\033[K  {time.monotonic() - started:4.0f} s  {text[:90]}", end="", flush=True)
    if live:
        print("\r\033[K", end="", flush=True)
    if process.wait() != 0:
        tail = "".join(f"  | {line}\n" for line in LOG.read_text(errors="replace").splitlines()[-25:])
        raise SetupError(f"this failed: {' '.join(command)[:300]}\n{tail}  The whole output: {LOG.relative_to(ROOT)}")


def pip_install(*arguments: str, env: dict[str, str] | None = None) -> None:
    run(
        [
            str(PYTHON),
            "-m",
            "pip",
            "--disable-pip-version-check",
            "install",
            "--progress-bar",
            "off",
            *arguments,
        ],
        env,
    )


def check_machine() -> None:
    """What a bare machine may lack, said before the first download."""
    lacks = []
    if not (os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")):
        lacks.append("a C compiler")
    if not (os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")):
        lacks.append("a C++ compiler")
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        lacks.append("Python's header files")
    if lacks and os.environ.get("SKIP_CHECKS") != "1":
        raise SetupError(
            f"this machine lacks {' and '.join(lacks)}. llama.cpp and pycosat have no ready-made wheel "
            "on the package index and are compiled here.\n"
            "  On Debian and Ubuntu: apt-get install build-essential python3-dev\n"
            "  If your package index has wheels of them: make setup SKIP_CHECKS=1"
        )
    free = shutil.disk_usage(ROOT).free
    if free < FREE_BYTES and os.environ.get("SKIP_CHECKS") != "1":
        raise SetupError(
            f"only {free / 1e9:.1f} GB are free here; set-up needs {FREE_BYTES / 1e9:.0f} "
            "(10 with a CUDA build of torch). To try all the same: make setup SKIP_CHECKS=1"
        )


def empty_venv() -> None:
    """Leave only the marker in .venv. The folder itself stays: it may be a link to another disk."""
    config = VENV / "pyvenv.cfg"
    ours = MARKER.exists() or STAMP.exists() or (config.is_file() and PROMPT in config.read_text())
    if VENV.is_dir() and any(VENV.iterdir()) and not ours:
        raise SetupError(
            "there is a .venv here that this set-up did not make. Move it away, or remove it: make distclean"
        )
    VENV.mkdir(exist_ok=True)
    MARKER.touch()
    for child in VENV.iterdir():
        if child == MARKER:
            continue
        if child.is_dir() and not child.is_symlink():
            shutil.rmtree(child)
        else:
            child.unlink()


def install_packages(lines: list[str]) -> None:
    """Everything but torch and llama.cpp. The list is complete: nothing is resolved or pulled in."""
    apart = ("torch==", "llama-cpp-python==")
    pip_install("--no-deps", *[line for line in lines if not line.startswith(apart)])


def install_torch(lines: list[str], torch_index: str) -> None:
    """Alone, and with its dependencies: what the list lacks is what only this build needs (CUDA, say)."""
    source = []
    if torch_index and Path(torch_index).expanduser().is_dir():
        source = ["--no-index", "--find-links", str(Path(torch_index).expanduser().resolve())]
    elif torch_index:
        source = ["--index-url", torch_index]
    pip_install(*source, *[line for line in lines if line.startswith("torch==")])


def install_llama_cpp(lines: list[str]) -> None:
    own_flags = os.environ.get("CMAKE_ARGS")
    past_cache = ["--no-cache-dir", "--no-binary", "llama-cpp-python"] if own_flags else []
    env = environment(CMAKE_ARGS=own_flags or LLAMA_CMAKE_ARGS)
    for line in lines:
        if line.startswith("llama-cpp-python=="):
            pip_install("--no-deps", *past_cache, line, env=env)


def install_project() -> None:
    pip_install("--no-deps", "--no-build-isolation", "--editable", str(ROOT))


def fetch_converter() -> None:
    run([str(PYTHON), "-m", "toolkit.llamacpp.fetch"])


def try_it() -> None:
    """Outcomes, not return codes: the three compiled parts load on this machine."""
    run([str(PYTHON), "-c", "import bitsandbytes, llama_cpp, torch; torch.ones(2) @ torch.ones(2)"])


def build(want: dict) -> None:
    lines = pins(lock_files(want["extra"]))
    steps: list[tuple[str, Callable[[], None]]] = [
        ("an empty .venv", lambda: run([sys.executable, "-m", "venv", "--prompt", PROMPT, str(VENV)])),
        (f"{len(lines) - 2} pinned packages", lambda: install_packages(lines)),
        ("torch", lambda: install_torch(lines, want["torch_index"])),
        ("llama.cpp, compiled here the first time (some minutes)", lambda: install_llama_cpp(lines)),
        ("the toolkit itself", install_project),
        ("llama.cpp's converter", fetch_converter),
        ("a trial of what was installed", try_it),
    ]
    for number, (title, step) in enumerate(steps, 1):
        started = time.monotonic()
        say(f"[{number}/{len(steps)}] {title}")
        step()
        print(f"        {time.monotonic() - started:.0f} s", flush=True)


def finish(want: dict) -> None:
    """The stamp appears complete or not at all; only then the marker goes."""
    temporary = STAMP.with_suffix(".tmp")
    temporary.write_text(json.dumps(want | {"entries": entries()}, indent=1) + "\n")
    os.replace(temporary, STAMP)
    MARKER.unlink(missing_ok=True)


def set_up() -> None:
    stamp, reason, started = read_stamp(), trouble(), time.monotonic()
    want = wanted(stamp)
    if reason is None and stamp.get("project") == want["project"]:
        return
    if reason is None:
        say("pyproject.toml changed: installing the toolkit itself again")
        install_project()
    else:
        say(f"{reason}; making .venv for EXTRA={want['extra']} with Python {want['python']}")
        check_machine()
        empty_venv()
        build(want)
    finish(want)
    say(f"ready after {time.monotonic() - started:.0f} s")


def main() -> int:
    if sys.argv[1:] == ["--ready"]:
        return 0 if is_ready() else 1
    try:
        with only_one():
            set_up()
    except SetupError as error:
        print(f"set-up: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nset-up: interrupted; the next make starts it anew", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
