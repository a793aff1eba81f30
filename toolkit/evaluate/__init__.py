"""The evaluation step: base, warmed-up and tuned model on the same held-out rows, paired. It trains and exports nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from toolkit import console
from toolkit.atomic import write_json
from toolkit.errors import Stopped, ToolkitError
from toolkit.evaluate.asking import GREEDY, Asked, ask_models
from toolkit.evaluate.record import evaluation_record, hash_of, write_answers
from toolkit.evaluate.sets import EvaluationSet, chosen, overlap_record
from toolkit.evaluate.show import show
from toolkit.evaluate.totals import with_totals
from toolkit.rundir import RunDir

if TYPE_CHECKING:
    from toolkit.evaluate.progress import Progress
    from toolkit.recipe import Recipe

Checkpoints = Literal["all"] | Sequence[int]


def evaluate_run(
    path: Path,
    *,
    on: str | None = None,
    first: int | None = None,
    max_tokens: int | None = None,
    few_shot: int | None = None,
    samples: int | None = None,
    checkpoints: Checkpoints = (),
) -> dict[str, Any]:
    """Write the record and every answer of the run's models; return the record.

    `on`: a task or a recipe instead of the run's own held-out rows, in a record of its own; so does `first`, fewer rows.
    `few_shot`, `samples` and `max_tokens` replace the recipe's values. `checkpoints`: steps, or all that are there, as models.
    """
    run, recipe = _trained(path)
    changes = {"few_shot": few_shot, "samples": samples}
    changed = recipe.eval.model_copy(update={key: value for key, value in changes.items() if value is not None})
    recipe = recipe.model_copy(update={"eval": changed})
    evaluation = chosen(recipe, on=on, first=first, max_tokens=max_tokens)
    overlap = _overlap(recipe, evaluation)
    try:
        record, answers, progress = _asked(run, evaluation, checkpoints)
    except KeyboardInterrupt as stop:
        raise Stopped("stopped; what was answered is kept", hint="the same command goes on where it stopped") from stop
    record |= {"set": evaluation.name or "own", "overlap": overlap} | _selection(recipe, evaluation)
    write_answers(run.answers_of(evaluation.name), answers)
    write_json(run.evaluation_of(evaluation.name), record)
    progress.end()
    show(record)
    return record


def _trained(path: Path) -> tuple[RunDir, Recipe]:
    from toolkit.recipe import load_resolved

    run = RunDir(path)
    recipe = load_resolved(run.recipe).recipe
    if not run.adapter.is_dir():
        raise ToolkitError(
            "the run has no trained adapter or model", where=str(path), hint=f"toolkit train --resume {path}"
        )
    return run, recipe


def _overlap(recipe: Recipe, evaluation: EvaluationSet) -> dict[str, Any] | None:
    """How many of the rows were trained on, said before anything is asked; None where the training rows are not at hand."""
    asked = len(evaluation.rows)
    try:
        overlap = overlap_record(recipe.task.rows("train"), evaluation.rows)
    except ToolkitError as error:
        console.warn(console.untrusted(f"whether rows were trained on is not known: {error}"))
        return None
    found = overlap["exact"] + overlap["folded"]
    if found:
        ids = console.untrusted(", ".join(overlap["row_ids"][:3]))
        console.warn(f"{found} of {asked} rows stand among the training rows, too ({ids} …): they measure memory")
    else:
        console.note(f"none of the {asked} rows stands among the training rows")
    return overlap


def _asked(
    run: RunDir, evaluation: EvaluationSet, checkpoints: Checkpoints
) -> tuple[dict[str, Any], list[dict[str, Any]], Progress]:
    """The record, and every answer of every model."""
    from toolkit.engine.load import load_policy

    adapters = run.adapters(_steps(run, checkpoints))
    policy = load_policy(evaluation.recipe)
    answers, models, progress = ask_models(evaluation, policy, adapters, run.evaluating(evaluation.name))
    judged = [reward for reward in evaluation.recipe.rewards if f"reward/{reward.name}" in answers[0]]
    answers = with_totals(answers, {reward.name: reward.weight for reward in judged})
    recipe = evaluation.recipe.model_copy(update={"rewards": tuple(judged)})
    record = evaluation_record(recipe, answers, models["base"].prompts) | _few_shot(recipe, models)
    return record, answers, progress


def _steps(run: RunDir, checkpoints: Checkpoints) -> list[int]:
    there = list(run.checkpoint_folders())
    wanted = there if checkpoints == "all" else [int(step) for step in checkpoints]
    missing = [step for step in wanted if step not in there]
    if missing:
        found = ", ".join(map(str, there)) or "none"
        raise ToolkitError(
            f"there is no checkpoint of step {missing[0]}", where=str(run.path), hint=f"there are: {found}"
        )
    return wanted


def _few_shot(recipe: Recipe, models: dict[str, Asked]) -> dict[str, Any]:
    if "few_shot" not in models:
        return {}
    examples = {"examples": recipe.eval.few_shot, "prompts_sha256": hash_of(models["few_shot"].prompts)}
    return {"few_shot": examples}


def _selection(recipe: Recipe, evaluation: EvaluationSet) -> dict[str, Any]:
    """Whether rows asked here chose, during training, the checkpoint that is measured: then they flatter it."""
    if evaluation.name not in (None, f"first-{len(evaluation.rows)}"):
        return {}
    if not (recipe.eval.keep_best or recipe.eval.stop_after):
        return {}
    chose = {row.id for row in recipe.task.rows("heldout")[-recipe.eval.every_rows :]}
    both = sum(row.id in chose for row in evaluation.rows)
    if both:
        console.warn(f"{both} of these rows chose the checkpoint during training: on them it looks better than it is")
    return {"selected_on": {"rows": len(chose), "asked_here": both}}


__all__ = ["GREEDY", "evaluate_run"]
