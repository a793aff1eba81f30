"""The optimiser's side of the rules: gradient, learning rate, entropy, KL, clipping, speed, loss. Pure functions of records.

Each takes the records and its threshold from the table (`toolkit.health.RULES`), and says what it saw.
"""

from __future__ import annotations

import math
import statistics

from toolkit.health.finding import Seen
from toolkit.health.records import STEPS, TREND_STEPS, Records, first, last, window

WHOLE = 0.1
"""Full fine-tuning learns at a tenth of an adapter's learning rate or less, and moves far more weights by it."""
HIGHEST_NORMAL_LENGTH_CHANGE = 1.5
"""Longer completions are slower per token, by attention and by less company in the batch: no sign of memory pressure."""


def not_finite(records: Records, threshold: float) -> list[Seen]:
    """JSON has no nan: what was nan or infinite is null in a line that has the key."""
    broken = [
        line["step"] for line in records.lines for key in ("grad_norm", "loss") if key in line and line[key] is None
    ]
    steps = sorted(set(broken))
    if len(steps) < threshold:
        return []
    wider = records.recipe.model.dtype in ("auto", "float16")
    knob = "model.dtype=float32" if wider else f"grpo.learning_rate={records.recipe.grpo.learning_rate / 10:g}"
    return [Seen(len(steps), f"gradient or loss was not finite in {len(steps)} steps, first in step {steps[0]}", knob)]


def always_zero(records: Records, threshold: float) -> list[Seen]:
    """A gradient of exactly zero in every step: no advantage reached the weights."""
    norms = records.series("grad_norm")
    if len(norms) < STEPS or max(norms) > threshold:
        return []
    message = f"the gradient was exactly zero in all of {len(norms)} steps: nothing is learned"
    return [Seen(max(norms), message, more_spread(records))]


def more_spread(records: Records, dead: float = 1.0) -> str:
    """The likeliest way to groups whose completions earn differently, with a value."""
    recipe = records.recipe
    if records.is_solved:
        return f"grpo.max_steps={len(records.lines)}"
    if recipe.warmup is None and recipe.task.graded and dead == 1:
        return "warmup.max_steps=20"
    if recipe.grpo.resample_rounds == 0 and dead < 1:
        # Rounds until 9 of 10 groups are expected to have found a living one.
        return f"grpo.resample_rounds={min(20, max(1, math.ceil(math.log(0.1) / math.log(dead))))}"
    return f"grpo.num_generations={2 * recipe.grpo.num_generations}"


def no_spread(records: Records, threshold: float) -> list[Seen]:
    """The share of groups that teach nothing."""
    dead = records.series("dead_groups")
    if len(dead) < STEPS or last(dead) < threshold:
        return []
    share = last(dead)
    why = "nearly all earn the most there is: this task is learned" if records.is_solved else "nothing to compare"
    message = f"in {share:.0%} of the latest groups all completions earned the same ({why}): they teach nothing"
    return [Seen(share, message, more_spread(records, share))]


def small_learning_rate(records: Records, threshold: float) -> list[Seen]:
    """The trained weights against those before. Of all weights of a model a tenth as much is expected (docs/doctor.md)."""
    whole = records.recipe.model.full_finetuning
    if records.moved is None or len(records.lines) < STEPS or records.moved > threshold * (WHOLE if whole else 1):
        return []
    what = f"by {records.moved:.1e} of their size" if records.moved else "not at all (fingerprint unchanged)"
    knob = f"grpo.learning_rate={10 * records.recipe.grpo.learning_rate:g}"
    return [Seen(records.moved, f"training moved the {'model' if whole else 'adapter'}'s weights {what}", knob)]


def entropy_collapse(records: Records, threshold: float) -> list[Seen]:
    """What is left of the entropy of the first steps. A solved task needs none."""
    entropy = records.series("entropy")
    if len(entropy) < TREND_STEPS or records.is_solved or not first(entropy):
        return []
    left = last(entropy) / first(entropy)
    if left > threshold:
        return []
    message = f"entropy fell from {first(entropy):.2g} to {last(entropy):.2g}: completions hardly differ any more"
    return [Seen(left, message, _keeps_entropy(records))]


def _keeps_entropy(records: Records) -> str:
    """Clip-higher acts only on ratios other than 1, so only where a batch serves several optimiser steps."""
    grpo = records.recipe.grpo
    if grpo.num_iterations > 1 and grpo.epsilon_high < 0.28:
        return "grpo.epsilon_high=0.28"
    return f"grpo.learning_rate={grpo.learning_rate / 2:g}"


def kl_run_away(records: Records, threshold: float) -> list[Seen]:
    """The rise, not the level: a warm-up has moved the model away from the base before the first step."""
    kl = records.series("kl")
    if len(kl) < TREND_STEPS or last(kl) - first(kl) < threshold:
        return []
    message = f"KL against the base rose from {first(kl):.2g} to {last(kl):.2g} nats a token"
    return [Seen(last(kl) - first(kl), message, f"grpo.beta={max(2 * records.recipe.grpo.beta, 0.04):g}")]


def high_clip_ratio(records: Records, threshold: float) -> list[Seen]:
    """Ratios per sequence are clipped far more often by design (GSPO), so they may be three times as many."""
    clipped, grpo = records.series("clip_ratio"), records.recipe.grpo
    limit = threshold * (3 if grpo.importance_sampling_level == "sequence" else 1)
    if len(clipped) < STEPS or last(clipped) < limit:
        return []
    knob = "grpo.num_iterations=1" if grpo.num_iterations > 1 else f"grpo.learning_rate={grpo.learning_rate / 2:g}"
    return [Seen(last(clipped), f"{last(clipped):.0%} of the ratios are clipped: updates are too large", knob)]


def sampled_elsewhere(records: Records, threshold: float) -> list[Seen]:
    """Completions from other weights than those that are trained. Filters and penalties make a difference by design."""
    grpo, apart = records.recipe.grpo, records.series("logp_difference")
    filtered = grpo.top_p < 1 or grpo.top_k > 0 or grpo.min_p or grpo.repetition_penalty != 1
    if filtered or len(apart) < STEPS or last(apart) < threshold:
        return []
    message = f"tokens were sampled at log-probabilities {last(apart):.2g} nats from the trainer's: what generates has other weights"
    return [Seen(last(apart), message, "model.fast_inference=false")]


def slowing_down(records: Records, threshold: float) -> list[Seen]:
    """The latest speed against the best, where neither lengths nor the work of the backward pass explain it."""
    lines = [line for line in records.lines if line.get("completion_tokens") and line.get("tokens_per_second")]
    if len(lines) < TREND_STEPS:
        return []
    size = window(len(lines))
    parts = [lines[start : start + size] for start in range(0, len(lines) - size + 1)]
    best, now = max(parts, key=lambda part: _median(part, "tokens_per_second")), parts[-1]
    share = _median(now, "tokens_per_second") / _median(best, "tokens_per_second")
    longer = _median(now, "completion_length") / max(_median(best, "completion_length"), 1e-9)
    # Groups without spread cost no backward pass on a CPU; with more of them a step is quicker.
    livelier = _median(best, "dead_groups") - _median(now, "dead_groups")
    explained = not 1 / HIGHEST_NORMAL_LENGTH_CHANGE < longer < HIGHEST_NORMAL_LENGTH_CHANGE or livelier > 0.25
    if share > threshold or explained:
        return []
    message = f"tokens per second fell to {share:.0%} of their best: the memory is short (it swaps), or others use the machine"
    return [Seen(share, message, _less_memory(records))]


def _median(lines: list, key: str) -> float:
    return statistics.median([line.get(key) or 0.0 for line in lines])


def _less_memory(records: Records) -> str | None:
    grpo, rows = records.recipe.grpo, records.batch_rows
    smaller = [n for n in range(1, (rows or 1)) if grpo.completions_per_step % n == 0]
    if smaller:
        return f"grpo.per_device_train_batch_size={smaller[-1]}"
    return None if grpo.gradient_checkpointing else "grpo.gradient_checkpointing=true"


def loss_near_zero(records: Records, threshold: float) -> list[Seen]:
    """Advantages of a group add up to zero, and the ratios are 1 while the policy is the one that sampled."""
    losses = [abs(loss) for loss in records.series("loss")]
    if len(losses) < STEPS or last(losses) > threshold:
        return []
    message = (
        "the loss is near zero, as GRPO's is by construction: no sign of anything. Watch reward and held-out accuracy"
    )
    return [Seen(last(losses), message)]
