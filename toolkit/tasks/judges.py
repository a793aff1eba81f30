"""Decides whether an answer is a gold that is no number: a text, or an expression. Both survive pickling."""

from __future__ import annotations

from dataclasses import dataclass

from toolkit.tasks.base import folded


@dataclass(frozen=True, slots=True)
class TextJudge:
    """The same text but for case, white space and the ways in which Unicode spells one letter."""

    gold: str

    def __call__(self, answer: str) -> bool:
        return folded(answer) == folded(self.gold)


@dataclass(frozen=True, slots=True)
class MathJudge:
    """The same expression, by computer algebra: `x^2-1` is `(x-1)(x+1)`."""

    gold: str

    def __call__(self, answer: str) -> bool:
        from toolkit.tasks.symbolic import same_expression

        return same_expression(answer, self.gold) is True
