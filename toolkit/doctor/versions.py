"""The installed packages against the tested set, as findings. It asks the package metadata only, and imports none of them."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

from toolkit.preflight import Finding
from toolkit.versions import REQUIREMENTS, clashes, installed, pins

TESTED_PYTHON = "3.11"
MAKE_IT_SO = "make setup"


def tested_set(*, gpu: bool) -> Path:
    """The file of the set that this environment was made from, else of the one that belongs to this machine."""
    return REQUIREMENTS / f"{made_for() or ('gpu' if gpu else 'cpu')}.txt"


def made_for() -> str | None:
    """The EXTRA that set-up made this environment for (scripts/setup.py writes it down); None for another environment."""
    try:
        return str(json.loads(Path(sys.prefix, "setup.json").read_text(encoding="utf-8"))["extra"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def findings(file: Path, *, gpu: bool = False) -> Iterator[Finding]:
    """Python, what does not work together, what deviates from the set (both versions named), and how much does not."""
    yield _python()
    if gpu and made_for() == "cpu":
        hint = "make setup EXTRA=gpu"
        yield Finding("versions", "this environment", "made for EXTRA=cpu, and there is a GPU", "warning", hint)
    for clash in clashes():
        yield Finding("versions", clash.what, clash.why, "failed", clash.mend)
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
