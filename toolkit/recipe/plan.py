"""What a recipe asks for, in numbers: completions, passes, epochs. Arithmetic only; no data is read and no machine asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolkit.recipe.schema import Recipe


@dataclass(frozen=True, slots=True)
class Plan:
    """The arithmetic of a GRPO run. One optimiser step is one generation, gone through in equal passes."""

    prompts_per_step: int
    group_size: int
    completions_per_step: int
    rows: int
    """Training rows."""
    steps: int
    generations: int
    """Steps that generate: each lot of completions serves `num_iterations` optimiser steps."""
    steps_per_epoch: int
    """Rows that are too few for another step are left over, other ones in each epoch."""
    epochs: float
    completions_at_most: int
    """In the whole run, where every group is drawn anew in every round (`resample_rounds`)."""
    tokens_at_most: int
    """The same, where every completion is as long as it may be."""
    completions_per_pass: int | None = None
    """Completions in one backward pass, where the machine is known."""
    passes_per_step: int | None = None
    """Of each process."""
    processes: int = 1


def plan(recipe: Recipe, rows: int, *, batch_rows: int | None = None, processes: int = 1) -> Plan:
    """The plan for so many training rows, at least those of one step. `batch_rows`: completions in a backward pass here."""
    grpo = recipe.grpo
    generations = -(-grpo.max_steps // grpo.num_iterations)
    per_epoch = rows // grpo.prompts_per_step * grpo.num_iterations
    most = generations * grpo.completions_per_step * (1 + grpo.resample_rounds)
    return Plan(
        prompts_per_step=grpo.prompts_per_step,
        group_size=grpo.num_generations,
        completions_per_step=grpo.completions_per_step,
        rows=rows,
        steps=grpo.max_steps,
        generations=generations,
        steps_per_epoch=per_epoch,
        epochs=round(grpo.max_steps / per_epoch, 3),
        completions_at_most=most,
        tokens_at_most=most * grpo.max_completion_length,
        completions_per_pass=batch_rows,
        passes_per_step=grpo.completions_per_step // processes // batch_rows if batch_rows else None,
        processes=processes,
    )


def plan_lines(plan: Plan) -> list[str]:
    """The plan in words: what a step is, and what the run comes to."""
    several = plan.passes_per_step and plan.passes_per_step * plan.processes > 1
    passes = f", {plan.completions_per_pass} in each of {plan.passes_per_step} backward passes" if several else ""
    passes += f" of {plan.processes} processes" if plan.processes > 1 else ""
    return [
        f"a step: {plan.prompts_per_step} prompts × {plan.group_size} completions = "
        f"{plan.completions_per_step} completions{passes}",
        f"the run: {plan.steps} steps of {plan.steps_per_epoch} in an epoch ({plan.rows} rows), so {plan.epochs:g} epochs; "
        f"at most {plan.completions_at_most} completions with {plan.tokens_at_most} tokens",
    ]
