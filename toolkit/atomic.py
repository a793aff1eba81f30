"""Files that are whole or not there: writing under a temporary name, and what the disk refuses said as the user's error."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from toolkit.errors import ExportError, ToolkitError


def read_json(path: Path) -> Any:
    """A record that one of the steps wrote; a missing or broken one is the user's error, with the file's name."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ToolkitError(f"cannot be read: {error.strerror}", where=str(path)) from error
    except ValueError as error:
        raise ToolkitError(f"is not JSON: {error}", where=str(path)) from error


def write_json(path: Path, value: Any) -> None:
    """Atomically. nan and infinity are refused: JSON has neither."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` for a file or a folder, given its final name only when the block ends well."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    _remove(temporary)
    try:
        yield temporary
        _flush(temporary)
        if temporary.is_dir() and path.is_dir():
            shutil.rmtree(path)
        os.replace(temporary, path)
    finally:
        _remove(temporary)


REFUSALS = frozenset(
    {errno.EACCES, errno.EDQUOT, errno.EEXIST, errno.EFBIG, errno.EIO, errno.EISDIR, errno.ENAMETOOLONG, errno.ENOSPC,
     errno.ENOTDIR, errno.EPERM, errno.EROFS}
)  # fmt: skip
"""A disk's or a folder's ways to say no."""
OF_WRITING = frozenset({errno.EDQUOT, errno.EEXIST, errno.EFBIG, errno.ENOSPC, errno.EROFS})
"""Those among them that nothing but writing meets."""


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """What the disk refuses within the block (it is full, or not ours to write on, or to read) is an error of the user's, and no
    bug."""
    try:
        yield
    except OSError as error:
        if error.errno not in REFUSALS:
            raise
        place = error.filename if isinstance(error.filename, str) else str(folder)
        read = error.errno not in OF_WRITING and _lies_outside(place, folder)
        hint = f"ls -l {shlex.quote(place)}" if read else f"df -h .; ls -ld {shlex.quote(str(folder.parent))}"
        raise ExportError(
            f"cannot be {'read' if read else 'written'}: {error.strerror}", where=place, hint=hint
        ) from error


def _lies_outside(place: str, folder: Path) -> bool:
    """Whether this is there already, and not in the folder that is written: new files get temporary names."""
    return os.path.lexists(place) and not Path(place).absolute().is_relative_to(folder.absolute())


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    files = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
    for file in files:
        with file.open("rb") as handle:
            os.fsync(handle.fileno())


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, as hex."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
