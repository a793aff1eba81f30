"""The published way to cut the answer out of a completion, for `legacy: true`. No other code may use it."""

from __future__ import annotations


def published_answer(text: str) -> str:
    """What follows the last opening tag, up to a closing one; the whole text where there are no tags."""
    return text.rpartition("<answer>")[2].partition("</answer>")[0].strip()
