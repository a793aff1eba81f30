"""What every reward shares: a frozen pydantic model, text and row in, number out, None = cannot judge."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from toolkit.tasks.base import Row


class RewardBase(BaseModel):
    """One reward. Its fields are its knobs; the class docstring says what it pays and whom it follows."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    reads_gold: ClassVar[bool] = False
    """Whether it compares with the right answer: then it must pay the gold, and no text without an answer."""

    name: str
    weight: float = 1.0
    """Factor in the total."""

    @property
    def bounds(self) -> tuple[float | None, float]:
        """Lowest and highest value of `score`; None where it has no lower end."""
        raise NotImplementedError

    def score(self, text: str, row: Row) -> float | None:
        """Judge one completion of one row. Pure; no text raises."""
        raise NotImplementedError


class LegacyReward(RewardBase):
    """A reward of the widely published GSM8K set, right by default, bug for bit as published on request."""

    legacy: bool = False
    """Behave exactly as the published function, its faults included (docs/rewards.md lists them)."""
