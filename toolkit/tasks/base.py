"""What every task shares: rows, grades, and the one grader behind rewards, evaluation and verification.

A task is a frozen pydantic model, the object that a recipe names. It loads no model, renders no template.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from toolkit.answers import (
    canonical,
    extract_block,
    is_well_formed,
    read_number,
    same_last_number,
    same_number,
)
from toolkit.prompts import SYSTEM_PROMPT, format_completion, messages

Split = Literal["train", "heldout"]


@dataclass(frozen=True, slots=True)
class Row:
    """One problem. `gold` is the right answer, `solution` a worked reasoning text without tags."""

    id: str
    question: str
    gold: str
    solution: str | None = None
    level: str | None = None
    judge: Callable[[str], bool] | None = field(default=None, compare=False, repr=False)
    """Decides instead of the number reader where the gold is no number."""
    chat: tuple[Mapping[str, str], ...] = ()
    """The conversation that asks, where it is more than a question: role and content of each message."""
    columns: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """The data's own columns, for rewards that ask for them by name."""

    @property
    def text(self) -> str:
        """All that is asked: the question, or the whole conversation. Rows with one text are one problem."""
        return "\n".join(f"{message['role']}: {message['content']}" for message in self.chat) or self.question


@dataclass(frozen=True, slots=True)
class Grade:
    """`strict` needs the tags; `lenient` takes the last number of the text where no block can be read."""

    strict: bool
    lenient: bool
    well_formed: bool


def folded(text: str) -> str:
    """A text for comparing: without case, white space as single spaces, letters in Unicode's composed form (NFC)."""
    composed = unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())
    return " ".join(composed.split())


def accepts(row: Row, answer: str | None) -> bool:
    """Whether the content of an answer block is right. Rewards, evaluation and verification ask here."""
    if answer is None:
        return False
    return row.judge(answer.strip()) if row.judge else same_number(answer, row.gold)


def grade(text: str, row: Row) -> Grade:
    """Judge a whole completion."""
    answer = extract_block(text)
    strict = accepts(row, answer)
    readable = answer is not None and (row.judge is not None or read_number(answer) is not None)
    lenient = strict if readable else same_last_number(text, row.gold)
    return Grade(strict=strict, lenient=lenient, well_formed=is_well_formed(text))


class TaskBase(BaseModel):
    """A dataset with its questions, golds and grader."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    system_prompt: str = SYSTEM_PROMPT
    """Text of the system message that asks for the answer format; empty for none."""

    @property
    def system_text(self) -> str:
        """The system message's text as it is used; empty for none."""
        return self.system_prompt

    @property
    def graded(self) -> bool:
        """Whether its rows have golds. Without them an evaluation compares rewards."""
        return True

    @property
    def column_names(self) -> Mapping[str, str]:
        """What the data call a row's `prompt` and `gold`, where the recipe says so."""
        return {}

    def rows(self, split: Split) -> list[Row]:
        """All rows of a split, in a fixed order. A row that cannot be graded is an error with its place."""
        raise NotImplementedError

    def notices(self, split: Split) -> list[str]:
        """What was renamed, replaced or left out while the rows were made, one sentence each."""
        return []

    def messages(self, row: Row) -> list[dict[str, str]]:
        """The chat that asks the row's question. A conversation that has a system message keeps it."""
        if not row.chat:
            return messages(row.question, self.system_text)
        chat = [dict(message) for message in row.chat]
        has_system = chat[0]["role"] == "system" or not self.system_text
        return chat if has_system else [{"role": "system", "content": self.system_text}, *chat]

    def grade(self, text: str, row: Row) -> Grade:
        """Judge a completion of this row."""
        return grade(text, row)

    def judge_of(self, gold: str) -> Callable[[str], bool] | None:
        """What decides whether an answer is this gold, where the task's golds are no numbers."""
        return None

    def worked(self, row: Row) -> str | None:
        """The completion a teacher would write, for the warm-up; None without a worked solution."""
        if row.solution is None:
            return None
        return format_completion(row.solution, canonical(row.gold) or row.gold)

    def fingerprint(self, split: Split) -> str:
        """SHA-256 over the content of all rows: the same problems in the same order, the same text."""
        return fingerprint(self.rows(split))


def fingerprint(rows: Iterable[Row]) -> str:
    """SHA-256 over rows that are already loaded."""
    digest = hashlib.sha256()
    for row in rows:
        line = json.dumps([row.id, row.question, row.gold, row.solution, row.level, *map(dict, row.chat)])
        digest.update(line.encode("ascii") + b"\n")
    return digest.hexdigest()
