"""The reward `integer`: the answer is a whole number, right or wrong."""

from __future__ import annotations

from typing import Literal

from toolkit.answers import extract_block, number
from toolkit.rewards.base import LegacyReward
from toolkit.rewards.legacy import published_answer
from toolkit.tasks.base import Row

_PAY = 0.5


class Integer(LegacyReward):
    """0.5 when the answer block that counts states one whole number, as the number reader sees it.

    Range 0 or 0.5. Nothing on a row whose gold is no whole number: there it would teach a wrong answer.
    After W. Brown's GSM8K GRPO demo (int_reward_func), whose isdigit refuses signs and thousands separators.
    """

    name: Literal["integer"] = "integer"

    @property
    def bounds(self) -> tuple[float | None, float]:
        return 0.0, _PAY

    def score(self, text: str, row: Row) -> float | None:
        if self.legacy:
            return _PAY if published_answer(text).isdigit() else 0.0
        return _PAY if _is_integer(extract_block(text)) and _is_integer(row.gold) else 0.0


def _is_integer(text: str | None) -> bool:
    found = number(text) if text is not None else None
    return found is not None and found.is_integer
