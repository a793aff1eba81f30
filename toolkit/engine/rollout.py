"""What TRL calls in every step besides the trainer itself: rollouts and the recipe's rewards.

It keeps every completion with its rewards for the run's record, and decides nothing about training.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from toolkit.engine.arguments import training_sampling
from toolkit.engine.load import Policy
from toolkit.engine.sampler import draw
from toolkit.errors import EngineError
from toolkit.parallel.environment import place

if TYPE_CHECKING:
    import pyarrow

    from toolkit.recipe import Recipe
    from toolkit.rewards import RewardBase
    from toolkit.tasks import Row

ROW_COLUMN = "row_id"
"""The dataset's column that names the task's row; TRL hands it on to the rewards."""

Entry = dict[str, Any]
"""One completion: its row, text and length, what each reward said (`reward/<name>`, None = it abstained), the total
(`reward`), and whether it was trained on (`used`)."""

SPREAD = 1e-6
"""Totals of one group that differ by less are equal: TRL computes with them in float32."""


def rollouts(policy: Policy, recipe: Recipe) -> Callable[[list[Any], Any], dict[str, Any]]:
    """TRL's `rollout_func`: prompts (each repeated for its group) -> token ids and log-probabilities of the answers.

    The seed depends on the recipe, the step and the round (`resample`) alone, so a resumed run draws what the
    uninterrupted one drew; and a prompt's number on its place in the step, so several processes draw what one would.
    """
    sampling = training_sampling(recipe, policy.stop_token_ids)

    def rollout(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        step, round_ = trainer.state.global_step, getattr(trainer, "resample_round", 0)
        ids = [policy.prompt_ids(prompt) for prompt in prompts]
        groups = ids[:: recipe.grpo.num_generations]
        seed = recipe.seed * 1_000_003 + step + (round_ << 54)  # above every seed and step
        first = place().rank * len(groups)
        drawn = draw(policy, "default", groups, sampling, samples=recipe.grpo.num_generations, seed=seed, first=first)
        return {
            "prompt_ids": ids,
            "completion_ids": [completion.token_ids for completion in drawn],
            "logprobs": [completion.logprobs for completion in drawn],
        }

    return rollout


class RewardRecorder:
    """The recipe's rewards in TRL's signature, and the table of what they paid in the current step."""

    def __init__(
        self, rewards: Sequence[RewardBase], rows: Mapping[str, Row], *, stop_token_ids: Collection[int] = ()
    ) -> None:
        self._rewards, self._rows, self._stops = list(rewards), rows, frozenset(stop_token_ids)
        self._table: list[Entry] = []
        self.functions = [self._function(reward) for reward in rewards]
        self.batch: list[Entry] = []
        """The completions that were scored last, in TRL's order."""

    def take(self) -> list[Entry]:
        """The table since it was last taken: one entry a completion, in the order in which they were generated."""
        table, self._table = self._table, []
        return table

    def _function(self, reward: RewardBase) -> Callable[..., list[float | None]]:
        def score(*, completions: list[Any], completion_ids: list[list[int]], **columns: Any) -> list[float | None]:
            texts = [completion[0]["content"] for completion in completions]
            rows = [self._rows[row_id] for row_id in columns[ROW_COLUMN]]
            if reward is self._rewards[0]:
                self._open(texts, rows, completion_ids)
            values = judged(reward, texts, rows, completion_ids)
            paid = without_gaps(values, columns[ROW_COLUMN])
            for entry, value, pay in zip(self.batch, values, paid, strict=True):
                entry[f"reward/{reward.name}"] = value
                entry["reward"] = added(entry["reward"], reward.weight, pay)
            return paid

        score.__name__ = reward.name
        return score

    def _open(self, texts: list[str], rows: list[Row], ids: list[list[int]]) -> None:
        self.batch = [
            {
                "row_id": row.id,
                "prompt": row.question,
                "gold": row.gold,
                "completion": text,
                "tokens": len(tokens),
                "cut_off": tokens[-1] not in self._stops,
                "used": True,
                "reward": None,
            }
            for text, row, tokens in zip(texts, rows, ids, strict=True)
        ]
        self._table += self.batch


def judged(
    reward: RewardBase, texts: Sequence[str], rows: Sequence[Row], ids: Sequence[Sequence[int]]
) -> list[float | None]:
    """What the reward says of each completion, generated with these tokens; nan and infinity are errors that name it."""
    values = reward.score_batch(texts, rows, ids=ids)
    for value, text, row in zip(values, texts, rows, strict=True):
        if value is not None and not math.isfinite(value):
            raise EngineError(f"the reward {reward.name} gave {value} for row {row.id}: {text[:200]!r}")
    return values


def without_gaps(values: Sequence[float | None], groups: Sequence[Any]) -> list[float | None]:
    """One reward's values, each abstention (None) replaced by the mean of what the others of its group got.

    TRL adds rewards up with None as 0, which would punish a completion that a judge could not judge. At the group's mean it
    has no advantage from this reward, for or against. Where nobody in the group was judged None stays: it is 0 for all.
    """
    known: dict[Any, list[float]] = {}
    for value, group in zip(values, groups, strict=True):
        if value is not None:
            known.setdefault(group, []).append(value)
    means = {group: float(statistics.mean(given)) for group, given in known.items()}
    return [means.get(group) if value is None else value for value, group in zip(values, groups, strict=True)]


def added(total: float | None, weight: float, paid: float | None) -> float | None:
    """A weighted sum in which None adds nothing, and is the sum only where all was None."""
    return total if paid is None else (total or 0.0) + weight * paid


def has_spread(totals: Iterable[float | None]) -> bool:
    """Whether one group's totals differ: else there is no advantage, and nothing to learn from it."""
    known = [total for total in totals if total is not None]
    return bool(known) and max(known) - min(known) > SPREAD * max(1.0, *map(abs, known))


def arrow_table(entries: Sequence[Entry]) -> pyarrow.Table:
    """Completions as columns. Rewards are numbers: one that always abstained would else have a column without a type."""
    import pyarrow

    table = pyarrow.Table.from_pylist(list(entries))
    kinds = [pyarrow.float64() if field.name.startswith("reward") else field.type for field in table.schema]
    return table.cast(pyarrow.schema(zip(table.column_names, kinds, strict=True)))
