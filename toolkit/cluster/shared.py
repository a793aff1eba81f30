"""The folder that a job's runs lie in, which all its machines must see: made known to them, and recognised there."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from toolkit.errors import ToolkitError

MARK = "here"


@contextmanager
def marked(folder: str) -> Iterator[str]:
    """A scratch folder in it while the block runs, with a mark by which other machines see that it is the same one."""
    try:
        os.makedirs(folder, exist_ok=True)
        scratch = tempfile.mkdtemp(prefix=".ray-", dir=folder)
    except OSError as error:
        raise ToolkitError(f"cannot be written: {error.strerror}", where=folder, hint="--storage FOLDER") from error
    try:
        Path(scratch, MARK).touch()
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def require_shared(scratch: str) -> None:
    """On a worker's machine: ToolkitError where this is another folder than the one that was marked."""
    if not Path(scratch, MARK).is_file():
        what = "a machine of the cluster does not see this folder, in which the runs lie"
        hint = "work in a folder that all machines share, or name one: --storage FOLDER"
        raise ToolkitError(what, where=str(Path(scratch).parent), hint=hint)
