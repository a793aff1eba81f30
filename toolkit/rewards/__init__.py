"""The reward shelf: every reward that a recipe can name, one file each."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from toolkit.rewards.base import RewardBase
from toolkit.rewards.correctness import Correctness
from toolkit.rewards.integer import Integer
from toolkit.rewards.soft_format import SoftFormat
from toolkit.rewards.strict_format import StrictFormat
from toolkit.rewards.xmlcount import XmlCount

__all__ = [
    "REWARDS", "Correctness", "Integer", "Reward", "RewardBase", "SoftFormat", "StrictFormat", "XmlCount",
]  # fmt: skip

REWARDS: dict[str, type[RewardBase]] = {
    "xmlcount": XmlCount,
    "soft_format": SoftFormat,
    "strict_format": StrictFormat,
    "integer": Integer,
    "correctness": Correctness,
}
Reward = Annotated[XmlCount | SoftFormat | StrictFormat | Integer | Correctness, Field(discriminator="name")]
