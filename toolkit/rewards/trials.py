"""Scores texts with a list of rewards for the lint, and keeps what each reward broke on. It judges nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from toolkit.errors import ToolkitError
from toolkit.rewards.base import RewardBase
from toolkit.rewards.probes import GOLDLESS_PROBES, PROBES, SAME_FORM, WRONG, Probe, plain_texts, variants
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
        self.rows = [row for row in rows if row.gold.strip()] if task.graded else list(rows)
        self.broken = {} if not self.rows else self._not_ready()
        """Per reward what its first failure said; it is asked nothing more."""
        sample = self.rows[:SAMPLE]
        form_of = variants if task.graded else plain_texts
        self.forms = [(name, self.score(text, row)) for row in sample for name, text in form_of(row, task).items()]
        self.probes = [(probe, self._probed(probe, sample)) for probe in (PROBES if task.graded else GOLDLESS_PROBES)]

    def _not_ready(self) -> dict[str, str]:
        """What each reward that could not work on these rows says, before it is asked anything."""
        said: dict[str, str] = {}
        for reward in self.rewards:
            try:
                if self.task.graded or not reward.reads_gold:
                    reward.ready(self.rows)
            except ToolkitError as error:
                said[reward.name] = str(error)
        return said

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
        asked = [reward for reward in self.rewards if reward.reads_gold or not self.abstains(reward)]
        for row in self.rows:
            text = variants(row, self.task)[form]
            for reward in asked:
                if not in_full(reward, self._value(reward, text, row)):
                    failures.setdefault(reward.name, []).append(row.id)
        return failures

    def abstains(self, reward: RewardBase) -> bool:
        """Whether it judged none of the tried texts: a pattern that takes too long, a function that only gives None."""
        return not set(self.values(reward)) - {None}

    def prefers_the_answer(self, reward: RewardBase) -> bool:
        """Whether it mostly pays the right answer more than a wrong one in the very same form."""
        right = [scores.values[reward.name] for name, scores in self.forms if name == SAME_FORM]
        wrong = [scores.values[reward.name] for probe, tried in self.probes if probe.name == WRONG for scores in tried]
        more = [a > b for a, b in zip(right, wrong, strict=False) if a is not None and b is not None]
        return 2 * sum(more) > len(more)

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
