"""Which variant of a sweep became which run: what lets the same sweep go on where it was left. It judges no result."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from toolkit.atomic import read_json, write_json
from toolkit.errors import ToolkitError
from toolkit.rundir import SCHEMA, RunDir, SweepDir

State = Literal["new", "begun", "trained", "done"]


class SweepRecord:
    """One record a recipe: a variant is known by its resolved recipe, so that a wider sweep repeats nothing either."""

    def __init__(self, sweep: SweepDir) -> None:
        self._file, self._folder = sweep.record, sweep.path.parents[1]
        known = read_json(self._file) if self._file.is_file() else {}
        self._runs: dict[str, dict[str, Any]] = known.get("variants", {})

    def run_of(self, fingerprint: str) -> Path | None:
        """The run of a variant, where it has begun and is still there."""
        found = self._runs.get(fingerprint)
        run = self._folder / found["run"] if found else None
        return run if run and RunDir(run).recipe.is_file() else None

    def note(self, fingerprint: str, run: str, label: str) -> Path:
        """As soon as the run's folder is there: from then on it can be resumed. `run`: as from where `runs/` lies."""
        self._runs[fingerprint] = {"run": run, "label": label}
        write_json(self._file, {"schema": SCHEMA, "variants": self._runs})
        return self._folder / run


def state_of(run: Path | None, *, to: str) -> State:
    """How far a variant is. The run's own files say it: `to` is the last stage that is wanted."""
    if run is None:
        return "new"
    folder = RunDir(run)
    if not folder.adapter.is_dir() or read_json(folder.state)["state"] != "done":
        return "begun"
    return "done" if to == "train" or folder.evaluation.is_file() else "trained"


@contextmanager
def held(sweep: SweepDir) -> Iterator[None]:
    """Within the block this process alone works on the sweeps of this recipe. It must see the folder, as the workers do."""
    try:
        sweep.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ToolkitError(
            f"cannot be made: {error.strerror}", where=str(sweep.path), hint="--storage FOLDER"
        ) from error
    with sweep.lock.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ToolkitError("another process sweeps this recipe", where=str(sweep.path)) from error
        yield
