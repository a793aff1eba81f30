"""The reward `repetition`: a penalty for saying the same again. It reads no answer."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field

from toolkit.rewards.base import RewardBase
from toolkit.tasks.base import Row

# Scripts that put no spaces between words: Thai, Lao, Myanmar, Khmer, kana, Han (all planes) and its
# compatibility forms. Each of their characters counts as a word, since text.split() would find none.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_WORD = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")


class Repetition(RewardBase):
    """`max_penalty` times the share of word n-grams that stood before: 0 where none repeats.

    Range `max_penalty` to 0: max_penalty · (1 - different n-grams / all n-grams); 0 below n words. Case is ignored.
    After get_repetition_penalty of Yeo et al. 2025, Demystifying Long Chain-of-Thought Reasoning
    (arXiv:2502.03373, appendix C.2, and its code; open-r1 has the same), words split at white space.
    """

    name: Literal["repetition"] = "repetition"
    ngram_size: Annotated[int, Field(ge=1)] = 3
    """Words in an n-gram."""
    max_penalty: Annotated[float, Field(lt=0)] = -1.0
    """What a text approaches that says one thing again and again."""

    @property
    def bounds(self) -> tuple[float, float]:
        return self.max_penalty, 0.0

    def score(self, text: str, row: Row) -> float | None:
        words = _words(text)
        total = len(words) - self.ngram_size + 1
        if total < 1:
            return 0.0
        different = len(set(zip(*(words[start:] for start in range(self.ngram_size)), strict=False)))
        return self.max_penalty * (1 - different / total) if different < total else 0.0


def _words(text: str) -> list[str]:
    text = text.lower()
    return text.split() if text.isascii() else _WORD.findall(text)
