"""Scores texts with a list of rewards for the lint, and keeps what each reward broke on. It judges nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from toolkit.errors import ToolkitError
from toolkit.rewards.base import RewardBase
from toolkit.rewards.probes import GOLDLESS_PROBES, PROBES, Probe, plain_texts, variants
from toolkit.rewards.scoring import Scores, total
from toolkit.tasks.base import Row, TaskBase

# Probes and forms are tried on the first rows only: they differ by their form, not by the problem.
SAMPLE = 20


class Trial:
    """The rewards that can be asked without a model, on a task's rows."""

    def __init__(self, rewards: Sequence[RewardBase], rows: Sequence[Row], task: TaskBase) -> None:
        self.rewards = [reward for reward in rewards if not reward.asks_model]
        self.not_tried = [reward.name for reward in rewards if reward.asks_model]
        self.task = task
        self.broken: dict[str, str] = {}
        """Per reward what its first failure said; it is asked nothing more."""
        self.rows = [row for row in rows if row.gold.strip()] if task.graded else list(rows)
        sample = self.rows[:SAMPLE]
        form_of = variants if task.graded else plain_texts
        self.forms = [(name, self.score(text, row)) for row in sample for name, text in form_of(row, task).items()]
        self.probes = [(probe, self._probed(probe, sample)) for probe in (PROBES if task.graded else GOLDLESS_PROBES)]

    def score(self, text: str, row: Row) -> Scores:
        """What each reward pays; None from one that abstains or is broken."""
        values = {reward.name: self._value(reward, text, row) for reward in self.rewards}
        return Scores(values, total(self.rewards, values))

    def _value(self, reward: RewardBase, text: str, row: Row) -> float | None:
        if reward.name in self.broken:
            return None
        try:
            return reward.score(text, row)
        except ToolkitError as error:  # a user's function, or a tokenizer that is not here
            self.broken[reward.name] = str(error)
            return None

    def _probed(self, probe: Probe, rows: Sequence[Row]) -> list[Scores]:
        return [self.score(probe.make(row, self.task), row) for row in rows]

    def best_form(self) -> str | None:
        """The form of a right answer that earns most in all: the one that the list of rewards asks for."""
        sums: dict[str, float] = {}
        for name, scores in self.forms:
            sums[name] = sums.get(name, 0.0) + scores.total
        return max(sums, key=lambda name: sums[name], default=None)

    def gold_failures(self) -> dict[str, list[str]]:
        """Per reward the rows whose own gold, in the best form, does not earn its full pay."""
        form, failures = self.best_form(), dict[str, list[str]]()
        if form is None or not self.task.graded:
            return failures
        for row in self.rows:
            scores = self.score(variants(row, self.task)[form], row)
            for reward in self.rewards:
                if not in_full(reward, scores.values[reward.name]):
                    failures.setdefault(reward.name, []).append(row.id)
        return failures

    def totals(self) -> list[float]:
        """The total of every text that was tried."""
        return [scores.total for _, scores in self.forms] + [one.total for _, tried in self.probes for one in tried]

    def values(self, reward: RewardBase) -> list[float | None]:
        """What one reward paid for every text that was tried."""
        tried = [*(scores for _, scores in self.forms), *(one for _, scores in self.probes for one in scores)]
        return [scores.values[reward.name] for scores in tried]


def in_full(reward: RewardBase, value: float | None) -> bool:
    """Whether this is all that the reward can pay. One that abstains, or knows no upper end, takes nothing away."""
    most = reward.bounds[1]
    return value is None or most is None or value >= most - 1e-9


def most(values: Iterable[float | None]) -> float | None:
    """The highest value that is known."""
    return max((value for value in values if value is not None), default=None)
