"""The reward `overlong`: a soft penalty towards the completion limit. It reads no answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from toolkit.errors import KeyFault, ToolkitError
from toolkit.rewards.base import TokenReward
from toolkit.tasks.base import Row


class Overlong(TokenReward):
    """0 up to `cache` tokens below the limit, from there down in a line to -1 at the limit, -1 beyond.

    Range -1 to 0: within the cache ((limit - cache) - tokens) / cache.
    After DAPO's soft overlong punishment (Yu et al. 2025, arXiv:2503.14476, equation 13).
    """

    name: Literal["overlong"] = "overlong"
    max_length: Annotated[int, Field(ge=1)] | None = None
    """The limit in tokens, DAPO's L_max; null takes grpo.max_completion_length."""
    cache: Annotated[int, Field(ge=1)]
    """Tokens below the limit in which the penalty grows, DAPO's L_cache; there a fifth of the limit."""

    @model_validator(mode="after")
    def _cache_below_limit(self) -> Self:
        if self.max_length is not None and self.cache >= self.max_length:
            raise KeyFault(_too_large(self.cache, self.max_length), at=("cache",), hint=_smaller(self.max_length))
        return self

    @property
    def bounds(self) -> tuple[float, float]:
        return -1.0, 0.0

    def ready(self, rows: Sequence[Row]) -> None:
        limit = self.max_length or (self._around and self._around.max_completion_length)
        if limit and self.cache >= limit:
            raise ToolkitError(_too_large(self.cache, limit), where="the reward overlong", hint=_smaller(limit))

    def score_counted(self, text: str, row: Row, tokens: int) -> float | None:
        limit = self.max_length or self.around.max_completion_length
        over = tokens - (limit - self.cache)
        return 0.0 if over <= 0 else max(-1.0, -over / self.cache)


def _too_large(cache: int, limit: int) -> str:
    return f"cache {cache} must be below the limit of {limit} tokens: else even the shortest text is punished"


def _smaller(limit: int) -> str:
    return f"for example {max(1, limit // 5)}, a fifth of the limit as in DAPO"
