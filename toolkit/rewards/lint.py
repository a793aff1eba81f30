"""Tries a list of rewards on a task's rows before training: what pays, what must not, what never can.

It reports; whether to go on is the caller's decision. It changes nothing and loads no model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations

from pydantic import BaseModel, ConfigDict

from toolkit.rewards.base import LegacyReward, RewardBase
from toolkit.rewards.probes import PROBES, perfect, variants
from toolkit.rewards.scoring import Scores, score_text
from toolkit.tasks.base import Row, TaskBase

# Probes and variants are tried on the first rows only: they differ by their form, not by the problem.
_SAMPLE = 20
_SHOWN = 5
_ENOUGH = 1e-9


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Problem(_Part):
    """Something that the rewards do wrong, and which reward does it."""

    level: str
    """error or warning."""
    reward: str | None
    legacy: bool
    """The reward was asked to reproduce a published function, faults included."""
    message: str


class ProbeResult(_Part):
    """What a text that is no answer would earn: the most over the tried rows."""

    name: str
    form_may_pay: bool
    pays: dict[str, float | None]
    total: float


class LintReport(_Part):
    """The result of `lint`. `model_dump()` is its JSON."""

    rows: int
    """Rows whose gold was tried."""
    skipped: int
    """Rows without a gold that could be written into a completion."""
    gold_failures: dict[str, int]
    """Per reward, the rows whose own gold, in perfect form, does not earn the full pay."""
    highest_total: float
    """Highest and lowest total that was reached by any tried text."""
    lowest_total: float
    exclusive_pairs: list[tuple[str, str]]
    """Rewards that no tried form of a right answer could earn together."""
    probes: list[ProbeResult]
    correctness_share: float
    """Share of the highest total that is paid for the right answer."""
    problems: list[Problem]

    @property
    def errors(self) -> list[Problem]:
        return [problem for problem in self.problems if problem.level == "error"]

    @property
    def ok(self) -> bool:
        """No errors. Warnings may stand."""
        return not self.errors

    @property
    def blocking(self) -> bool:
        """Whether an error comes from a reward that does not claim to be faulty."""
        return any(not problem.legacy for problem in self.errors)

    @property
    def exit_code(self) -> int:
        return 0 if self.ok else 1


def lint(rewards: Sequence[RewardBase], rows: Sequence[Row], task: TaskBase) -> LintReport:
    """Every row's gold through all rewards, then forms and probes on the first rows."""
    usable = [row for row in rows if row.gold.strip()]
    failures = _gold_failures(rewards, usable, task)
    sample = usable[:_SAMPLE]
    forms = [score_text(rewards, text, row) for row in sample for text in variants(row, task).values()]
    probes = _probe_results(rewards, sample, task)
    totals = [scores.total for scores in forms] + [probe.total for probe in probes]
    highest = max(totals, default=0.0)
    share = _correctness_share(rewards, highest)
    pairs = _exclusive_pairs(rewards, forms)
    problems = [
        *_row_problems(rows, usable),
        *_gold_problems(rewards, failures, len(usable)),
        *_probe_problems(rewards, probes),
        *_form_problems(rewards, forms, pairs),
        *_share_problems(rewards, share),
    ]
    return LintReport(
        rows=len(usable),
        skipped=len(rows) - len(usable),
        gold_failures={name: len(places) for name, places in failures.items()},
        highest_total=highest,
        lowest_total=min(totals, default=0.0),
        exclusive_pairs=pairs,
        probes=probes,
        correctness_share=share,
        problems=problems,
    )


def _gold_failures(rewards: Sequence[RewardBase], rows: Sequence[Row], task: TaskBase) -> dict[str, list[str]]:
    failures: dict[str, list[str]] = {}
    for row in rows:
        text = perfect(row, task)
        for reward in rewards:
            value, most = reward.score(text, row), reward.bounds[1]
            if value is not None and most is not None and value < most - _ENOUGH:
                failures.setdefault(reward.name, []).append(row.id)
    return failures


def _probe_results(rewards: Sequence[RewardBase], rows: Sequence[Row], task: TaskBase) -> list[ProbeResult]:
    results: list[ProbeResult] = []
    for probe in PROBES:
        tried = [score_text(rewards, probe.make(row, task), row) for row in rows]
        if tried:
            pays = {reward.name: _most(scores.values[reward.name] for scores in tried) for reward in rewards}
            total = max(scores.total for scores in tried)
            results.append(ProbeResult(name=probe.name, form_may_pay=probe.form_may_pay, pays=pays, total=total))
    return results


def _most(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return max(known, default=None)


def _exclusive_pairs(rewards: Sequence[RewardBase], forms: Sequence[Scores]) -> list[tuple[str, str]]:
    earned = {reward.name: _earned(reward, forms) for reward in rewards}
    pairs = combinations([name for name, places in earned.items() if places], 2)
    return [(left, right) for left, right in pairs if not earned[left] & earned[right]]


def _earned(reward: RewardBase, forms: Sequence[Scores]) -> set[int]:
    """The tried forms for which the reward pays in full."""
    most = reward.bounds[1]
    full = _ENOUGH if most is None else most - _ENOUGH
    return {place for place, scores in enumerate(forms) if (scores.values[reward.name] or 0.0) >= full}


def _correctness_share(rewards: Sequence[RewardBase], highest: float) -> float:
    paid = sum(reward.weight * (reward.bounds[1] or 0.0) for reward in rewards if reward.reads_gold)
    return paid / highest if highest > 0 else 0.0


def _problem(level: str, message: str, reward: RewardBase | None = None) -> Problem:
    legacy = isinstance(reward, LegacyReward) and reward.legacy
    return Problem(level=level, reward=reward.name if reward else None, legacy=legacy, message=message)


def _row_problems(rows: Sequence[Row], usable: Sequence[Row]) -> list[Problem]:
    if not rows:
        return [_problem("error", "there are no rows to try the rewards on")]
    if len(usable) < len(rows):
        return [_problem("warning", f"{len(rows) - len(usable)} of {len(rows)} rows have no gold to try")]
    return []


def _gold_problems(rewards: Sequence[RewardBase], failures: dict[str, list[str]], total: int) -> list[Problem]:
    problems = []
    for reward in rewards:
        places = failures.get(reward.name)
        if places:
            shown = ", ".join(places[:_SHOWN]) + (", …" if len(places) > _SHOWN else "")
            message = f"{reward.name} does not pay the gold in full on {len(places)} of {total} rows: {shown}"
            problems.append(_problem("error" if reward.reads_gold else "warning", message, reward))
    return problems


def _probe_problems(rewards: Sequence[RewardBase], probes: Sequence[ProbeResult]) -> list[Problem]:
    problems = []
    for probe in probes:
        for reward in rewards:
            paid = (probe.pays[reward.name] or 0.0) * reward.weight
            if paid > 0 and reward.reads_gold:
                problems.append(_problem("error", f"{reward.name} pays {paid:g} for: {probe.name}", reward))
            elif paid > 0 and not probe.form_may_pay:
                problems.append(_problem("warning", f"{reward.name} pays {paid:g} for: {probe.name}", reward))
    return problems


def _form_problems(
    rewards: Sequence[RewardBase], forms: Sequence[Scores], pairs: Sequence[tuple[str, str]]
) -> list[Problem]:
    never = [reward for reward in rewards if forms and not _earned(reward, forms)]
    problems = [_problem("warning", f"{reward.name} pays no tried form in full", reward) for reward in never]
    by_name = {reward.name: reward for reward in rewards}
    for left, right in pairs:
        problems.append(_problem("warning", f"{left} and {right} can never be earned together", by_name[left]))
    return problems


def _share_problems(rewards: Sequence[RewardBase], share: float) -> list[Problem]:
    if not any(reward.reads_gold for reward in rewards):
        return [_problem("warning", "no reward reads the gold: a wrong answer earns as much as a right one")]
    if share < 0.5 - _ENOUGH:
        return [_problem("warning", f"form outweighs the answer: only {share:.0%} of the highest total is for it")]
    return []
