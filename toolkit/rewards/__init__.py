"""The reward shelf: every reward that a recipe can name, one file each."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from toolkit.rewards.base import RewardBase
from toolkit.rewards.correctness import Correctness
from toolkit.rewards.integer import Integer
from toolkit.rewards.judge import Judge
from toolkit.rewards.length import Length
from toolkit.rewards.math_verify import MathVerify
from toolkit.rewards.overlong import Overlong
from toolkit.rewards.pattern import Pattern
from toolkit.rewards.python import Python
from toolkit.rewards.repetition import Repetition
from toolkit.rewards.soft_format import SoftFormat
from toolkit.rewards.strict_format import StrictFormat
from toolkit.rewards.think_format import ThinkFormat
from toolkit.rewards.xmlcount import XmlCount

__all__ = [
    "REWARDS", "Correctness", "Integer", "Judge", "Length", "MathVerify", "Overlong", "Pattern", "Python", "Repetition",
    "Reward", "RewardBase", "SoftFormat", "StrictFormat", "ThinkFormat", "XmlCount",
]  # fmt: skip

REWARDS: dict[str, type[RewardBase]] = {
    "xmlcount": XmlCount,
    "soft_format": SoftFormat,
    "strict_format": StrictFormat,
    "integer": Integer,
    "correctness": Correctness,
    "math_verify": MathVerify,
    "length": Length,
    "think_format": ThinkFormat,
    "pattern": Pattern,
    "repetition": Repetition,
    "overlong": Overlong,
    "judge": Judge,
    "python": Python,
}
Reward = Annotated[
    XmlCount | SoftFormat | StrictFormat | Integer | Correctness
    | MathVerify | Length | ThinkFormat | Pattern | Repetition | Overlong | Judge | Python,
    Field(discriminator="name"),
]  # fmt: skip
