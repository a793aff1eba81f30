"""What TRL calls in every step besides the trainer itself: rollouts through `generate`, and the recipe's rewards.

It keeps every completion with its rewards for the run's record, and decides nothing about training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from toolkit.engine.arguments import training_sampling
from toolkit.engine.generate import generate
from toolkit.engine.load import Policy, for_generation
from toolkit.errors import EngineError

if TYPE_CHECKING:
    from toolkit.recipe import Recipe
    from toolkit.rewards import RewardBase
    from toolkit.tasks import Row

ROW_COLUMN = "row_id"
"""The dataset's column that names the task's row; TRL hands it on to the rewards."""


def rollouts(policy: Policy, recipe: Recipe) -> Callable[[list[Any], Any], dict[str, Any]]:
    """TRL's `rollout_func`: prompts (each repeated for its group) -> token ids and log-probabilities of the answers.

    The seed of a step depends on the recipe and the step alone, so a resumed run draws what the uninterrupted one drew.
    """
    sampling = training_sampling(recipe, policy.stop_token_ids)

    def rollout(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        step = trainer.state.global_step
        ids = [policy.prompt_ids(prompt) for prompt in prompts]
        groups = ids[:: recipe.grpo.num_generations]
        with for_generation(policy, "default") as model:
            drawn = generate(
                model,
                groups,
                sampling,
                samples=recipe.grpo.num_generations,
                seed=recipe.seed * 1_000_003 + step,
            )
        return {
            "prompt_ids": ids,
            "completion_ids": [completion.token_ids for completion in drawn],
            "logprobs": [completion.logprobs for completion in drawn],
        }

    return rollout


class RewardRecorder:
    """The recipe's rewards in TRL's signature, and the table of what they paid in the current step."""

    def __init__(self, rewards: Sequence[RewardBase], rows: Mapping[str, Row]) -> None:
        self._rows = rows
        self._weights = {reward.name: reward.weight for reward in rewards}
        self.functions = [self._function(reward) for reward in rewards]
        self._table: list[dict[str, Any]] = []

    def take(self) -> list[dict[str, Any]]:
        """The table since it was last taken: one dict a completion."""
        table, self._table = self._table, []
        return table

    def _function(self, reward: RewardBase) -> Callable[..., list[float | None]]:
        def score(*, completions: list[Any], **columns: Any) -> list[float | None]:
            texts = [completion[0]["content"] for completion in completions]
            rows = [self._rows[row_id] for row_id in columns[ROW_COLUMN]]
            values = [_judged(reward, text, row) for text, row in zip(texts, rows, strict=True)]
            self._record(reward.name, texts, rows, values, columns["completion_ids"])
            return values

        score.__name__ = reward.name
        return score

    def _record(self, name: str, texts: list[str], rows: list[Row], values: list[float | None], ids: list[Any]) -> None:
        if name == next(iter(self._weights)):
            self._table += [
                {
                    "row_id": row.id,
                    "prompt": row.question,
                    "gold": row.gold,
                    "completion": text,
                    "tokens": len(tokens),
                }
                for text, row, tokens in zip(texts, rows, ids, strict=True)
            ]
        for entry, value in zip(self._table[-len(values) :], values, strict=True):
            entry[f"reward/{name}"] = value
            entry["reward"] = entry.get("reward", 0.0) + self._weights[name] * (value or 0.0)


def _judged(reward: RewardBase, text: str, row: Row) -> float | None:
    value = reward.score(text, row)
    if value is not None and not math.isfinite(value):
        raise EngineError(f"the reward {reward.name} gave {value} for row {row.id}: {text[:200]!r}")
    return value
