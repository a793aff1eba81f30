"""The reward `strict_format`: exactly the format that the system prompt asks for. It reads no answer."""

from __future__ import annotations

import re
from typing import Literal

from toolkit.answers import find_blocks
from toolkit.rewards.base import LegacyReward
from toolkit.tasks.base import Row

_PAY = 0.5
_PUBLISHED = re.compile(r"^<reasoning>\n.*?\n</reasoning>\n<answer>\n.*?\n</answer>\n$")


class StrictFormat(LegacyReward):
    """0.5 when the text is one reasoning and one answer block, every tag alone on its line, nothing else.

    Range 0 or 0.5. Any number of lines inside; white space around the whole is free, ending at the tag too.
    After W. Brown's GSM8K GRPO demo (strict_format_reward_func), which refuses several lines and a clean end.
    """

    name: Literal["strict_format"] = "strict_format"

    @property
    def bounds(self) -> tuple[float | None, float]:
        return 0.0, _PAY

    def score(self, text: str, row: Row) -> float | None:
        earned = _PUBLISHED.match(text) is not None if self.legacy else find_blocks(text).strict
        return _PAY if earned else 0.0
