"""The reward `xmlcount`: partial credit for the layout of the tags. It reads no answer."""

from __future__ import annotations

from typing import Literal

from toolkit.answers import find_blocks
from toolkit.rewards.base import LegacyReward
from toolkit.tasks.base import Row

_PER_TAG = 0.125
_PER_STRAY_CHARACTER = 0.001


class XmlCount(LegacyReward):
    """0.125 for each of the four tags that stands alone on its line, less 0.001 a character after the answer.

    Range 0 to 0.5. Nothing where `soft_format` pays nothing: tags missing, unclosed, repeated, nested, empty.
    After W. Brown's GSM8K GRPO demo (xmlcount_reward_func), which counts single tags and fines a clean end.
    """

    name: Literal["xmlcount"] = "xmlcount"

    @property
    def bounds(self) -> tuple[float | None, float]:
        return (None if self.legacy else 0.0), 4 * _PER_TAG

    def score(self, text: str, row: Row) -> float | None:
        if self.legacy:
            return _published(text)
        blocks = find_blocks(text)
        return max(0.0, _PER_TAG * blocks.own_line - _PER_STRAY_CHARACTER * blocks.after)


def _published(text: str) -> float:
    """The published arithmetic in its order, so that even the rounding agrees."""
    value = 0.0
    if text.count("<reasoning>\n") == 1:
        value += 0.125
    if text.count("\n</reasoning>\n") == 1:
        value += 0.125
    if text.count("\n<answer>\n") == 1:
        value += 0.125
        value -= len(text.split("\n</answer>\n")[-1]) * 0.001
    if text.count("\n</answer>") == 1:
        value += 0.125
        value -= (len(text.split("\n</answer>")[-1]) - 1) * 0.001
    return value
