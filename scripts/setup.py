"""Makes .venv exactly as requirements/ says. Standard library only: it runs before anything is installed.

A set-up is complete or it is not: the stamp is written last and names what it was made from, and what does not match it is built
anew from an empty folder: pip takes a package left half unpacked for installed. scripts/setup.sh finds the Python for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # it is run with -I
import setup_vllm

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "setup.json"
MARKER = VENV / "setup.unfinished"
LOG = VENV / "setup.log"
PROMPT = "grpo-toolkit"
FREE_BYTES = {"cpu": 5 * 10**9, "gpu": 20 * 10**9}
"""Room for a set and for what pip keeps and builds meanwhile. cpu: 2.5 GB; gpu: 4.3 GB of wheels, unpacked an estimated 12."""

GPU_PYTHONS = ((3, 11), (3, 12))
"""What gpu.txt is locked for, on Linux and x86-64."""

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
    """(EXTRA, TORCH_INDEX) as given, else as last time, so that a later plain `make` keeps them; else as the machine is."""
    extra = os.environ.get("EXTRA") or stamp.get("extra") or ("gpu" if gpu() and not unfit() else "cpu")
    return extra, os.environ.get("TORCH_INDEX") or (stamp.get("extra") == extra and stamp.get("torch_index")) or ""


@functools.cache
def gpu() -> str | None:
    """The first NVIDIA GPU as its driver names it. UNSLOTH_FORCE_CPU=1, which makes training leave it alone, counts here too."""
    if os.environ.get("UNSLOTH_FORCE_CPU") == "1":
        return None
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"^GPU \d+: (.*?)(?: \(UUID.*)?$", done.stdout, re.MULTILINE)
    return found[1] if found else None


def unfit() -> str | None:
    """Why the set for GPUs cannot be installed here."""
    here = f"Python {sys.version_info[0]}.{sys.version_info[1]}, {platform.system()}, {platform.machine()}"
    fits = sys.version_info[:2] in GPU_PYTHONS and (platform.system(), platform.machine()) == ("Linux", "x86_64")
    return None if fits else f"it is locked for Python 3.11 and 3.12 on Linux and x86_64, and this is {here}"


def lock_files(extra: str) -> list[Path]:
    folder = ROOT / "requirements"
    if extra not in FREE_BYTES:
        raise SetupError(f"there is no pinned set for EXTRA={extra!r}. There is one for: {', '.join(FREE_BYTES)}.")
    return [folder / f"{extra}.txt", folder / "dev.txt"]


def pins(paths: list[Path]) -> list[str]:
    """One line a package, with its hashes where it has some."""
    text = "".join(path.read_text() for path in paths)
    lines = [line.split("#")[0].strip() for line in re.sub(r"\s*\\\n\s*", " ", text).splitlines()]
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
        "vllm": setup_vllm.wish(stamp.get("vllm"), ROOT) if extra == "cpu" and gpu() is None else "",
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
        "extra": "this .venv was made for EXTRA={was}, and EXTRA={now} was asked for",
        "torch_index": "another TORCH_INDEX was asked for",
        "environment": "the pinned packages changed",
    }
    want = wanted(stamp)
    for key, reason in reasons.items():
        if stamp.get(key) != want[key]:
            return reason.format(was=stamp.get(key), now=want[key])
    missing = sorted(set(stamp.get("entries", [])) - set(entries()))
    return f"{missing[0]} is missing from .venv" if missing else None


def is_ready() -> bool:
    stamp = read_stamp()
    same = all(stamp.get(key) == wanted(stamp)[key] for key in ("project", "vllm"))
    return trouble() is None and same and not setup_vllm.is_tried_again(VENV)


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
    strays = {"PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_USER", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"}
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
    run([str(PYTHON), "-m", "pip", "--disable-pip-version-check", "install", "--progress-bar", "off", *arguments], env)


def check_machine(extra: str, torch_index: str) -> None:
    """What a bare machine may lack, said before the first download."""
    if extra == "gpu" and (reason := unfit()):
        raise SetupError(
            f"the set of EXTRA=gpu does not fit: {reason}.\n  make setup EXTRA=gpu PYTHON=/path/to/python3.12"
        )
    if extra == "gpu" and torch_index:
        raise SetupError(
            "EXTRA=gpu takes torch from the package index, by the hash in requirements/gpu.txt: leave TORCH_INDEX away. A mirror\n"
            "  or a folder with the same files goes by pip's own PIP_INDEX_URL or PIP_FIND_LINKS."
        )
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
    free, need = shutil.disk_usage(ROOT).free, FREE_BYTES[extra]
    if free < need and os.environ.get("SKIP_CHECKS") != "1":
        more = " (10 with a CUDA build of torch)" if extra == "cpu" else ""
        raise SetupError(
            f"only {free / 1e9:.1f} GB are free here; set-up needs {need / 1e9:.0f}{more}. "
            "To try all the same: make setup SKIP_CHECKS=1"
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


def install_lines(lines: list[str], *options: str, env: dict[str, str] | None = None) -> None:
    """Pins whose list is complete: nothing is resolved or pulled in. Where they have hashes, a file that differs is refused."""
    wanted_file = VENV / "setup-lines.txt"
    wanted_file.write_text("\n".join(lines) + "\n")
    hashes = ["--require-hashes"] if has_hashes(lines) else []
    pip_install("--no-deps", *hashes, *options, "--requirement", str(wanted_file), env=env)


def has_hashes(lines: list[str]) -> bool:
    return any("--hash=" in line for line in lines)


def install_torch(line: str, torch_index: str) -> None:
    """Alone, and with its dependencies: what the list lacks is what only this build needs (CUDA, say)."""
    source = []
    if torch_index and Path(torch_index).expanduser().is_dir():
        source = ["--no-index", "--find-links", str(Path(torch_index).expanduser().resolve())]
    elif torch_index:
        source = ["--index-url", torch_index]
    pip_install(*source, line)


def install_llama_cpp(line: str) -> None:
    own_flags = os.environ.get("CMAKE_ARGS")
    past_cache = ["--no-cache-dir", "--no-binary", "llama-cpp-python"] if own_flags else []
    install_lines([line], *past_cache, env=environment(CMAKE_ARGS=own_flags or LLAMA_CMAKE_ARGS))


def install_project() -> None:
    pip_install("--no-deps", "--no-build-isolation", "--editable", str(ROOT))


def fetch_converter() -> None:
    run([str(PYTHON), "-m", "toolkit.llamacpp.fetch"])


def try_it() -> None:
    """Outcomes, not return codes: the three compiled parts load on this machine."""
    run([str(PYTHON), "-c", "import bitsandbytes, llama_cpp, torch; torch.ones(2) @ torch.ones(2)"])


def say_whether_cuda_works() -> None:
    """A set for GPUs may be made where none is, for an image say: that is no error."""
    done = subprocess.run(
        [str(PYTHON), "-c", "import sys, torch; sys.exit(not torch.cuda.is_available())"], env=environment()
    )
    if done.returncode:
        say("torch finds no GPU here. Its CUDA 13 needs driver 580 or newer (nvidia-smi shows the version)")


def build(want: dict) -> None:
    lock, tools = (pins([path]) for path in lock_files(want["extra"]))
    by_hash = has_hashes(lock)
    torch, llama_cpp = (
        next(line for line in lock if line.startswith(f"{name}==")) for name in ("torch", "llama-cpp-python")
    )
    plain = [line for line in lock if line != llama_cpp and (by_hash or line != torch)]
    title = f"{len(plain)} pinned packages, each by its hash (4 GB)" if by_hash else f"{len(plain)} pinned packages"
    steps: list[tuple[str, Callable[[], None]]] = [
        ("an empty .venv", lambda: run([sys.executable, "-m", "venv", "--prompt", PROMPT, str(VENV)])),
        (title, lambda: install_lines(plain)),
        *([] if by_hash else [("torch", lambda: install_torch(torch, want["torch_index"]))]),
        ("llama.cpp, compiled here the first time (some minutes)", lambda: install_llama_cpp(llama_cpp)),
        (f"{len(tools)} tools for tests and checks", lambda: install_lines(tools)),
        ("the toolkit itself", install_project),
        ("llama.cpp's converter", fetch_converter),
        ("a trial of what was installed", try_it),
    ]
    for number, (title, step) in enumerate(steps, 1):
        started = time.monotonic()
        say(f"[{number}/{len(steps)}] {title}")
        step()
        print(f"        {time.monotonic() - started:.0f} s", flush=True)
    if want["extra"] == "gpu":
        say_whether_cuda_works()


def finish(want: dict) -> None:
    """The stamp appears complete or not at all; only then the marker goes."""
    temporary = STAMP.with_suffix(".tmp")
    temporary.write_text(json.dumps(want | {"entries": entries()}, indent=1) + "\n")
    os.replace(temporary, STAMP)
    MARKER.unlink(missing_ok=True)


def say_why_this_set(extra: str, *, asked: bool) -> None:
    """What was chosen where nobody chose and there is a GPU."""
    if asked or gpu() is None:
        return
    if extra == "gpu":
        say(f"there is a GPU here ({gpu()}), so this is the set for GPUs; make setup EXTRA=cpu takes the other one")
    else:
        say(f"there is a GPU here ({gpu()}), but the set for GPUs does not fit: {unfit()}; so this is EXTRA=cpu")


def set_up() -> None:
    stamp, reason, started = read_stamp(), trouble(), time.monotonic()
    if is_ready():
        return
    want = wanted(stamp)
    if reason:
        say_why_this_set(want["extra"], asked=bool(os.environ.get("EXTRA") or stamp.get("extra")))
        check_machine(want["extra"], want["torch_index"])
        say(f"{reason}; making .venv anew for EXTRA={want['extra']} with Python {want['python']}")
        empty_venv()
        build(want)
    elif stamp.get("project") != want["project"]:
        say("pyproject.toml changed: installing the toolkit itself again")
        install_project()
    if want["vllm"]:
        setup_vllm.run_in(PYTHON, want["vllm"], environment())
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
