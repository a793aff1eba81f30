"""The installed packages against the tested set in requirements/. It asks the package metadata only, and imports none of them."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from toolkit.preflight import Finding

REQUIREMENTS = Path(__file__).resolve().parents[2] / "requirements"
TESTED_PYTHON = "3.11"
MAKE_IT_SO = "make setup"


@cache
def installed(package: str) -> str | None:
    """The version without its local part (`+cpu`), which names a build of the same source."""
    found = build(package)
    return None if found is None else found.partition("+")[0]


@cache
def build(package: str) -> str | None:
    """The version with its local part."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def pins(file: Path) -> dict[str, str]:
    """The exact versions of a requirements file."""
    lines = (line.split("#")[0].strip() for line in file.read_text(encoding="utf-8").splitlines())
    return dict(line.split("==", 1) for line in lines if "==" in line)


def tested_set(*, gpu: bool) -> Path:
    """The file of the set that belongs to this machine. As long as none was tested with GPUs it is that of the CPU."""
    file = REQUIREMENTS / "gpu.txt"
    return file if gpu and file.is_file() else REQUIREMENTS / "cpu.txt"


def findings(file: Path) -> Iterator[Finding]:
    """Python, what deviates from the set (both versions named), and how much does not."""
    yield _python()
    if not file.is_file():
        hint = "it lies in the toolkit's checkout; an installed wheel has none"
        yield Finding("versions", "tested set", "not here", "warning", hint)
        return
    wanted = pins(file)
    for package, tested in wanted.items():
        if (found := installed(package)) != tested:
            yield Finding(
                "versions", package, f"{found or 'not installed'}, tested with {tested}", "warning", MAKE_IT_SO
            )
    same = sum(installed(package) == tested for package, tested in wanted.items())
    status = "ok" if same == len(wanted) else "warning"
    yield Finding("versions", f"as in requirements/{file.name}", f"{same} of {len(wanted)} packages", status)


def _python() -> Finding:
    found = platform.python_version()
    tested = found.startswith(f"{TESTED_PYTHON}.")
    value = found if tested else f"{found}, tested with {TESTED_PYTHON}"
    return Finding(
        "versions", "Python", value, "ok" if tested else "warning", None if tested else "PYTHON=python3.11 make setup"
    )
