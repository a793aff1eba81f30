"""The reward `correctness`: the answer is right, by the one grader that evaluation and verification use."""

from __future__ import annotations

from typing import ClassVar, Literal

from toolkit.answers import extract_block
from toolkit.rewards.base import LegacyReward
from toolkit.rewards.legacy import published_answer
from toolkit.tasks.base import Row, accepts

_PAY = 2.0


class Correctness(LegacyReward):
    """2.0 when the answer block that counts states the gold, else 0. No tags, no pay.

    Range 0 or 2. A gold that cannot be read never pays.
    After W. Brown's GSM8K GRPO demo (correctness_reward_func), which compares text and pays without tags.
    """

    name: Literal["correctness"] = "correctness"
    reads_gold: ClassVar[bool] = True

    @property
    def bounds(self) -> tuple[float | None, float]:
        return 0.0, _PAY

    def score(self, text: str, row: Row) -> float | None:
        right = published_answer(text) == row.gold if self.legacy else accepts(row, extract_block(text))
        return _PAY if right else 0.0
