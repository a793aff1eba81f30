"""The training step: a recipe becomes a run folder with a trained adapter. It evaluates and exports nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit import console
from toolkit.atomic import replacing, write_json
from toolkit.engine.trackers import require_tracker
from toolkit.errors import EngineError, Stopped
from toolkit.estimate.exhausted import Meter, explained
from toolkit.health import Watch
from toolkit.hubapi import CheckpointUploads, require_access
from toolkit.parallel.collective import end, lost_processes
from toolkit.parallel.environment import first, place
from toolkit.preflight import require_ready, require_sound_rewards
from toolkit.preflight.installed import require_versions
from toolkit.preflight.shares import require_shares
from toolkit.recipe.plan import plan, plan_lines
from toolkit.rundir import RunDir, holding, new_run
from toolkit.tasks.halves import overlap
from toolkit.train.display import Display
from toolkit.train.follow import follow
from toolkit.train.heldout import HeldOut, warn_of_selection
from toolkit.train.record import Recorder, last_checkpoint, manifest, read_state, step_of, write_state
from toolkit.train.rows import require_a_step, short_enough, worked_examples
from toolkit.train.signals import StopRequest, stop_on_signals
from toolkit.train.stages import join, reinforce, same_rows, warm_up

if TYPE_CHECKING:
    from toolkit.engine.load import Policy
    from toolkit.engine.rollout import Entry
    from toolkit.recipe import Loaded, Recipe
    from toolkit.tasks import Row


def train(loaded: Loaded, *, resume: Path | None = None, then: str = "train") -> Path:
    """Train the recipe into a new run, or continue `resume` where it was stopped. Returns the run's folder.

    `then`: the last of the stages that follow at once; what they lack is an error before anything is loaded.
    Stopped (exit code 130) after Ctrl-C or SIGTERM: the step is finished and saved first.
    In one of several processes (`toolkit.parallel`) the first one does this, and the others follow it.
    """
    if not first():
        return follow(loaded)
    if resume and read_state(RunDir(resume))["state"] == "done":
        raise EngineError("this run is finished", where=str(resume), hint=f"toolkit eval {resume}")
    require_versions(loaded.recipe)
    require_access(loaded.recipe)
    require_tracker(loaded.recipe.report_to)
    require_shares(loaded.recipe, place().world)
    known = require_ready(loaded, then=then)
    run = RunDir(resume) if resume else new_run(loaded.name)
    if not resume:
        write_json(run.recipe, loaded.recipe.model_dump(mode="json"))
    console.say(f"run: {console.untrusted(run.path)}")
    with holding(run):
        return _recorded(run, loaded.recipe, known)


def _recorded(run: RunDir, recipe: Recipe, known: dict[str, Any]) -> Path:
    """The training, with its state in the run's record whatever its end."""
    write_state(run, "running")
    try:
        go_on = f"toolkit train --resume {run.path}"
        with stop_on_signals() as request, explained(recipe, go_on=go_on) as meter, lost_processes(go_on):
            kept = _train(run, recipe, request, known, meter)
    except Stopped:
        write_state(run, "stopped")
        raise
    except BaseException:
        write_state(run, "failed")
        raise
    write_state(run, "done", **({} if kept is None else {"kept_step": kept}), peak_memory_gib=meter.peaks)
    end()
    return run.path


def _train(run: RunDir, recipe: Recipe, request: StopRequest, known: dict[str, Any], meter: Meter) -> int | None:
    """Which step's adapter was kept, where the recipe asks for the best; else None. `known`: what the preflight found out."""
    rows, heldout = recipe.task.rows("train"), recipe.task.rows("heldout")
    _say_notices(recipe)
    _warn_of_overlap(rows, heldout)
    warn_of_selection(recipe, heldout)
    require_a_step(recipe, rows)
    examples = worked_examples(recipe, rows)
    _say_plan(recipe, rows)
    require_sound_rewards(recipe, [*rows, *heldout])
    join(recipe, run)
    from toolkit.engine.load import add_adapter, load_policy
    from toolkit.engine.sampler import prepare

    policy = load_policy(recipe)
    prepare(policy)
    meter.note("model loaded", policy.machine)
    for change in policy.setting.changes:
        console.say(f"{change.key}: {change.used} instead of {change.asked} ({change.why})")
    kept = same_rows(short_enough(policy, recipe, rows), rows)
    record = manifest(recipe, policy, kept=kept, read=len(rows), heldout=heldout)
    write_json(run.manifest, {**record, "preflight": known})
    add_adapter(policy, recipe)
    with CheckpointUploads(run, recipe.hub, lambda: last_checkpoint(run)) as uploads, Display(recipe) as display:
        _warm_up(run, recipe, policy, examples, request, display)
        meter.note("warm-up", policy.machine)
        kept_step = _reinforce(run, recipe, policy, kept, request, display, uploads)
        meter.note("GRPO", policy.machine)
        return kept_step


def _say_notices(recipe: Recipe) -> None:
    """What was renamed, replaced or left out when the rows were made."""
    for notice in dict.fromkeys([*recipe.task.notices("train"), *recipe.task.notices("heldout")]):
        console.note(console.untrusted(notice))


def _warn_of_overlap(rows: Sequence[Row], heldout: Sequence[Row]) -> None:
    found = overlap(rows, heldout)
    if found.exact or found.folded:
        near = f", {found.folded} more but for case and spacing" if found.folded else ""
        console.warn(f"{found.exact} training rows are also held out{near}: the evaluation will measure memory, too")


def _say_plan(recipe: Recipe, rows: Sequence[Row]) -> None:
    from toolkit.engine.load import import_unsloth
    from toolkit.engine.machine import batch_rows, this_machine

    import_unsloth(standby=recipe.model.standby)  # before torch, which says what machine this is
    machine = this_machine()
    rows_a_pass = batch_rows(recipe, machine)
    for line in plan_lines(plan(recipe, len(rows), batch_rows=rows_a_pass, processes=machine.processes)):
        console.say(line)


def _warm_up(
    run: RunDir, recipe: Recipe, policy: Policy, examples: list[Any], request: StopRequest, display: Display
) -> None:
    """The supervised pass, or its adapter where an interrupted run already has it."""
    from toolkit.engine.load import save_adapter

    if recipe.warmup is None:
        return
    recorder = Recorder(run, "warmup")
    if not run.warmup_adapter.is_dir():
        recorder.rewind(None)

    def record(step: int, logs: dict[str, Any]) -> None:
        display.warmup(recorder.warmup_step(step, logs))

    made = warm_up(run, recipe, policy, examples, request, record=record)
    if made is False:
        raise Stopped("stopped during the warm-up", hint=f"toolkit train --resume {run.path}")
    if made:
        with replacing(run.warmup_adapter) as folder:
            save_adapter(policy, recipe, folder)


def _reinforce(
    run: RunDir,
    recipe: Recipe,
    policy: Policy,
    rows: list[Row],
    request: StopRequest,
    display: Display,
    uploads: CheckpointUploads,
) -> int | None:
    from toolkit.engine.load import adapter_fingerprint

    untrained = adapter_fingerprint(policy.model)
    checkpoint = last_checkpoint(run)
    recorder = Recorder(run, "grpo")
    recorder.rewind(checkpoint)
    watch = Watch(run)
    heldout = HeldOut(run, recipe, policy, recorder, display)

    def record(step: int, logs: dict[str, Any], table: list[Entry]) -> bool:
        metrics = recorder.grpo_step(step, logs, table)
        display.step(metrics)
        display.findings(watch.step(metrics, table, recorder.evaluations()))
        uploads.look()
        return heldout.after(step)

    heldout.start()
    # The trainer would make one step more.
    trained = bool(checkpoint and (step_of(checkpoint) >= recipe.grpo.max_steps or heldout.ended()))
    reached = reinforce(run, recipe, policy, rows, request, checkpoint=checkpoint, trained=trained, record=record)
    if not reached and not heldout.ended():
        raise Stopped("stopped; the last step is saved", hint=f"toolkit train --resume {run.path}")
    if not recorder.was_judged():
        hint = f"what each reward needs, and pays: toolkit check {run.recipe}"
        raise EngineError("nothing was learned: no reward could judge any completion", where=str(run.path), hint=hint)
    # Weight decay alone moves an adapter, so a changed one is no proof that a reward was heard.
    if not recorder.saw_spread() or adapter_fingerprint(policy.model) == untrained:
        hint = f"no group had any spread in its rewards: toolkit check {run.recipe}"
        raise EngineError("nothing was learned", where=str(run.path), hint=hint)
    return _save(run, recipe, policy, heldout)


def _save(run: RunDir, recipe: Recipe, policy: Policy, heldout: HeldOut) -> int | None:
    """What was trained under its final name: the last step's, or the best one's, which step is returned."""
    from toolkit.engine.load import save_adapter

    if heldout.ended():
        heldout.say_why()
    best = heldout.best_step()
    if best is not None:
        heldout.adopt(best)
    with replacing(run.whole if recipe.model.full_finetuning else run.adapter) as folder:
        save_adapter(policy, recipe, folder)
    heldout.forget()
    return best


__all__ = ["train"]
