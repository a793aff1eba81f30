"""Puts llama.cpp's converter in its place: `python -m toolkit.llamacpp.fetch [SDIST]`, once, at set-up.

The converter is only in the source distribution of llama-cpp-python, so that one file comes from the package
index through pip, with pip's own settings (index, mirror, cache). It builds nothing and runs nothing of what
it unpacks.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from toolkit import console
from toolkit.errors import ExportError, MissingExtraError, ToolkitError
from toolkit.llamacpp.convert import ORIGIN_FILE, default_dir, is_converter

DISTRIBUTION = "llama-cpp-python"
TREE = PurePosixPath("vendor/llama.cpp")
PARTS = ("convert_hf_to_gguf.py", "convert_lora_to_gguf.py", "conversion", "gguf-py", "LICENSE")
COMMIT = PurePosixPath(".git/modules/vendor/llama.cpp/HEAD")
PIP_SECONDS = 900


def main(arguments: list[str]) -> int:
    """Fill the folder unless it is filled already; an argument is a source distribution that lies here."""
    try:
        version = importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        raise MissingExtraError(DISTRIBUTION, "cpu") from None
    target = default_dir(version)
    if is_converter(target):
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        sdist = Path(arguments[0]) if arguments else download(version, Path(scratch))
        unpack(sdist, target, version=version)
    console.say(f"llama.cpp's converter is in {target}")
    return 0


def download(version: str, folder: Path) -> Path:
    """The source distribution, from pip's index. pip prepares its metadata (10 s) but compiles nothing."""
    command = [
        sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet", "--no-deps",
        "--no-binary", DISTRIBUTION, "--dest", str(folder), f"{DISTRIBUTION}=={version}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=PIP_SECONDS, check=False)
    found = sorted(folder.glob("*.tar.gz"))
    if done.returncode != 0 or not found:
        tail = "\n".join(done.stderr.strip().splitlines()[-8:])
        raise ExportError(
            f"pip could not download the source of {DISTRIBUTION} {version}:\n{tail}",
            hint="with the file at hand: python -m toolkit.llamacpp.fetch llama_cpp_python-<version>.tar.gz",
        )
    return found[0]


def unpack(sdist: Path, target: Path, *, version: str) -> None:
    """Only the converter's parts, into a temporary neighbour that is renamed when it is complete."""
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        with tarfile.open(sdist) as archive:
            commit = "unknown"
            for member, path in _members(archive):
                if path == COMMIT:
                    commit = _read(archive, member).decode().strip()
                else:
                    place = staging / path.relative_to(TREE)
                    place.parent.mkdir(parents=True, exist_ok=True)
                    place.write_bytes(_read(archive, member))
        if not is_converter(staging, complete=False):
            raise ExportError(f"{sdist.name} holds no converter", where=str(sdist))
        origin = {"llama-cpp-python": version, "llama.cpp": commit}
        (staging / ORIGIN_FILE).write_text(json.dumps(origin, indent=1) + "\n", encoding="utf-8")
        staging.chmod(0o755)
        shutil.rmtree(target, ignore_errors=True)
        os.replace(staging, target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _members(archive: tarfile.TarFile) -> Iterator[tuple[tarfile.TarInfo, PurePosixPath]]:
    """Plain files of the parts that are wanted, with their path below the archive's top folder."""
    for member in archive:
        path = PurePosixPath(*PurePosixPath(member.name).parts[1:])
        inside = TREE in path.parents and path.relative_to(TREE).parts[0] in PARTS
        if member.isfile() and ".." not in path.parts and (inside or path == COMMIT):
            yield member, path


def _read(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    handle = archive.extractfile(member)
    return handle.read() if handle else b""


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ToolkitError as error:
        console.fail(error)
        sys.exit(error.exit_code)
