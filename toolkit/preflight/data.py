"""A recipe's rows beforehand: how many, how long after the template, in which half, with which solutions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from toolkit.errors import DataError, EngineError, ToolkitError
from toolkit.preflight.finding import Finding, Status

if TYPE_CHECKING:
    from toolkit.engine.tokenizer import ChatTemplate
    from toolkit.recipe import Recipe
    from toolkit.tasks.base import Row


def data(recipe: Recipe, train: Sequence[Row], heldout: Sequence[Row]) -> Iterator[Finding]:
    """All that the rows say."""
    need = recipe.grpo.prompts_per_step
    enough = len(train) >= need
    yield Finding(
        "data",
        "training rows",
        len(train),
        "ok" if enough else "failed",
        None if enough else f"one step needs {need} rows (grpo.prompts_per_step)",
    )
    if enough:
        yield from _lengths(recipe, train)
    yield from _heldout(recipe, heldout)
    for notice in dict.fromkeys([*recipe.task.notices("train"), *recipe.task.notices("heldout")]):
        yield Finding("data", "notice", notice)
    yield from _overlap(recipe, train, heldout)
    if recipe.warmup is not None:
        worked = sum(recipe.task.worked(row) is not None for row in train)
        least, all_of_them = recipe.warmup.batch_size, recipe.warmup.rows
        status: Status = "failed" if worked < least else "warning" if worked < all_of_them else "ok"
        hint = f"the warm-up reads {all_of_them}, {least} a step; without worked solutions set warmup: null"
        yield Finding("data", "rows with a worked solution", worked, status, None if status == "ok" else hint)


def _lengths(recipe: Recipe, train: Sequence[Row]) -> Iterator[Finding]:
    """Rows whose prompt is too long after the template, and whether those that stay fill a step."""
    limit, need = recipe.grpo.max_prompt_length, recipe.grpo.prompts_per_step
    template, missing = chat_template(recipe)
    if template is None:
        from toolkit.engine.tokenizer import NO_CHAT_TEMPLATE

        stops = NO_CHAT_TEMPLATE in (missing or "")
        yield Finding("data", "tokens of the prompts", "not counted", "failed" if stops else "warning", missing)
        return
    try:
        long = sum(count > limit for count in prompt_tokens(recipe, template, train))
    except ToolkitError as error:
        yield Finding("data", error.where or "rows", error.message, "failed", error.hint)
        return
    status: Status = "failed" if len(train) - long < need else "warning" if long else "ok"
    hint = f"{len(train) - long} stay; one step needs {need} (grpo.prompts_per_step)" if long else None
    yield Finding("data", f"rows left out: over {limit} tokens (grpo.max_prompt_length)", long, status, hint)


def chat_template(recipe: Recipe) -> tuple[ChatTemplate | None, str | None]:
    """The recipe's real template; or why there is none here, with which the rows can still be shown."""
    from toolkit.engine.tokenizer import NO_CHAT_TEMPLATE, ChatTemplate, load_tokenizer

    try:
        tokenizer = load_tokenizer(recipe.model)
        if not tokenizer.chat_template:
            raise EngineError(NO_CHAT_TEMPLATE, where=recipe.model.source)
    except ToolkitError as error:
        return None, str(error)
    return ChatTemplate(tokenizer), None


def prompt_tokens(recipe: Recipe, template: ChatTemplate, rows: Sequence[Row]) -> list[int]:
    """Tokens of each row's prompt after the template. DataError names the row that the template refuses."""
    return [len(ids) for ids in template.token_ids([prompt_text(recipe, template, row) for row in rows])]


def prompt_text(recipe: Recipe, template: ChatTemplate, row: Row) -> str:
    """A row's prompt as the model reads it."""
    try:
        return template.text(recipe.task.messages(row))
    except EngineError as error:
        hint = "many templates want user and assistant in turn"
        raise DataError(error.message, where=row.id, hint=hint) from error


def _heldout(recipe: Recipe, heldout: Sequence[Row]) -> Iterator[Finding]:
    asked = recipe.eval.rows
    status: Status = "failed" if not heldout else "warning" if len(heldout) < asked else "ok"
    hint = None if status == "ok" else f"eval.rows asks for {asked}"
    yield Finding("data", "held-out rows", len(heldout), status, hint)


def _overlap(recipe: Recipe, train: Sequence[Row], heldout: Sequence[Row]) -> Iterator[Finding]:
    """Questions in both halves, compared as they are and again without case and spacing."""
    from toolkit.tasks.halves import overlap

    found = overlap(train, heldout)
    yield Finding(
        "data",
        "training rows that are also held out",
        found.exact,
        "failed" if found.exact else "ok",
        "the evaluation would measure memory: separate the files" if found.exact else None,
    )
    yield Finding("data", "… but for case and spacing", found.folded, "warning" if found.folded else "ok")
