"""Warm-up and GRPO as every process of a training goes through them, in step with the others. What is recorded, the caller says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.errors import EngineError
from toolkit.parallel.collective import any_process, from_first, gathered, start
from toolkit.rundir import RunDir

if TYPE_CHECKING:
    from toolkit.engine.load import Policy
    from toolkit.engine.rollout import Entry
    from toolkit.recipe import Recipe
    from toolkit.tasks import Row
    from toolkit.train.signals import StopRequest


def join(recipe: Recipe, run: RunDir | None) -> RunDir:
    """Meet the other processes, where there are any: the first one's run is everybody's."""
    from toolkit.engine.load import import_unsloth

    import_unsloth(standby=recipe.model.standby)  # before torch
    start()
    return RunDir(Path(from_first(str(run.path) if run else "")))


def same_rows(kept: Sequence[Row], rows: Sequence[Row]) -> list[Row]:
    """The rows that the first process `kept`, of those that this one read."""
    known = {row.id: row for row in rows}
    wanted = from_first([row.id for row in kept])
    if not known.keys() >= set(wanted):
        raise EngineError("this process reads other rows than the first one", hint="the same data in every place")
    return [known[row_id] for row_id in wanted]


def warm_up(
    run: RunDir,
    recipe: Recipe,
    policy: Policy,
    examples: Sequence[tuple[list[dict[str, str]], str]],
    request: StopRequest,
    *,
    record: Callable[[int, dict[str, Any]], object] = lambda *_: None,
) -> bool | None:
    """Whether the supervised pass was made to its end; None where an interrupted run has its adapter already, which is read."""
    from toolkit.engine.load import read_adapter_weights
    from toolkit.engine.trainers import run_warmup

    if from_first(run.warmup_adapter.is_dir()):
        read_adapter_weights(policy, _seen_here(run.warmup_adapter))
        return None
    stopped = False

    def on_step(step: int, logs: dict[str, Any]) -> bool:
        nonlocal stopped
        record(step, logs)
        stopped = any_process(request.asked)
        return stopped

    run_warmup(policy, recipe, examples, run.path / ".warmup", on_step)
    return not stopped


def reinforce(
    run: RunDir,
    recipe: Recipe,
    policy: Policy,
    rows: Sequence[Row],
    request: StopRequest,
    *,
    checkpoint: Path | None = None,
    trained: bool = False,
    record: Callable[[int, dict[str, Any], list[Entry]], bool] = lambda *_: False,
) -> bool:
    """GRPO from `checkpoint` on, unless the run is `trained`: both as the first process says. False where it was stopped early.

    `record` gets each step's number, logs and the completions of all processes; True asks to stop.
    """
    from toolkit.engine.load import read_adapter_weights
    from toolkit.engine.trainers import run_grpo

    checkpoint, trained = from_first((checkpoint, trained))
    if checkpoint and trained:
        read_adapter_weights(policy, _seen_here(checkpoint))
        return True

    def on_step(step: int, logs: dict[str, Any], table: list[Entry]) -> bool:
        everybodys = [entry for part in gathered(table) for entry in part]
        return any_process(record(step, logs, everybodys) or request.asked)

    return run_grpo(policy, recipe, rows, run.checkpoints, on_step, resume=checkpoint and _seen_here(checkpoint))


def _seen_here(folder: Path) -> Path:
    if not folder.is_dir():
        hint = "several machines go on with a run only where its folder is on a file system that all of them see"
        raise EngineError("this machine does not see the run's folder", where=str(folder), hint=hint)
    return folder
