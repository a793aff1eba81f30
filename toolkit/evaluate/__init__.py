"""The evaluation step: base, warmed-up and tuned model on the same held-out rows, paired. It trains and exports nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit import console
from toolkit.errors import DataError, ToolkitError
from toolkit.evaluate.record import evaluation_record, show, write_answers
from toolkit.evaluate.totals import with_totals
from toolkit.rundir import RunDir, write_json

if TYPE_CHECKING:
    from toolkit.engine.generate import Completion
    from toolkit.engine.load import Policy
    from toolkit.recipe import Recipe
    from toolkit.rewards import RewardBase
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
    record, answers = _asked(run, recipe, rows)
    write_answers(run.eval_completions, answers)
    write_json(run.evaluation, record)
    show(record)
    return record


def _asked(run: RunDir, recipe: Recipe, rows: Sequence[Row]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The record, and every answer of every model."""
    from toolkit.engine.load import load_policy
    from toolkit.engine.surroundings import surroundings

    policy = load_policy(recipe)
    around = surroundings(recipe, policy)
    rewards = [reward.within(around) for reward in recipe.rewards]
    for reward in rewards:
        reward.ready(rows)
    prompts = [policy.prompt_ids(recipe.task.messages(row)) for row in rows]
    answers = []
    for name in _models(run, policy):
        console.say(f"evaluating {name}: {len(rows)} rows, {recipe.eval.samples} samples each")
        answers += _answers(policy, recipe, rewards, name, rows, _drawn(policy, recipe, name, prompts))
    answers = with_totals(answers, {reward.name: reward.weight for reward in recipe.rewards})
    return evaluation_record(recipe, answers, prompts), answers


def _models(run: RunDir, policy: Policy) -> list[str]:
    """Load the run's adapters; the names of the models that can then be asked, worst first."""
    from toolkit.engine.load import load_adapter

    names = ["base"]
    for name, folder in (("warmup", run.warmup_adapter), ("tuned", run.adapter)):
        if folder.is_dir():
            load_adapter(policy, folder, name)
            names.append(name)
    return names


def _drawn(policy: Policy, recipe: Recipe, name: str, prompts: Sequence[Sequence[int]]) -> list[Completion]:
    """One model's answers: the greedy one of a row first, then those sampled at the training temperature."""
    from toolkit.engine.arguments import training_sampling
    from toolkit.engine.generate import generate
    from toolkit.engine.load import for_generation

    with for_generation(policy, None if name == "base" else name) as model:
        return generate(
            model,
            prompts,
            training_sampling(recipe, policy.stop_token_ids),
            samples=recipe.eval.samples,
            seed=recipe.seed,
            batch_rows=recipe.eval.batch_size,
            greedy_too=recipe.eval.greedy,
        )


def _answers(
    policy: Policy,
    recipe: Recipe,
    rewards: Sequence[RewardBase],
    name: str,
    rows: Sequence[Row],
    drawn: Sequence[Completion],
) -> list[dict[str, Any]]:
    """One model's answers, graded where the task has golds, with what each reward says of them."""
    from toolkit.engine.rollout import judged

    texts = [policy.text(completion.token_ids) for completion in drawn]
    asked = [rows[completion.prompt_index] for completion in drawn]
    ids = [completion.token_ids for completion in drawn]
    paid = {f"reward/{reward.name}": judged(reward, texts, asked, ids) for reward in rewards}
    first = GREEDY if recipe.eval.greedy else 0
    return [
        {
            "model": name,
            "row_id": row.id,
            "question": row.question,
            "gold": row.gold,
            "sample": first + number % (recipe.eval.samples - first),
            "completion": text,
            **(_graded(recipe.task.grade(text, row)) if recipe.task.graded else {}),
            "tokens": len(completion.token_ids),
            "truncated": completion.truncated,
            **{key: values[number] for key, values in paid.items()},
        }
        for number, (completion, row, text) in enumerate(zip(drawn, asked, texts, strict=True))
    ]


def _graded(grade: Grade) -> dict[str, bool]:
    return {"strict": grade.strict, "lenient": grade.lenient, "well_formed": grade.well_formed}
