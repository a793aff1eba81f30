"""The rules about what is paid: never, always, by one reward alone, for format only, for the wrong thing. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping

from toolkit.health.checks import more_spread
from toolkit.health.finding import Seen
from toolkit.health.records import STEPS, TREND_STEPS, Records, first, last, rose
from toolkit.rewards import RewardBase

SATURATED = 0.9
"""Share of its highest pay from which on a reward has nothing left to teach."""
FORMAT_STEPS = 20
"""The format comes first, the answer later: fewer steps would call runs that learned both stuck (measured here)."""
UNSOLVED = 0.5
"""Share of its highest pay below which correctness cannot be called learned."""


def never_fired(records: Records, threshold: float) -> list[Seen]:
    """A reward that never paid more than its least, or could judge nothing. A penalty that never came is none."""
    found = []
    for name, reward in records.rewards.items():
        constant = _constant(records, name)
        if _is_penalty(reward) or constant is None or constant == reward.bounds[1] or constant > threshold:
            continue
        knob = more_spread(records) if reward.reads_gold else f"rewards.{name}.weight=0"
        what = f"the reward {name} paid {constant:g} for every completion of {len(records.facts)} steps"
        found.append(Seen(constant, f"{what}: it teaches nothing", knob, name))
    silent = [name for name in records.rewards if len(records.facts) >= STEPS and _judged_nothing(records, name)]
    for name in silent:
        message = f"the reward {name} could judge none of the completions"
        found.append(Seen(0.0, message, f"rewards.{name}.weight=0", name))
    return found


def always_fires(records: Records, threshold: float) -> list[Seen]:
    """A reward that paid every completion the same, or a penalty that always came: no difference, no advantage."""
    found = []
    for name, reward in records.rewards.items():
        constant = _constant(records, name)
        if constant is None:
            continue
        paid_all = constant != reward.bounds[1] if _is_penalty(reward) else constant > threshold
        if paid_all:
            message = f"the reward {name} gave every completion {constant:g}: it makes no difference, and is not needed"
            found.append(Seen(constant, message, f"rewards.{name}.weight=0", name))
    return found


def _is_penalty(reward: RewardBase) -> bool:
    highest = reward.bounds[1]
    return highest is not None and highest <= 0


def _constant(records: Records, name: str) -> float | None:
    """The one value that a reward gave in all steps; None where it gave several, or none, or there are too few steps."""
    ends = {end for facts in records.facts for part in (facts.lowest, facts.highest) for end in _get(part, name)}
    return ends.pop() if len(ends) == 1 and len(records.facts) >= STEPS else None


def _get(part: Mapping[str, float], name: str) -> list[float]:
    return [part[name]] if name in part else []


def _judged_nothing(records: Records, name: str) -> bool:
    return all(name not in facts.lowest for facts in records.facts)


def dominating(records: Records, threshold: float) -> list[Seen]:
    """Spreads within groups, weighted: the advantage is of the total, so the widest reward decides it.

    Rewards that nearly always pay all, or never differ, have nothing to say and are not compared.
    """
    spreads = {name: abs(reward.weight) * _spread(records, name) for name, reward in records.rewards.items()}
    heard = {name: value for name, value in spreads.items() if value > 0 and not _is_saturated(records, name)}
    if len(records.facts) < STEPS or len(heard) < 2:
        return []
    second, widest = sorted(heard, key=heard.__getitem__)[-2:]
    ratio = heard[widest] / heard[second]
    if ratio < threshold:
        return []
    weight = records.rewards[widest].weight / ratio
    message = f"within a group {widest} differs {ratio:.0f} times as much as {second}: what the others say is not heard"
    return [Seen(ratio, message, f"rewards.{widest}.weight={weight:.2g}", widest)]


def _spread(records: Records, name: str) -> float:
    found = [spread for facts in records.facts if (spread := facts.spread.get(name, 0.0)) > 0]
    return sum(found) / len(found) if found else 0.0


def _means(records: Records, name: str) -> list[float]:
    found = [line["rewards"].get(name) for line in records.lines if line.get("rewards")]
    return [value for value in found if value is not None]


def _level(records: Records, name: str) -> float | None:
    """The latest mean as a share of the way from the lowest to the highest pay; None where an end is not known."""
    (low, high), means = records.rewards[name].bounds, _means(records, name)
    if low is None or high is None or high <= low or not means:
        return None
    return (last(means) - low) / (high - low)


def _is_saturated(records: Records, name: str) -> bool:
    level = _level(records, name)
    return level is not None and level >= SATURATED


def format_only(records: Records, threshold: float) -> list[Seen]:
    """Everything but the answer is learned, and the answer does not get better. `threshold`: the least rise, of the range."""
    gold = [name for name, reward in records.rewards.items() if reward.reads_gold]
    form = [name for name in records.rewards if name not in gold]
    learned = form and all(_is_saturated(records, name) for name in form)
    if len(records.lines) < FORMAT_STEPS or not gold or not learned:
        return []
    rises = [_rise(records, name) for name in gold]
    levels = [_level(records, name) for name in gold]
    known = [(rise, level) for rise, level in zip(rises, levels, strict=True) if rise is not None and level is not None]
    if not known or any(rise >= threshold or level >= UNSOLVED for rise, level in known):
        return []
    message = f"{', '.join(form)} are learned, and {', '.join(gold)} does not rise: only the format gets better"
    return [Seen(known[0][0], message, f"grpo.num_generations={2 * records.recipe.grpo.num_generations}")]


def _rise(records: Records, name: str) -> float | None:
    (low, high), means = records.rewards[name].bounds, _means(records, name)
    if low is None or high is None or high <= low or len(means) < TREND_STEPS:
        return None
    return (last(means) - first(means)) / (high - low)


def hacking(records: Records, threshold: float) -> list[Seen]:
    """Training rewards go up while what was never paid for goes down (Goodhart). Either during training, or at its end."""
    if len(records.series("reward")) < TREND_STEPS:
        return []
    return _hacking_during(records, threshold) or _hacking_at_the_end(records)


def _hacking_during(records: Records, threshold: float) -> list[Seen]:
    points = [(line["step"], float(line["accuracy"])) for line in records.evaluations]
    if len(points) < 2:
        return []
    best_step, best = max(points, key=lambda point: point[1])
    fall = best - points[-1][1]
    if fall < max(threshold, _noise(records, best)) or not _paid_more_since(records, best_step):
        return []
    message = f"held-out accuracy fell from {best:.0%} (step {best_step}) to {points[-1][1]:.0%} while the reward rose"
    return [Seen(fall, message, f"grpo.max_steps={best_step}" if best_step else "grpo.beta=0.04")]


def _noise(records: Records, accuracy: float) -> float:
    """Two standard errors of a difference, where the evaluation says over how many rows it is."""
    rows = records.evaluations[-1].get("rows")
    return 2 * (2 * accuracy * (1 - accuracy) / rows) ** 0.5 if rows else 0.0


def _paid_more_since(records: Records, step: int) -> bool:
    before = [line["reward"] for line in records.lines if line["step"] <= step and line.get("reward") is not None]
    after = [line["reward"] for line in records.lines if line["step"] > step and line.get("reward") is not None]
    return len(after) >= 3 and (not before or last(after) > last(before))


def _hacking_at_the_end(records: Records) -> list[Seen]:
    if records.gain is None or records.gain[1] >= 0 or not rose(records.series("reward")):
        return []
    delta = records.gain[0]
    message = f"the reward rose, and on held-out rows {-delta:.0%} fewer answers are right than before GRPO"
    return [Seen(-delta, message, "grpo.beta=0.04")]
