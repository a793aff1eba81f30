"""A recipe's rewards beforehand: what they lack on this machine, and what the reward lint says. It trains nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from toolkit import console
from toolkit.errors import ToolkitError
from toolkit.preflight.finding import Finding

if TYPE_CHECKING:
    from toolkit.recipe import Recipe
    from toolkit.rewards import RewardBase
    from toolkit.rewards.lint import LintReport
    from toolkit.tasks.base import Row


def ready(recipe: Recipe, rows: Sequence[Row]) -> Iterator[Finding]:
    """What a reward that the lint leaves out lacks on this machine: a server that answers, room for its question."""
    for reward in bound_rewards(recipe):
        if not reward.asks_model:
            continue
        try:
            reward.ready(rows)
        except ToolkitError as error:
            yield Finding("rewards", reward.name, error.message, "failed", error.hint)


def linted(report: LintReport, *, graded: bool) -> Iterator[Finding]:
    """What the reward lint says. The faults of a published function that was asked for are warnings."""
    yield Finding("rewards", "rows tried", report.rows)
    totals = f"{report.lowest_total:g} to {report.highest_total:g}" if report.tried else "not known before"
    yield Finding("rewards", "lowest and highest total", totals)
    if graded:
        yield Finding("rewards", "share of the total that is for the right answer", f"{report.correctness_share:.0%}")
    for name in report.not_tried:
        yield Finding("rewards", name, "not tried: it asks a model")
    for problem in report.problems:
        stops = problem.level == "error" and not problem.legacy
        hint = "the reward was asked to be as published (legacy)" if problem.legacy else "toolkit rewards lint"
        yield Finding("rewards", problem.reward or "all", problem.message, "failed" if stops else "warning", hint)


def bound_rewards(recipe: Recipe) -> list[RewardBase]:
    """The recipe's rewards, able to count tokens and to ask the base model, which is loaded when first needed."""
    from toolkit.engine.surroundings import surroundings

    around = surroundings(recipe)
    return [reward.within(around) for reward in recipe.rewards]


def lint_rewards(recipe: Recipe, rows: Sequence[Row]) -> LintReport:
    """The reward lint over these rows."""
    from toolkit.rewards.lint import lint

    return lint(bound_rewards(recipe), rows, recipe.task)


def require_sound_rewards(recipe: Recipe, rows: Sequence[Row]) -> None:
    """The start of a training: a reward that could not work, or pays what it must not, is an error now, not after hours."""
    for reward in bound_rewards(recipe):
        reward.ready(rows)
    report = lint_rewards(recipe, rows)
    for problem in report.problems:
        if problem.level == "error" and not problem.legacy:
            raise ToolkitError(
                f"rewards: {problem.message}", hint="toolkit rewards lint RECIPE shows all that was tried"
            )
        console.warn(f"rewards: {problem.message}")
