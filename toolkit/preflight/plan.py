"""The arithmetic of a run beforehand: what one step is, and how much there will be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from toolkit.preflight.finding import Finding

if TYPE_CHECKING:
    from toolkit.recipe import Recipe
    from toolkit.tasks.base import Row


def planned(recipe: Recipe, train: Sequence[Row], heldout: Sequence[Row]) -> Iterator[Finding]:
    """Steps, completions, tokens, answers."""
    from toolkit.recipe.plan import plan

    grpo = recipe.grpo
    if recipe.warmup is not None:
        yield Finding("plan", "warm-up, worked solutions", recipe.warmup.rows)
    yield Finding("plan", "prompts per step", grpo.prompts_per_step)
    yield Finding("plan", "completions per prompt (group size)", grpo.num_generations)
    yield Finding("plan", "completions per step", grpo.completions_per_step)
    yield Finding("plan", "steps", grpo.max_steps)
    if len(train) >= grpo.prompts_per_step:
        figures = plan(recipe, len(train))
        yield Finding("plan", "steps per epoch", figures.steps_per_epoch)
        yield Finding("plan", "epochs", figures.epochs)
        yield Finding("plan", "completions in all", figures.generations * grpo.completions_per_step)
        if grpo.resample_rounds:
            yield Finding("plan", "… at most, where every group is drawn again", figures.completions_at_most)
        yield Finding("plan", "completion tokens in all, at most", figures.tokens_at_most)
    yield Finding("plan", "answers in the evaluation", answers(recipe, len(heldout)))


def answers(recipe: Recipe, heldout: int) -> int:
    """How many answers the evaluation asks for, of all models together."""
    models = 2 if recipe.warmup is None else 3
    return min(recipe.eval.rows, heldout) * (recipe.eval.samples + recipe.eval.greedy) * models
