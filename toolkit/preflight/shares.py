"""Whether a recipe's step can be shared by several processes so that it stays the step it is with one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolkit.errors import ToolkitError

if TYPE_CHECKING:
    from toolkit.recipe import Recipe


def require_shares(recipe: Recipe, processes: int) -> None:
    """ToolkitError with the values that go, where so many processes cannot share a step: each takes whole groups."""
    if processes == 1:
        return
    what = f"{processes} processes cannot share"
    prompts, warmup, grpo = recipe.grpo.prompts_per_step, recipe.warmup, recipe.grpo
    if prompts % processes:
        raise ToolkitError(
            f"{what} the {prompts} prompts of a step", hint=_way_out("grpo.prompts_per_step", prompts, processes)
        )
    if warmup and warmup.batch_size % processes:
        size = warmup.batch_size
        raise ToolkitError(f"{what} a warm-up step of {size}", hint=_way_out("warmup.batch_size", size, processes))
    rows, share = grpo.per_device_train_batch_size, grpo.completions_per_step // processes
    if rows and share % rows:
        hint = "grpo.per_device_train_batch_size=null, which takes what fits"
        raise ToolkitError(f"{what} a step: {share} completions each are no passes of {rows}", hint=hint)
    if grpo.resample_rounds:
        raise ToolkitError("groups are drawn again in one process only", hint="grpo.resample_rounds=0, or one process")


def _way_out(key: str, value: int, processes: int) -> str:
    below, above = value // processes * processes, -(-value // processes) * processes
    near = " or ".join(f"{key}={number}" for number in (below, above) if number)
    divisors = [str(number) for number in range(1, value + 1) if value % number == 0 and number > 1]
    return f"{near}; or {', '.join(divisors)} processes"
