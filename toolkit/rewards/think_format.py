"""The reward `think_format`: the layout of models that think in `<think>` tags. It reads no answer."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field

from toolkit.rewards.base import RewardBase
from toolkit.tasks.base import Row

_TAGS = ("<think>", "</think>", "<answer>", "</answer>")
_PAY = 1.0
_PARTIAL_PAY = 0.5


class ThinkFormat(RewardBase):
    """1.0 for `<think>…</think><answer>…</answer>` and nothing else, 0.5 where a section is too thin, else 0.

    Range 0, 0.5 or 1. Each tag once and in this order; white space around the sections is free.
    After open-r1's format_reward (Hugging Face, 2025), which wants every tag on its own line and pays 1 or 0.
    """

    name: Literal["think_format"] = "think_format"
    min_think_chars: Annotated[int, Field(ge=0)] = 10
    """Fewer characters of thinking, without the white space around them, earn half."""
    min_answer_chars: Annotated[int, Field(ge=0)] = 1
    """Fewer characters of answer, without the white space around them, earn half."""

    @property
    def bounds(self) -> tuple[float | None, float]:
        return 0.0, _PAY

    def score(self, text: str, row: Row) -> float | None:
        sections = _sections(text)
        if sections is None:
            return 0.0
        think, answer = sections
        return _PAY if think >= self.min_think_chars and answer >= self.min_answer_chars else _PARTIAL_PAY


def _sections(text: str) -> tuple[int, int] | None:
    """How long the two sections are, or None where the text is not made of exactly these."""
    text = text.strip()
    if any(text.count(tag) != 1 for tag in _TAGS):
        return None
    starts = [text.index(tag) for tag in _TAGS]
    if starts != sorted(starts) or starts[0] != 0 or starts[-1] + len(_TAGS[-1]) != len(text):
        return None
    ends = [start + len(tag) for start, tag in zip(starts, _TAGS, strict=True)]
    think, between, answer = (text[ends[left] : starts[right]].strip() for left, right in pairwise(range(len(_TAGS))))
    return None if between else (len(think), len(answer))
