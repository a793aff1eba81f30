"""The rules about what is written: cut off, longer, shorter, all the same. Pure functions of records."""

from __future__ import annotations

from toolkit.health.finding import Seen
from toolkit.health.records import STEPS, TREND_STEPS, Records, first, last, rose


def cut_off(records: Records, threshold: float) -> list[Seen]:
    """Completions that ran into the limit: their answer, which stands at the end, is missing."""
    shares = records.series("cut_off")
    if len(shares) < STEPS or last(shares) < threshold:
        return []
    masked = ", and are left out of the loss" if records.recipe.grpo.mask_truncated_completions else ""
    limit = records.recipe.grpo.max_completion_length
    message = f"{last(shares):.0%} of the latest completions ran into the limit of {limit} tokens{masked}"
    return [Seen(last(shares), message, _room(records))]


def _room(records: Records) -> str:
    """Twice the length, and a model that reads that far."""
    grpo, model = records.recipe.grpo, records.recipe.model
    longer = 2 * grpo.max_completion_length
    needed = grpo.max_prompt_length + longer
    read = f"model.max_seq_length={needed} " if needed > model.max_seq_length else ""
    return f"{read}grpo.max_completion_length={longer}"


def exploding(records: Records, threshold: float) -> list[Seen]:
    """Longer without earning more. Longer and better is how reasoning is learned (DeepSeek-R1, arXiv 2501.12948)."""
    change = _change_without_gain(records)
    if change is None or change[0] < threshold:
        return []
    factor, begin, end = change
    message = f"completions grew from {begin:.0f} to {end:.0f} tokens, and earn no more"
    return [Seen(factor, message, _less_length_bias(records))]


def collapsing(records: Records, threshold: float) -> list[Seen]:
    """Shorter without earning more."""
    change = _change_without_gain(records)
    if change is None or change[0] > threshold:
        return []
    factor, begin, end = change
    message = f"completions shrank from {begin:.0f} to {end:.0f} tokens, and earn no more"
    return [Seen(factor, message, _less_length_bias(records))]


def _change_without_gain(records: Records) -> tuple[float, float, float] | None:
    lengths, rewards = records.series("completion_length"), records.series("reward")
    if len(lengths) < TREND_STEPS or len(rewards) < TREND_STEPS or rose(rewards) or not first(lengths):
        return None
    return last(lengths) / first(lengths), first(lengths), last(lengths)


def _less_length_bias(records: Records) -> str:
    """A mean over each completion makes long wrong answers cheap and short right ones dear (Dr. GRPO)."""
    grpo = records.recipe.grpo
    return "grpo.loss_type=dr_grpo" if grpo.loss_type == "grpo" else f"grpo.learning_rate={grpo.learning_rate / 2:g}"


def duplicates(records: Records, threshold: float) -> list[Seen]:
    """Equal texts earn equal rewards: a group of them has no advantage to learn from."""
    shares = [facts.duplicates for facts in records.facts if facts.duplicates is not None]
    if len(shares) < STEPS or records.is_solved or last(shares) < threshold:
        return []
    message = f"{last(shares):.0%} of a group's completions repeat another one of it word for word"
    return [Seen(last(shares), message, f"grpo.temperature={min(2.0, records.recipe.grpo.temperature + 0.2):g}")]
