"""The rows that a training uses: enough for a step, short enough for the recipe, with the solutions that the warm-up reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from toolkit import console
from toolkit.errors import DataError

if TYPE_CHECKING:
    from toolkit.engine.load import Policy
    from toolkit.recipe import Recipe
    from toolkit.tasks import Row


def require_a_step(recipe: Recipe, rows: Sequence[Row]) -> None:
    """DataError where the rows are too few for one step."""
    if len(rows) < recipe.grpo.prompts_per_step:
        hint = "lower grpo.prompts_per_step, or raise grpo.max_prompt_length where prompts were too long"
        raise DataError(f"one step needs {recipe.grpo.prompts_per_step} rows, and there are {len(rows)}", hint=hint)


def worked_examples(recipe: Recipe, rows: Sequence[Row]) -> list[tuple[list[dict[str, str]], str]]:
    """The prompts and worked solutions that the warm-up reads: none where the recipe has no warm-up."""
    if recipe.warmup is None:
        return []
    worked = [(row, text) for row in rows if (text := recipe.task.worked(row)) is not None]
    if len(worked) < recipe.warmup.batch_size:
        raise DataError(
            f"warmup: a step needs {recipe.warmup.batch_size} worked solutions, the task has {len(worked)}",
            hint="remove the recipe's warmup section, or take a task with solutions",
        )
    return [(recipe.task.messages(row), text) for row, text in worked[: recipe.warmup.rows]]


def short_enough(policy: Policy, recipe: Recipe, rows: Sequence[Row]) -> list[Row]:
    """The rows whose prompts are within the recipe's limit; how many are not is said."""
    limit = recipe.grpo.max_prompt_length
    kept = [row for row in rows if len(policy.prompt_ids(recipe.task.messages(row))) <= limit]
    if len(kept) < len(rows):
        console.warn(f"{len(rows) - len(kept)} of {len(rows)} rows have prompts over {limit} tokens and are left out")
    require_a_step(recipe, kept)
    return kept
