"""The tasks that a recipe can name, one file each. Importing this loads no dataset library."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from toolkit.tasks.base import Grade, Row, Split, TaskBase, accepts, fingerprint, grade
from toolkit.tasks.gsm8k import GSM8K
from toolkit.tasks.reasoning_gym import ReasoningGym

__all__ = [
    "GSM8K", "TASKS", "Grade", "ReasoningGym", "Row", "Split", "Task", "TaskBase",
    "accepts", "fingerprint", "grade",
]  # fmt: skip

TASKS: dict[str, type[TaskBase]] = {"gsm8k": GSM8K, "reasoning_gym": ReasoningGym}
Task = Annotated[GSM8K | ReasoningGym, Field(discriminator="name")]
