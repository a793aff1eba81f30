"""What every reward shares: a frozen pydantic model, text and row in, number out, None = cannot judge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict, PrivateAttr

from toolkit.errors import ToolkitError
from toolkit.tasks.base import Row

Chat = list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a reward may need besides text and row. Both functions load what they need when first called."""

    count_tokens: Callable[[str], int]
    """Tokens of a text by the recipe's tokenizer, without special ones."""
    ask_base: Callable[[Sequence[Chat], int], list[str]]
    """Greedy answers of the recipe's base model, its adapter switched off, of at most so many tokens."""
    max_completion_length: int
    """The recipe's limit, in tokens."""
    token_ids: Callable[[str], list[int]] | None = None
    """A text's tokens by the recipe's tokenizer, without special ones."""
    cache_folder: Path | None = None
    """Where a reward may keep what was dear to get; None: nowhere."""
    spare_length: int | None = None
    """Tokens that the model can read beside the longest prompt and completion; None: not known."""


class RewardBase(BaseModel):
    """One reward. Its fields are its knobs; the class docstring says what it pays and whom it follows."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    reads_gold: ClassVar[bool] = False
    """Whether it compares with the right answer: then it must pay the gold, and no text without an answer."""
    asks_model: ClassVar[bool] = False
    """Whether a score costs a model's answer: then the lint leaves it out, and `ready` is asked instead."""

    name: str
    weight: float = 1.0
    """Factor in the total."""

    _around: Surroundings | None = PrivateAttr(default=None)

    @property
    def bounds(self) -> tuple[float | None, float | None]:
        """Lowest and highest value of `score`; None where it has no such end, or does not know it."""
        raise NotImplementedError

    def score(self, text: str, row: Row) -> float | None:
        """Judge one completion of one row. No text raises."""
        raise NotImplementedError

    def score_batch(
        self, texts: Sequence[str], rows: Sequence[Row], *, ids: Sequence[Sequence[int]] | None = None
    ) -> list[float | None]:
        """Judge completions, each with its row. `ids`: the tokens that each was generated with, where known."""
        return [self.score(text, row) for text, row in zip(texts, rows, strict=True)]

    def ready(self, rows: Sequence[Row]) -> None:
        """Raise a ToolkitError where it could not work on these rows: a column, a file or a server is missing."""

    def within(self, surroundings: Surroundings) -> Self:
        """This reward, able to count tokens and to ask the base model."""
        bound = self.model_copy()
        bound._around = surroundings
        return bound

    @property
    def around(self) -> Surroundings:
        if self._around is None:
            raise ToolkitError(f"the reward {self.name} needs the recipe's model, and was given none")
        return self._around


class TokenReward(RewardBase):
    """A reward that depends on a completion's length in tokens: those it was generated with, else counted again."""

    def score_counted(self, text: str, row: Row, tokens: int) -> float | None:
        """Judge a completion of so many tokens."""
        raise NotImplementedError

    def score(self, text: str, row: Row) -> float | None:
        return self.score_counted(text, row, self.around.count_tokens(text))

    def score_batch(
        self, texts: Sequence[str], rows: Sequence[Row], *, ids: Sequence[Sequence[int]] | None = None
    ) -> list[float | None]:
        counts = [self.around.count_tokens(text) for text in texts] if ids is None else map(len, ids)
        triples = zip(texts, rows, counts, strict=True)
        return [self.score_counted(text, row, count) for text, row, count in triples]


class LegacyReward(RewardBase):
    """A reward of the widely published GSM8K set, right by default, bug for bit as published on request."""

    legacy: bool = False
    """Behave exactly as the published function, its faults included (docs/rewards.md lists them)."""
