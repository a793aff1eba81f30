"""From what a probe saw to what a whole run would be: shares, lengths, time, memory, each with its range. Arithmetic only."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from toolkit.estimate.pace import Range
from toolkit.health.records import step_facts
from toolkit.preflight.plan import answers
from toolkit.rundir import SCHEMA
from toolkit.statistics import wilson

if TYPE_CHECKING:
    from toolkit.recipe import Recipe

Entry = Mapping[str, Any]
QUICKEST = 0.5
"""Later steps may take half as long as the first (measured on the default recipe: 21 s, then 11 s): completions get shorter, and
on a CPU groups without spread cost no backward pass."""
BUCKETS: tuple[str, ...] = ("never", "up to 1/4", "up to 1/2", "up to 3/4", "below all", "always")


@dataclass(frozen=True, slots=True)
class Measured:
    """What a probe measured besides its completions. Times in seconds, memory in GiB."""

    sampling_s: float
    sampled_tokens: int
    step_s: float
    """One whole optimiser step: generation, rewards, backward passes."""
    warmup_step_s: float
    loaded_gib: float
    """The most memory held before the optimiser step, and with it."""
    peak_gib: float
    step_tokens: int
    """The longest prompt with the longest completion of that step."""
    other_work: float = 0.0
    """Processes that wanted to compute before the probe began, per thread (the system's load average)."""


@dataclass(frozen=True, slots=True)
class RewardSpread:
    """What one reward paid."""

    mean: float | None
    lowest: float | None
    highest: float | None
    spread: float
    """Standard deviation within a group, averaged over the groups in which the reward differs; 0 without any."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The probe's answer."""

    recipe: str
    prompts: int
    group_size: int
    pass_rates: dict[str, int] | None
    """How many prompts were answered right how often; None for a task without golds."""
    accuracy: float | None
    format_rate: float | None
    rewards: dict[str, RewardSpread]
    dead_groups: Range
    completion_length: Range
    cut_off: Range
    tokens_per_second: float
    step_s: float
    run_s: Range
    """Training and evaluation."""
    stages_s: dict[str, Range]
    """Each stage alone: train, eval and, where the model's shape is known, export and verify."""
    memory_gib: Range
    has_warmup: bool
    other_work: float
    """Above 0.5 the times are longer than this machine would need by itself."""

    def as_json(self) -> dict[str, Any]:
        """The forecast for a program."""
        return {"schema": SCHEMA, **asdict(self)}


def forecast(
    name: str,
    recipe: Recipe,
    entries: Sequence[Entry],
    measured: Measured,
    *,
    heldout: int,
    files_s: Mapping[str, Range] | None = None,
) -> Forecast:
    """From completions with their rewards, `right` and `well_formed` (None without golds), and whether their group is `dead`.
    `files_s`: what export and verification will take."""
    groups = list(grouped(entries).values())
    length = _mean_range([statistics.fmean(entry["tokens"] for entry in group) for group in groups])
    graded = recipe.task.graded
    evaluation = evaluation_seconds(recipe, measured, len(entries), heldout)
    run_s = run_seconds(recipe, measured, length.likely, evaluation)
    return Forecast(
        recipe=name,
        prompts=len(groups),
        group_size=recipe.grpo.num_generations,
        pass_rates=histogram(groups) if graded else None,
        accuracy=statistics.fmean(entry["right"] for entry in entries) if graded else None,
        format_rate=statistics.fmean(entry["well_formed"] for entry in entries) if graded else None,
        rewards=_rewards(entries),
        dead_groups=share_range(sum(group[0]["dead"] for group in groups), len(groups)),
        completion_length=length,
        cut_off=_mean_range([statistics.fmean(entry["cut_off"] for entry in group) for group in groups], most=1.0),
        tokens_per_second=measured.sampled_tokens / measured.sampling_s,
        step_s=measured.step_s,
        run_s=run_s,
        stages_s={"train": without(run_s, evaluation), "eval": evaluation, **(files_s or {})},
        memory_gib=memory(recipe, measured),
        has_warmup=recipe.warmup is not None,
        other_work=measured.other_work,
    )


def without(whole: Range, part: Range) -> Range:
    """What is left of a sum of two ranges."""
    return Range(whole.likely - part.likely, whole.low - part.low, whole.high - part.high)


def grouped(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """Completions by their row."""
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(entry["row_id"], []).append(entry)
    return groups


def histogram(groups: Sequence[Sequence[Entry]]) -> dict[str, int]:
    """Prompts by the share of right completions: none of them, quarters, all of them."""
    counts = dict.fromkeys(BUCKETS, 0)
    for group in groups:
        rate = statistics.fmean(entry["right"] for entry in group)
        counts[_bucket(rate)] += 1
    return counts


def _bucket(rate: float) -> str:
    if rate in (0.0, 1.0):
        return BUCKETS[-1] if rate else BUCKETS[0]
    return next(name for name, end in zip(BUCKETS[1:], (0.25, 0.5, 0.75, 1.0), strict=False) if rate <= end)


def share_range(count: int, total: int) -> Range:
    """A share with Wilson's 95 % interval (Wilson 1927)."""
    return Range(count / total, *wilson(count, total))


def _mean_range(values: Sequence[float], *, most: float | None = None) -> Range:
    """A mean over prompts with Student's 95 % interval; completions of one prompt are alike, so prompts are counted."""
    from scipy.stats import t

    mean = statistics.fmean(values)
    if len(values) < 2:
        return Range(mean, 0.0, most if most is not None else float("inf"))
    half = float(t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / len(values) ** 0.5
    return Range(mean, max(0.0, mean - half), mean + half if most is None else min(most, mean + half))


def _rewards(entries: Sequence[Entry]) -> dict[str, RewardSpread]:
    facts = step_facts(entries)
    found = {}
    for name, spread in facts.spread.items():
        paid = [entry[f"reward/{name}"] for entry in entries if entry[f"reward/{name}"] is not None]
        mean = statistics.fmean(paid) if paid else None
        found[name] = RewardSpread(mean, facts.lowest.get(name), facts.highest.get(name), spread)
    return found


def evaluation_seconds(recipe: Recipe, measured: Measured, sampled: int, heldout: int) -> Range:
    """At the speed of the probe's `sampled` completions; at least, if a fuller batch takes no longer than the probe's."""
    likely = measured.sampling_s / sampled * answers(recipe, heldout)
    longest = recipe.grpo.max_completion_length * sampled / max(1, measured.sampled_tokens)
    return Range(likely, likely * min(1.0, sampled / recipe.eval.batch_size), likely * max(1.0, longest))


def run_seconds(recipe: Recipe, measured: Measured, length: float, evaluation: Range) -> Range:
    """Warm-up, GRPO and evaluation. At most: every completion as long as it may be, every group drawn again in every round."""
    grpo = recipe.grpo
    longest = max(1.0, grpo.max_completion_length / length)
    grpo_s = grpo.max_steps * measured.step_s
    before = (recipe.warmup.max_steps if recipe.warmup else 0) * measured.warmup_step_s
    return Range(
        before + grpo_s + evaluation.likely,
        before + QUICKEST * grpo_s + evaluation.low,
        before + longest * grpo_s * (1 + grpo.resample_rounds) + evaluation.high,
    )


def memory(recipe: Recipe, measured: Measured) -> Range:
    """The peak seen, and what it may become: the step's share grows with the longest prompt and completion."""
    most = recipe.grpo.max_prompt_length + recipe.grpo.max_completion_length
    growth = max(1.0, most / max(1, measured.step_tokens))
    step = max(0.0, measured.peak_gib - measured.loaded_gib)
    return Range(measured.peak_gib, measured.peak_gib, measured.loaded_gib + growth * step)
