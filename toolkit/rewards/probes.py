"""Texts to try rewards on: right answers in several forms, and texts that are none. It scores nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from toolkit.answers import canonical, read_number
from toolkit.prompts import format_completion
from toolkit.tasks.base import Row, TaskBase

SAME_FORM, WRONG = "several lines", "wrong answer in the right form"
"""A form of the right answer, and the probe that differs from it by the answer alone."""
_REASONING = "First I write down what is given.\nThen I work it out step by step."


@dataclass(frozen=True, slots=True)
class Probe:
    """A text that must not be paid as an answer. `form_may_pay`: its form is right, so form rewards may."""

    name: str
    make: Callable[[Row, TaskBase], str]
    form_may_pay: bool = False


def perfect(row: Row, task: TaskBase) -> str:
    """The completion that should earn everything."""
    return task.worked(row) or format_completion(_REASONING, _gold(row))


def variants(row: Row, task: TaskBase) -> dict[str, str]:
    """The right answer in the forms that a model writes it in."""
    one_line = format_completion("I work it out.", _gold(row))
    return {
        "as asked": perfect(row, task),
        "newline at the end": perfect(row, task) + "\n",
        SAME_FORM: format_completion(_REASONING, _gold(row)),
        "one line of reasoning": one_line,
        "one line of reasoning, newline at the end": one_line + "\n",
        "without line breaks": one_line.replace("\n", ""),
        "chatter after the answer": perfect(row, task) + "\nI hope this helps.",
        "think tags": f"<think>\n{_REASONING}\n</think>\n<answer>\n{_gold(row)}\n</answer>",
    }


def plain_texts(row: Row, task: TaskBase) -> dict[str, str]:
    """Texts of several lengths and forms for a row without a gold: a model might write any of them."""
    worked = task.worked(row)
    return ({"worked solution": worked} if worked else {}) | {
        "a word": "Yes.",
        "a sentence": "This is one sentence that says something about what was asked.",
        "a paragraph": " ".join(f"This is sentence {number} of a longer text." for number in range(1, 13)),
        "in the reasoning format": format_completion(_REASONING, "Yes."),
        "in the think format": f"<think>\n{_REASONING}\n</think>\n<answer>\nThis is what I think.\n</answer>",
    }


def _gold(row: Row) -> str:
    return row.gold if row.judge else canonical(row.gold) or row.gold


def _other(row: Row) -> str:
    value = None if row.judge else read_number(row.gold)
    return row.gold + "x" if value is None else str(value + 1)


def _two_candidates(row: Row, task: TaskBase) -> str:
    return format_completion(_REASONING, f"{_other(row)} or {_gold(row)}")


def _inside(row: Row, task: TaskBase) -> str:
    return f"<reasoning>\n{_REASONING}\n<answer>\n{_gold(row)}\n</answer>\n</reasoning>"


def _cut_off(row: Row, task: TaskBase) -> str:
    return perfect(row, task).rpartition("\n</answer>")[0]


def _chatter(row: Row, task: TaskBase) -> str:
    return "Let me think about this once more. " * 100 + f"The answer is {_gold(row)}."


def _prompt(row: Row, task: TaskBase) -> str:
    return "\n\n".join(message["content"] for message in task.messages(row))


GOLDLESS_PROBES: tuple[Probe, ...] = (
    Probe("empty text", lambda row, task: ""),
    Probe("one phrase over and over", lambda row, task: "Let me think about this once more. " * 100),
    Probe("prompt copied back", _prompt),
)
"""What may earn something where there is no right answer, and should not earn the most."""

PROBES: tuple[Probe, ...] = (
    Probe("empty text", lambda row, task: ""),
    Probe("bare answer", lambda row, task: _gold(row)),
    Probe("answer block without reasoning", lambda row, task: f"<answer>\n{_gold(row)}\n</answer>"),
    Probe("two candidates in the answer", _two_candidates, form_may_pay=True),
    Probe("answer inside the reasoning", _inside),
    Probe("answer cut off", _cut_off),
    Probe("endless chatter without tags", _chatter),
    Probe("prompt copied back", _prompt),
    Probe(WRONG, lambda row, task: format_completion(_REASONING, _other(row)), True),
)
