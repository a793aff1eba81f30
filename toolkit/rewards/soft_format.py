"""The reward `soft_format`: the two blocks are there, in any layout. It reads no answer."""

from __future__ import annotations

import re
from typing import Literal

from toolkit.answers import find_blocks
from toolkit.rewards.base import LegacyReward
from toolkit.tasks.base import Row

_PAY = 0.5
_PUBLISHED = re.compile(r"<reasoning>.*?</reasoning>\s*<answer>.*?</answer>")


class SoftFormat(LegacyReward):
    """0.5 when the text begins with one reasoning block and one answer block follows; the rest is free.

    Range 0 or 0.5. Each tag once, no block empty; line breaks do not matter.
    After W. Brown's GSM8K GRPO demo (soft_format_reward_func), whose pattern never fires on several lines.
    """

    name: Literal["soft_format"] = "soft_format"

    @property
    def bounds(self) -> tuple[float | None, float]:
        return 0.0, _PAY

    def score(self, text: str, row: Row) -> float | None:
        earned = _PUBLISHED.match(text) is not None if self.legacy else find_blocks(text).soft
        return _PAY if earned else 0.0
