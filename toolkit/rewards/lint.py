"""Tries a list of rewards on a task's rows before training: what pays, what must not, what never can.

It reports; whether to go on is the caller's decision. It changes nothing and loads no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from pydantic import BaseModel, ConfigDict

from toolkit.rewards.base import LegacyReward, RewardBase
from toolkit.rewards.trials import Trial, in_full, most
from toolkit.tasks.base import Row, TaskBase

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
    not_tried: list[str]
    """Rewards that ask a model: what they pay is not known before."""
    gold_failures: dict[str, int]
    """Per reward, the rows whose own gold, in the form that earns most, does not earn the full pay."""
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
    def tried(self) -> bool:
        """Whether any reward was: not where each asks a model."""
        return any(probe.pays for probe in self.probes)

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
    trial = Trial(rewards, rows, task)
    failures = trial.gold_failures()
    totals = trial.totals()
    share = _correctness_share(trial, max(totals, default=0.0))
    probes = _probe_results(trial)
    pairs = _exclusive_pairs(trial)
    problems = [
        *_reward_problems(rewards, task),
        *_broken_problems(trial),
        *_row_problems(rows, trial),
        *_gold_problems(trial, failures),
        *(_probe_problems(trial, probes) if task.graded else _goldless_problems(trial)),
        *_form_problems(trial, pairs),
        *(_share_problems(trial, share) if task.graded else []),
    ]
    return LintReport(
        rows=len(trial.rows),
        skipped=len(rows) - len(trial.rows),
        not_tried=trial.not_tried,
        gold_failures={name: len(places) for name, places in failures.items()},
        highest_total=max(totals, default=0.0),
        lowest_total=min(totals, default=0.0),
        exclusive_pairs=pairs,
        probes=probes,
        correctness_share=share,
        problems=problems,
    )


def _probe_results(trial: Trial) -> list[ProbeResult]:
    results: list[ProbeResult] = []
    for probe, tried in trial.probes:
        if tried:
            pays = {reward.name: most(scores.values[reward.name] for scores in tried) for reward in trial.rewards}
            total = max(scores.total for scores in tried)
            results.append(ProbeResult(name=probe.name, form_may_pay=probe.form_may_pay, pays=pays, total=total))
    return results


def _exclusive_pairs(trial: Trial) -> list[tuple[str, str]]:
    earned = {reward.name: _earned(reward, trial) for reward in trial.rewards}
    pairs = combinations([name for name, places in earned.items() if places], 2)
    return [(left, right) for left, right in pairs if not earned[left] & earned[right]]


def _earned(reward: RewardBase, trial: Trial) -> set[int]:
    """The tried forms for which the reward pays in full."""
    values = [scores.values[reward.name] for _, scores in trial.forms]
    return {place for place, value in enumerate(values) if value is not None and in_full(reward, value)}


def _correctness_share(trial: Trial, highest: float) -> float:
    paid = sum(reward.weight * _highest(reward, trial) for reward in trial.rewards if _judges_answers(reward, trial))
    return paid / highest if highest > 0 else 0.0


def _judges_answers(reward: RewardBase, trial: Trial) -> bool:
    """Whether it pays for the right answer: it says so, or, of a user's function, it was seen."""
    return reward.reads_gold or (reward.bounds[1] is None and trial.prefers_the_answer(reward))


def _highest(reward: RewardBase, trial: Trial) -> float:
    """The most that it can pay; where it does not know, the most that it paid."""
    known = reward.bounds[1]
    return (most(trial.values(reward)) or 0.0) if known is None else known


def _problem(level: str, message: str, reward: RewardBase | None = None) -> Problem:
    legacy = isinstance(reward, LegacyReward) and reward.legacy
    return Problem(level=level, reward=reward.name if reward else None, legacy=legacy, message=message)


def _reward_problems(rewards: Sequence[RewardBase], task: TaskBase) -> list[Problem]:
    """What is wrong whatever the texts: weights that turn a reward round, and golds that are not there."""
    problems = []
    for reward in rewards:
        if reward.reads_gold and not task.graded:
            problems.append(
                _problem("error", f"{reward.name} reads the gold, and the task {_name(task)} has none", reward)
            )
        elif reward.reads_gold and reward.weight < 0:
            message = f"{reward.name} has weight {reward.weight:g}: a right answer is punished"
            problems.append(_problem("error", message, reward))
        elif reward.weight == 0:
            problems.append(
                _problem("warning", f"{reward.name} has weight 0: it is recorded, and pays nothing", reward)
            )
    return problems


def _name(task: TaskBase) -> str:
    return getattr(task, "name", type(task).__name__)


def _broken_problems(trial: Trial) -> list[Problem]:
    by_name = {reward.name: reward for reward in trial.rewards}
    silent = [reward for reward in trial.rewards if trial.abstains(reward) and reward.name not in trial.broken]
    return [
        *(_problem("error", message, by_name[name]) for name, message in trial.broken.items()),
        *(_problem("warning", f"{one.name} abstained on every tried text", one) for one in silent if trial.rows),
    ]


def _row_problems(rows: Sequence[Row], trial: Trial) -> list[Problem]:
    if not rows:
        return [_problem("error", "there are no rows to try the rewards on")]
    if len(trial.rows) < len(rows):
        return [_problem("warning", f"{len(rows) - len(trial.rows)} of {len(rows)} rows have no gold to try")]
    return []


def _gold_problems(trial: Trial, failures: dict[str, list[str]]) -> list[Problem]:
    problems = []
    for reward in trial.rewards:
        places = failures.get(reward.name)
        if places and (reward.reads_gold or _may_pay_a_gold(reward, trial)):
            shown = ", ".join(places[:_SHOWN]) + (", …" if len(places) > _SHOWN else "")
            message = f"{reward.name} does not pay the gold in full on {len(places)} of {len(trial.rows)} rows: {shown}"
            problems.append(_problem("error" if reward.reads_gold else "warning", message, reward))
    return problems


def _may_pay_a_gold(reward: RewardBase, trial: Trial) -> bool:
    """Whether any tried form earned it in full: one that none earned is reported as that."""
    return bool(_earned(reward, trial))


def _probe_problems(trial: Trial, probes: Sequence[ProbeResult]) -> list[Problem]:
    problems = []
    for probe in probes:
        for reward in trial.rewards:
            paid = (probe.pays[reward.name] or 0.0) * reward.weight
            if paid > 0 and reward.reads_gold:
                problems.append(_problem("error", f"{reward.name} pays {paid:g} for: {probe.name}", reward))
            elif paid > 0 and not probe.form_may_pay:
                problems.append(_problem("warning", f"{reward.name} pays {paid:g} for: {probe.name}", reward))
    return problems


def _goldless_problems(trial: Trial) -> list[Problem]:
    """Without golds: a reward must tell texts from each other, and no empty or parroted text may earn the most."""
    problems = []
    for reward in trial.rewards:
        values = set(trial.values(reward)) - {None}
        if len(values) == 1 and reward.name not in trial.broken:
            message = f"{reward.name} pays {values.pop():g} for every tried text, so nothing can be learned from it"
            problems.append(_problem("warning", message, reward))
    highest = max(trial.totals(), default=0.0)
    best = max((scores.total for _, scores in trial.forms), default=0.0)
    for probe, tried in trial.probes:
        if trial.rewards and highest > best + _ENOUGH and max((one.total for one in tried), default=best) >= highest:
            problems.append(_problem("warning", f"nothing that was tried earns more than: {probe.name}"))
    return problems


def _form_problems(trial: Trial, pairs: Sequence[tuple[str, str]]) -> list[Problem]:
    by_name = {reward.name: reward for reward in trial.rewards}
    never = [reward for reward in trial.rewards if _pays_no_form(reward, trial)] if trial.task.graded else []
    problems = [_problem("warning", f"{reward.name} pays no tried form in full", reward) for reward in never]
    for left, right in pairs if trial.task.graded else []:
        problems.append(_problem("warning", f"{left} and {right} can never be earned together", by_name[left]))
    return problems


def _pays_no_form(reward: RewardBase, trial: Trial) -> bool:
    known = [scores.values[reward.name] for _, scores in trial.forms if scores.values[reward.name] is not None]
    return bool(known) and not _earned(reward, trial)


def _share_problems(trial: Trial, share: float) -> list[Problem]:
    if trial.not_tried:
        return []
    if not any(_judges_answers(reward, trial) for reward in trial.rewards):
        return [_problem("warning", "no reward reads the gold: a wrong answer earns as much as a right one")]
    if share < 0.5 - _ENOUGH:
        return [_problem("warning", f"form outweighs the answer: only {share:.0%} of the highest total is for it")]
    return []
