"""Lists the runs, and finds what could be removed to free space. It removes only what it has named, and never an export."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from toolkit import console
from toolkit.atomic import read_json
from toolkit.errors import ToolkitError
from toolkit.report.records import metric_lines
from toolkit.rundir import RUNS, RunDir, is_held, recipe_of

SCHEMA = 1
LAST_STEPS = 10
"""The reward of a run is the mean over so many of its last steps: one step's is mostly chance."""


@dataclass(frozen=True, slots=True)
class RunLine:
    """One run as the list shows it."""

    run: str
    recipe: str
    state: str
    """running, done, stopped, failed, or killed: its record says running, and no process holds it."""
    steps: int
    of: int | None
    reward: float | None
    accuracy: float | None
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Removal:
    """Something that `clean` would remove, and why nothing is lost with it."""

    path: Path
    what: str
    size_bytes: int


def list_runs(runs: Path = RUNS) -> list[RunLine]:
    """Every run, the one that began last first."""
    return [_line(run) for run in sorted(_folders(runs), key=_begun, reverse=True)]


def show_runs(lines: list[RunLine]) -> None:
    """The list as a table."""
    if not lines:
        console.say("there are no runs yet: toolkit train")
        return
    heads = ("run", "recipe", "state", "steps", "reward", "right", "size")
    console.table("", heads, map(_cells, lines))


def runs_json(lines: list[RunLine]) -> dict[str, Any]:
    """The list for a program."""
    return {"schema_version": SCHEMA, "runs": [asdict(line) for line in lines]}


def removable(runs: Path = RUNS, *, failed: bool = False) -> list[Removal]:
    """Checkpoints of runs that went to their end, and runs that failed or were killed and left no checkpoint to go on from.

    `failed`: those that left one, too. A run that a process holds is left alone, and so is what is a link.
    """
    return [removal for run in sorted(_folders(runs)) for removal in _removals(RunDir(run), failed=failed)]


def clean(removals: list[Removal]) -> int:
    """Remove these; how many bytes that freed. What a process has taken hold of since is an error, and stays."""
    for removal in removals:
        run = removal.path if RunDir(removal.path).recipe.is_file() else removal.path.parent
        if is_held(RunDir(run)):
            raise ToolkitError("is in use by a process and was left alone", where=str(run), hint="toolkit runs")
        try:
            shutil.rmtree(removal.path)
        except OSError as error:
            raise ToolkitError(f"cannot be removed: {error.strerror}", where=str(removal.path)) from error
    return sum(removal.size_bytes for removal in removals)


def show_removals(removals: list[Removal], *, removed: bool, command: str) -> None:
    """What was removed, or would be by this command."""
    if not removals:
        console.say("nothing to remove")
        return
    rows = [(console.untrusted(item.path), item.what, size_text(item.size_bytes)) for item in removals]
    console.table("removed" if removed else "would be removed", ("folder", "what", "size"), rows)
    total = size_text(sum(item.size_bytes for item in removals))
    console.say(f"freed {total}" if removed else f"frees {total}: [green]{command}[/]")


def state_of(run: RunDir) -> str:
    """What the record says, but that a run whose process is gone was killed."""
    try:
        state = str(read_json(run.state)["state"])
    except (ToolkitError, KeyError, TypeError):
        return "unknown"
    return "killed" if state == "running" and not is_held(run) else state


def size_text(size: int) -> str:
    """Bytes for readers, in powers of ten."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size / 1000:.0f} kB"


def _folders(runs: Path) -> Iterator[Path]:
    if runs.is_dir():
        yield from (path for path in runs.iterdir() if not path.is_symlink() and RunDir(path).recipe.is_file())


def _begun(run: Path) -> float:
    return RunDir(run).recipe.stat().st_mtime


def _line(path: Path) -> RunLine:
    run = RunDir(path)
    steps = [line for line in metric_lines(run.metrics) if line.get("stage") == "grpo"]
    rewards = [line["reward"] for line in steps if line.get("reward") is not None][-LAST_STEPS:]
    return RunLine(
        run=path.name,
        recipe=recipe_of(path),
        state=state_of(run),
        steps=max((line["step"] for line in steps), default=0),
        of=_record(run.recipe).get("grpo", {}).get("max_steps"),
        reward=statistics.fmean(rewards) if rewards else None,
        accuracy=_record(run.evaluation).get("models", {}).get("tuned", {}).get("accuracy"),
        size_bytes=_size(path),
    )


def _record(path: Path) -> dict[str, Any]:
    """A record, empty where it is missing or broken: one spoiled run must not hide the others."""
    try:
        found = read_json(path)
    except ToolkitError:
        return {}
    return found if isinstance(found, dict) else {}


def _cells(line: RunLine) -> tuple[Any, ...]:
    colour = {"done": "green", "failed": "red", "killed": "red", "stopped": "yellow"}.get(line.state, "cyan")
    return (
        console.untrusted(line.run),
        console.untrusted(line.recipe),
        f"[{colour}]{console.untrusted(line.state)}[/]",
        f"{line.steps}/{line.of}" if line.of else str(line.steps),
        None if line.reward is None else f"{line.reward:.3g}",
        None if line.accuracy is None else f"{line.accuracy:.1%}",
        size_text(line.size_bytes),
    )


def _removals(run: RunDir, *, failed: bool) -> Iterator[Removal]:
    state = state_of(run)
    if is_held(run):
        return
    if state == "done" and run.adapter.is_dir():
        if _own_folder(run.checkpoints):
            what = "checkpoints of a run that is done (for eval --checkpoint); its adapter stays"
            yield Removal(run.checkpoints, what, _size(run.checkpoints))
    elif state in ("failed", "killed", "unknown") and not run.adapter.exists():
        left = bool(run.checkpoint_folders())
        if failed or not left:
            what = f"a run that is {state}" + ("" if left else ", with nothing to go on from")
            yield Removal(run.path, what, _size(run.path))


def _own_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _size(path: Path) -> int:
    """Of the files below, links not followed; one that goes away meanwhile counts nothing."""
    total = 0
    for file in path.rglob("*"):
        try:
            total += file.lstat().st_size if file.is_symlink() or file.is_file() else 0
        except OSError:
            continue
    return total
