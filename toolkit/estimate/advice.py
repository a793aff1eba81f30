"""What to change first where a recipe does not fit: keys with values, and what each saves. It changes nothing itself.

In the order in which they should be tried: first what costs time only, then what costs a little exactness, then what makes the
training another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolkit.estimate.terms import Estimate, estimate

if TYPE_CHECKING:
    from toolkit.estimate.shape import Shape
    from toolkit.recipe import Recipe

LEAST_LENGTH = 64
WORTH_GIB = 0.05
"""A change that saves less is no advice."""
LEAST_SHARES = (0.5, 0.4, 0.3, 0.2)
"""Shares of a GPU for vLLM that are worth trying."""


@dataclass(frozen=True, slots=True)
class Change:
    """A key with a value, what it saves by itself, and the peak with it and all that stand before it."""

    key: str
    value: Any
    saves_gib: float
    then_gib: float
    fits: bool
    """Whether it is enough, together with those before it."""

    def __str__(self) -> str:
        value = str(self.value).lower() if isinstance(self.value, bool) else self.value
        return f"{self.key}: {value} saves {self.saves_gib:.1f} GiB"


def changes(recipe: Recipe, shape: Shape, before: Estimate) -> list[Change]:
    """Changes that save something on this machine, up to the first with which it fits."""
    found: list[Change] = []
    together, peak = recipe, before.gib
    for key, values in _candidates(recipe, before):
        if not values:
            continue
        value, both = _mildest(together, shape, before, key, values)
        if both.gib > peak - WORTH_GIB:
            continue
        alone = estimate(changed(recipe, key, value), shape, before.machine)
        together, peak = changed(together, key, value), both.gib
        found.append(Change(key, value, before.gib - alone.gib, both.gib, both.verdict == "fits"))
        if found[-1].fits:
            break
    return found


def _mildest(recipe: Recipe, shape: Shape, before: Estimate, key: str, values: Sequence[Any]) -> tuple[Any, Estimate]:
    """The first of the values with which it fits, else the first that saves as much as any; and the estimate with it."""
    tried = [(value, estimate(changed(recipe, key, value), shape, before.machine)) for value in values]
    least = min(found.gib for _, found in tried)
    return next((value, found) for value, found in tried if found.verdict == "fits" or found.gib <= least + WORTH_GIB)


def changed(recipe: Recipe, key: str, value: Any) -> Recipe:
    """The recipe with one key of `model`, `warmup` or `grpo` set."""
    section, _, name = key.partition(".")
    return recipe.model_copy(update={section: getattr(recipe, section).model_copy(update={name: value})})


def _candidates(recipe: Recipe, before: Estimate) -> Iterator[tuple[str, Sequence[Any]]]:
    """Keys with values, the mildest first."""
    grpo, model = recipe.grpo, recipe.model
    if rows := _fewer_rows(recipe, before):
        yield "grpo.per_device_train_batch_size", rows
    if not grpo.gradient_checkpointing:
        yield "grpo.gradient_checkpointing", [True]
    if recipe.warmup and before.of("warm-up") > before.of("backward"):
        yield "warmup.batch_size", [size for size in (4, 2, 1) if size < recipe.warmup.batch_size]
    if before.machine.device == "cuda" and "8bit" not in grpo.optim:
        yield "grpo.optim", ["adamw_8bit"]
    if before.setting.generator == "unsloth":
        if shares := [share for share in LEAST_SHARES if share < model.gpu_memory_utilization]:
            yield "model.gpu_memory_utilization", shares
    elif before.setting.generator == "vllm":
        yield "model.fast_inference", [False]
    if model.full_finetuning:
        yield "model.full_finetuning", [False]
    elif not (model.load_in_4bit or model.load_in_8bit):
        yield "model.load_in_4bit", [True]
    if lengths := [length for part in (2, 4, 8) if (length := grpo.max_completion_length // part) >= LEAST_LENGTH]:
        yield "grpo.max_completion_length", lengths


def _fewer_rows(recipe: Recipe, before: Estimate) -> list[int]:
    """Completions in one pass: divisors of a step's, down to one, or on a GPU to a group, which Unsloth's trainer takes anyway."""
    total, size = recipe.grpo.completions_per_step, recipe.grpo.num_generations
    step = size if before.machine.device == "cuda" else 1
    return [rows for rows in range(before.setting.batch_rows - 1, 0, -1) if total % rows == 0 and rows % step == 0]
