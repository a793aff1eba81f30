"""What is asked: the run's own held-out rows, or those of another task or recipe, by name. It loads no model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from toolkit.errors import DataError, ToolkitError, nearest
from toolkit.tasks import TASKS, Row, TaskBase, folded

if TYPE_CHECKING:
    from toolkit.recipe import Recipe

LONG_PROMPT = 1024
"""Tokens that a prompt of another task may have: the run's own limit is about its own prompts."""
NAMED = 20
"""Ids of rows that the record names at most."""


@dataclass(frozen=True)
class EvaluationSet:
    """Rows with the recipe that says how they are asked, judged and sampled. `name` None: the run's own."""

    name: str | None
    recipe: Recipe
    rows: list[Row]


def chosen(
    recipe: Recipe, *, on: str | None = None, first: int | None = None, max_tokens: int | None = None
) -> EvaluationSet:
    """The rows that the words mean.

    Another recipe brings its task, its rewards and its longest completion; a task's name brings the task, asked with the
    run's own system prompt. Both are asked whole, the run's own rows as many as eval.rows says; `first` takes fewer.
    """
    if on is None:
        name = None if first is None else f"first-{first}"
        wanted = first or recipe.eval.rows
        rows = recipe.task.rows("heldout")
        _require(wanted, rows, "eval.rows asks for" if first is None else "--first asks for")
        return EvaluationSet(name, _limited(recipe, recipe.grpo.max_prompt_length, max_tokens), rows[:wanted])
    other = _other(recipe, on)
    rows = other.task.rows("heldout")
    if first is not None:
        _require(first, rows, "--first asks for")
    return EvaluationSet(_slug(on), _limited(other, LONG_PROMPT, max_tokens), rows[:first])


def _require(wanted: int, rows: Sequence[Row], who: str) -> None:
    if len(rows) < wanted:
        hint = f"toolkit eval RUN --first {len(rows)}"
        raise DataError(f"{who} {wanted} rows, the task has {len(rows)} held out", hint=hint)


def _other(recipe: Recipe, on: str) -> Recipe:
    from toolkit.recipe import list_recipes, load_recipe

    recipes = [entry.name for entry in list_recipes()]
    if on in recipes or on.endswith((".yaml", ".yml")):
        other = load_recipe(on).recipe
        length = {"max_completion_length": other.grpo.max_completion_length}
        return _with(recipe, task=other.task, rewards=other.rewards, grpo=_with(recipe.grpo, **length))
    if on not in TASKS:
        near = nearest(on, [*TASKS, *recipes])
        hint = f"did you mean {near}?" if near else f"tasks: {', '.join(TASKS)}; recipes: toolkit recipes"
        raise ToolkitError(f"{on[:60]} is no task and no recipe", hint=hint)
    return _with(recipe, task=_named_task(on, recipe.task.system_text))


def _named_task(name: str, system_prompt: str) -> TaskBase:
    try:
        return TASKS[name].model_validate({"name": name, "system_prompt": system_prompt})
    except ValidationError as error:
        keys = ", ".join(str(item["loc"][-1]) if item["loc"] else item["msg"] for item in error.errors())
        hint = "write it into a recipe, then: toolkit eval RUN --on that-recipe.yaml"
        raise ToolkitError(f"the task {name} needs more than its name: {keys}", hint=hint) from error


def _limited(recipe: Recipe, prompt: int, max_tokens: int | None) -> Recipe:
    """With this longest completion, and a model that can read prompt and completion."""
    longest = max_tokens or recipe.grpo.max_completion_length
    room = max(recipe.model.max_seq_length, prompt + longest)
    grpo = _with(recipe.grpo, max_completion_length=longest)
    return _with(recipe, model=_with(recipe.model, max_seq_length=room), grpo=grpo)


def _with(section: Any, **changes: Any) -> Any:
    """A copy of a frozen section with other values, which are valid on their own."""
    return section.model_copy(update=changes)


def _slug(on: str) -> str:
    return re.sub(r"[^\w.-]+", "-", Path(on).stem if on.endswith((".yaml", ".yml")) else on)


def overlap_record(train: Sequence[Row], asked: Sequence[Row]) -> dict[str, Any]:
    """Rows asked here that are also training rows: letter by letter, or but for case and spacing."""
    texts = {row.text for row in train}
    keys = {folded(text) for text in texts}
    exact = [row.id for row in asked if row.text in texts]
    near = [row.id for row in asked if row.text not in texts and folded(row.text) in keys]
    return {"exact": len(exact), "folded": len(near), "row_ids": [*exact, *near][:NAMED]}
