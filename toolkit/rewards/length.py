"""The reward `length`: how near a completion's length is to an ideal one. It reads no answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from toolkit.rewards.base import TokenReward
from toolkit.tasks.base import Row


class Length(TokenReward):
    """How near the length is to an ideal one: minus the distance, or, bounded, 1 at the ideal down to 0.

    Range -∞ to 0 (`distance`: -|length - ideal|) or 0 to 1 (`bounded`: max(0, 1 - |length - ideal| / ideal)).
    After reward_len of the Hugging Face LLM course's GRPO practical on smoltldr (2025): -|50 - characters|.
    """

    name: Literal["length"] = "length"
    ideal: Annotated[int, Field(ge=1)]
    """The length that earns most, in `unit`."""
    unit: Literal["characters", "words", "tokens"] = "characters"
    """Characters are code points, words what white space separates, tokens those that the model generated."""
    form: Literal["distance", "bounded"] = "distance"
    """`distance` has no lower end, so it can outweigh every other reward; `bounded` cannot."""

    @property
    def bounds(self) -> tuple[float | None, float]:
        return (None, 0.0) if self.form == "distance" else (0.0, 1.0)

    def score(self, text: str, row: Row) -> float | None:
        return super().score(text, row) if self.unit == "tokens" else self.score_counted(text, row, self._size(text))

    def score_batch(
        self, texts: Sequence[str], rows: Sequence[Row], *, ids: Sequence[Sequence[int]] | None = None
    ) -> list[float | None]:
        if self.unit == "tokens":
            return super().score_batch(texts, rows, ids=ids)
        return [self.score(text, row) for text, row in zip(texts, rows, strict=True)]

    def score_counted(self, text: str, row: Row, tokens: int) -> float | None:
        """Judge a text that is so many units long."""
        distance = abs(tokens - self.ideal)
        return float(-distance) if self.form == "distance" else max(0.0, 1.0 - distance / self.ideal)

    def _size(self, text: str) -> int:
        return len(text) if self.unit == "characters" else len(text.split())
