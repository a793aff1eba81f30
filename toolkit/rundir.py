"""Every artefact's path by name, and writing that leaves no half file under a final name.

A run is `runs/<recipe>-<time>/`, an export `exports/<run>/`. What the files mean stands in the steps that write them.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.errors import ToolkitError

SCHEMA = 1
"""Version of the JSON records (`recipe.json` excepted: it is the recipe itself)."""

RUNS = Path("runs")
EXPORTS = Path("exports")


@dataclass(frozen=True, slots=True)
class RunDir:
    """The files of one run, by name."""

    path: Path

    @property
    def recipe(self) -> Path:
        """The resolved recipe: written first."""
        return self.path / "recipe.json"

    @property
    def manifest(self) -> Path:
        """Versions, machine, data and base model, and every value the machine made the toolkit change."""
        return self.path / "manifest.json"

    @property
    def state(self) -> Path:
        """Whether the run is running, stopped, done or failed, and at which step."""
        return self.path / "state.json"

    @property
    def metrics(self) -> Path:
        """One JSON object a step."""
        return self.path / "metrics.jsonl"

    @property
    def completions(self) -> Path:
        """A folder with one parquet file a step."""
        return self.path / "completions"

    @property
    def checkpoints(self) -> Path:
        """What an interrupted run continues from."""
        return self.path / "checkpoints"

    @property
    def warmup_adapter(self) -> Path:
        """The adapter after the supervised pass: complete or absent."""
        return self.path / "warmup"

    @property
    def adapter(self) -> Path:
        """The trained adapter: complete or absent."""
        return self.path / "adapter"

    @property
    def evaluation(self) -> Path:
        """The record of `toolkit eval`."""
        return self.path / "eval.json"

    @property
    def eval_completions(self) -> Path:
        """Every completion of the evaluation, one row each."""
        return self.path / "eval_completions.parquet"


def new_run(recipe_name: str, runs: Path = RUNS) -> RunDir:
    """Make a fresh folder; the name carries the local time, and a number where two runs start in one second."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for suffix in ("", *(f"-{number}" for number in range(2, 100))):
        path = runs / f"{recipe_name}-{stamp}{suffix}"
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise ToolkitError(
                f"cannot be made: {error.strerror}", where=str(path), hint="df -h .; ls -ld ."
            ) from error
        return RunDir(path)
    raise ToolkitError("too many runs in one second", where=str(runs))


def newest_run(runs: Path = RUNS) -> Path | None:
    """The newest run that was trained to its end, or was stopped with something to evaluate."""
    return _newest(runs, lambda path: RunDir(path).adapter.is_dir())


def newest_export(exports: Path = EXPORTS) -> Path | None:
    """The newest export with a manifest, which is written last."""
    return _newest(exports, lambda path: (path / "manifest.json").is_file())


def _newest(parent: Path, complete: Callable[[Path], bool]) -> Path | None:
    if not parent.is_dir():
        return None
    found = [path for path in parent.iterdir() if path.is_dir() and complete(path)]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


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


def cache_folder() -> Path:
    """Where converted base models are kept: $TOOLKIT_CACHE, else below the user's cache folder."""
    given = os.environ.get("TOOLKIT_CACHE")
    base = (
        Path(given)
        if given
        else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "grpo-toolkit"
    )
    return base
