"""The tasks that a recipe can name, one file each. Importing this loads no dataset library."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from toolkit.tasks.base import Grade, Row, Split, TaskBase, accepts, fingerprint, folded, grade
from toolkit.tasks.gsm8k import GSM8K
from toolkit.tasks.prompt_list import PromptList
from toolkit.tasks.reasoning_gym import ReasoningGym
from toolkit.tasks.table import Table
from toolkit.tasks.tldr import TLDR

__all__ = [
    "GSM8K", "TASKS", "TLDR", "Grade", "PromptList", "ReasoningGym", "Row", "Split", "Table", "Task", "TaskBase",
    "accepts", "fingerprint", "folded", "grade",
]  # fmt: skip

TASKS: dict[str, type[TaskBase]] = {
    "gsm8k": GSM8K,
    "reasoning_gym": ReasoningGym,
    "tldr": TLDR,
    "prompts": PromptList,
    "table": Table,
}
Task = Annotated[GSM8K | ReasoningGym | TLDR | PromptList | Table, Field(discriminator="name")]
