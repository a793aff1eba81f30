"""The training step: a recipe becomes a run folder with a trained adapter. It evaluates and exports nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit import console
from toolkit.engine.trackers import require_tracker
from toolkit.errors import DataError, EngineError, Stopped
from toolkit.estimate.exhausted import Meter, explained
from toolkit.health import Watch
from toolkit.hubapi import CheckpointUploads, require_access
from toolkit.preflight import require_ready, require_sound_rewards
from toolkit.preflight.installed import require_versions
from toolkit.recipe.plan import plan, plan_lines
from toolkit.rundir import RunDir, holding, new_run, replacing, write_json
from toolkit.tasks.halves import overlap
from toolkit.train.display import Display
from toolkit.train.heldout import HeldOut, warn_of_selection
from toolkit.train.record import Recorder, last_checkpoint, manifest, read_state, step_of, write_state
from toolkit.train.signals import StopRequest, stop_on_signals

if TYPE_CHECKING:
    from toolkit.engine.load import Policy
    from toolkit.engine.rollout import Entry
    from toolkit.recipe import Loaded, Recipe
    from toolkit.tasks import Row


def train(loaded: Loaded, *, resume: Path | None = None, then: str = "train") -> Path:
    """Train the recipe into a new run, or continue `resume` where it was stopped. Returns the run's folder.

    `then`: the last of the stages that follow at once; what they lack is an error before anything is loaded.
    Stopped (exit code 130) after Ctrl-C or SIGTERM: the step is finished and saved first.
    """
    if resume and read_state(RunDir(resume))["state"] == "done":
        raise EngineError("this run is finished", where=str(resume), hint=f"toolkit eval {resume}")
    require_versions(loaded.recipe)
    require_access(loaded.recipe)
    require_tracker(loaded.recipe.report_to)
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
        with stop_on_signals() as request, explained(recipe, go_on=go_on) as meter:
            kept = _train(run, recipe, request, known, meter)
    except Stopped:
        write_state(run, "stopped")
        raise
    except BaseException:
        write_state(run, "failed")
        raise
    write_state(run, "done", **({} if kept is None else {"kept_step": kept}), peak_memory_gib=meter.peaks)
    return run.path


def _train(run: RunDir, recipe: Recipe, request: StopRequest, known: dict[str, Any], meter: Meter) -> int | None:
    """Which step's adapter was kept, where the recipe asks for the best; else None. `known`: what the preflight found out."""
    rows, heldout = recipe.task.rows("train"), recipe.task.rows("heldout")
    _say_notices(recipe)
    _warn_of_overlap(rows, heldout)
    warn_of_selection(recipe, heldout)
    _require_a_step(recipe, rows)
    examples = _examples(recipe, rows)
    _say_plan(recipe, rows)
    require_sound_rewards(recipe, [*rows, *heldout])
    from toolkit.engine.load import add_adapter, load_policy
    from toolkit.engine.sampler import prepare

    policy = load_policy(recipe)
    prepare(policy)
    meter.note("model loaded", policy.machine)
    for change in policy.setting.changes:
        console.say(f"{change.key}: {change.used} instead of {change.asked} ({change.why})")
    kept = _short_enough(policy, recipe, rows)
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
    for line in plan_lines(plan(recipe, len(rows), batch_rows=batch_rows(recipe, this_machine()))):
        console.say(line)


def _require_a_step(recipe: Recipe, rows: Sequence[Row]) -> None:
    if len(rows) < recipe.grpo.prompts_per_step:
        hint = "lower grpo.prompts_per_step, or raise grpo.max_prompt_length where prompts were too long"
        raise DataError(f"one step needs {recipe.grpo.prompts_per_step} rows, and there are {len(rows)}", hint=hint)


def _examples(recipe: Recipe, rows: Sequence[Row]) -> list[tuple[Row, str]]:
    """The worked solutions that the warm-up reads: none where the recipe has no warm-up."""
    if recipe.warmup is None:
        return []
    worked = [(row, text) for row in rows if (text := recipe.task.worked(row)) is not None]
    if len(worked) < recipe.warmup.batch_size:
        raise DataError(
            f"warmup: a step needs {recipe.warmup.batch_size} worked solutions, the task has {len(worked)}",
            hint="remove the recipe's warmup section, or take a task with solutions",
        )
    return worked[: recipe.warmup.rows]


def _short_enough(policy: Policy, recipe: Recipe, rows: Sequence[Row]) -> list[Row]:
    limit = recipe.grpo.max_prompt_length
    kept = [row for row in rows if len(policy.prompt_ids(recipe.task.messages(row))) <= limit]
    if len(kept) < len(rows):
        console.warn(f"{len(rows) - len(kept)} of {len(rows)} rows have prompts over {limit} tokens and are left out")
    _require_a_step(recipe, kept)
    return kept


def _warm_up(
    run: RunDir, recipe: Recipe, policy: Policy, examples: list[Any], request: StopRequest, display: Display
) -> None:
    """The supervised pass, or its adapter where an interrupted run already has it."""
    from toolkit.engine.load import read_adapter_weights, save_adapter
    from toolkit.engine.trainers import run_warmup

    if recipe.warmup is None:
        return
    if run.warmup_adapter.is_dir():
        read_adapter_weights(policy, run.warmup_adapter)
        return
    chats = [(recipe.task.messages(row), text) for row, text in examples]
    recorder = Recorder(run, "warmup")
    recorder.rewind(None)

    def on_step(step: int, logs: dict[str, Any]) -> bool:
        display.warmup(recorder.warmup_step(step, logs))
        return request.asked

    run_warmup(policy, recipe, chats, run.path / ".warmup", on_step)
    if request.asked:
        raise Stopped("stopped during the warm-up", hint=f"toolkit train --resume {run.path}")
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
    from toolkit.engine.load import adapter_fingerprint, read_adapter_weights
    from toolkit.engine.trainers import run_grpo

    untrained = adapter_fingerprint(policy.model)
    checkpoint = last_checkpoint(run)
    recorder = Recorder(run, "grpo")
    recorder.rewind(checkpoint)
    watch = Watch(run)
    heldout = HeldOut(run, recipe, policy, recorder, display)

    def on_step(step: int, logs: dict[str, Any], table: list[Entry]) -> bool:
        metrics = recorder.grpo_step(step, logs, table)
        display.step(metrics)
        display.findings(watch.step(metrics, table, recorder.evaluations()))
        uploads.look()
        return heldout.after(step) or request.asked

    heldout.start()
    # The trainer would make one step more.
    if checkpoint and (step_of(checkpoint) >= recipe.grpo.max_steps or heldout.ended()):
        read_adapter_weights(policy, checkpoint)
    elif not run_grpo(policy, recipe, rows, run.checkpoints, on_step, resume=checkpoint) and not heldout.ended():
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
