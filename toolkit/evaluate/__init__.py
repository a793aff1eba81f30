"""The evaluation step: base, warmed-up and tuned model on the same held-out rows, paired. It trains and exports nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit import console
from toolkit.errors import DataError, ToolkitError
from toolkit.evaluate.record import evaluation_record, show, write_answers
from toolkit.rundir import RunDir, write_json

if TYPE_CHECKING:
    from toolkit.engine.load import Policy
    from toolkit.recipe import Recipe
    from toolkit.tasks import Grade, Row

GREEDY = -1
"""The sample number of the answer that was not sampled."""


def evaluate_run(path: Path) -> dict[str, Any]:
    """Write `eval.json` and every answer of the run's models; return the record."""
    from toolkit.recipe import load_resolved

    run = RunDir(path)
    recipe = load_resolved(run.recipe).recipe
    if not run.adapter.is_dir():
        raise ToolkitError("the run has no trained adapter", where=str(path), hint=f"toolkit train --resume {path}")
    rows = recipe.task.rows("heldout")[: recipe.eval.rows]
    if len(rows) < recipe.eval.rows:
        hint = f"toolkit eval after lowering eval.rows to {len(rows)}"
        raise DataError(f"eval.rows asks for {recipe.eval.rows} rows, the task has {len(rows)} held out", hint=hint)
    from toolkit.engine.load import load_policy

    policy = load_policy(recipe)
    prompts = [policy.prompt_ids(recipe.task.messages(row)) for row in rows]
    answers = [answer for name in _models(run, policy) for answer in _answers(policy, recipe, name, rows, prompts)]
    record = evaluation_record(recipe, answers, prompts)
    write_answers(run.eval_completions, answers)
    write_json(run.evaluation, record)
    show(record)
    return record


def _models(run: RunDir, policy: Policy) -> list[str]:
    """Load the run's adapters; the names of the models that can then be asked, worst first."""
    from toolkit.engine.load import load_adapter

    names = ["base"]
    for name, folder in (("warmup", run.warmup_adapter), ("tuned", run.adapter)):
        if folder.is_dir():
            load_adapter(policy, folder, name)
            names.append(name)
    return names


def _answers(
    policy: Policy, recipe: Recipe, name: str, rows: Sequence[Row], prompts: Sequence[Sequence[int]]
) -> Iterator[dict[str, Any]]:
    """Every answer of one model: the greedy one of a row first, then those sampled at the training temperature."""
    from toolkit.engine.arguments import training_sampling
    from toolkit.engine.generate import generate
    from toolkit.engine.load import for_generation

    console.say(f"evaluating {name}: {len(rows)} rows, {recipe.eval.samples} samples each")
    first = GREEDY if recipe.eval.greedy else 0
    with for_generation(policy, None if name == "base" else name) as model:
        drawn = generate(
            model,
            prompts,
            training_sampling(recipe, policy.stop_token_ids),
            samples=recipe.eval.samples,
            seed=recipe.seed,
            batch_rows=recipe.eval.batch_size,
            greedy_too=recipe.eval.greedy,
        )
    for number, completion in enumerate(drawn):
        row, text = rows[completion.prompt_index], policy.text(completion.token_ids)
        yield {
            "model": name,
            "row_id": row.id,
            "question": row.question,
            "gold": row.gold,
            "sample": first + number % (recipe.eval.samples - first),
            "completion": text,
            **_graded(recipe.task.grade(text, row)),
            "tokens": len(completion.token_ids),
            "truncated": completion.truncated,
        }


def _graded(grade: Grade) -> dict[str, bool]:
    return {"strict": grade.strict, "lenient": grade.lenient, "well_formed": grade.well_formed}
