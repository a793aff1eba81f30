"""The reward `math_verify`: the answer is right where the gold is LaTeX or symbolic, not just a number."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from toolkit.answers import extract_block
from toolkit.errors import DataError
from toolkit.rewards.base import RewardBase
from toolkit.tasks.base import Row
from toolkit.tasks.symbolic import TIMEOUT_S, is_readable, same_expression

_PAY = 1.0
_SHOWN = 5
_BOX = "\\boxed{"
_TAG = re.compile(r"<(/?)(?:think|reasoning)>")


class MathVerify(RewardBase):
    """1.0 when the answer block that counts is mathematically the same as the gold, else 0. No tags, no pay.

    Range 0 or 1. Abstains (None) where the gold cannot be read or the time limit is reached. Numbers are compared
    exactly, as by `correctness`. After Math-Verify (H. Kydlíček, Hugging Face, 2025), which decides the rest.
    """

    name: Literal["math_verify"] = "math_verify"
    reads_gold: ClassVar[bool] = True
    boxed: bool = False
    """Without any answer tag, take the last `\\boxed{…}` after the reasoning."""
    timeout_s: Annotated[float, Field(gt=0, le=60)] = TIMEOUT_S
    """Seconds of computing for one answer; waiting on a busy machine is at most four times as long."""

    @property
    def bounds(self) -> tuple[float | None, float]:
        return 0.0, _PAY

    def score(self, text: str, row: Row) -> float | None:
        if not row.gold.strip():
            return None
        answer = extract_block(text)
        if answer is None and self.boxed and "<answer>" not in text:
            answer = _last_box(text)
        if answer is None:
            return 0.0
        verdict = same_expression(answer, row.gold, timeout_s=self.timeout_s)
        return None if verdict is None else _PAY * verdict

    def ready(self, rows: Sequence[Row]) -> None:
        known = {gold: is_readable(gold, timeout_s=self.timeout_s) for gold in {row.gold for row in rows}}
        unread = [row for row in rows if not known[row.gold]]
        if unread:
            shown = ", ".join(f"{row.id} ({row.gold[:40]!r})" for row in unread[:_SHOWN])
            more = ", …" if len(unread) > _SHOWN else ""
            message = f"math_verify cannot read the gold of {len(unread)} of {len(rows)} rows: {shown}{more}"
            raise DataError(message, hint="leave these rows out, or write their golds in LaTeX")


def _last_box(text: str) -> str | None:
    """The content of the last `\\boxed{…}` after the reasoning, or None: not there, or cut off."""
    tags = list(_TAG.finditer(text))
    if tags and not tags[-1][1]:
        return None
    start = text.rfind(_BOX, tags[-1].end() if tags else 0)
    opened = start + len(_BOX)
    depth = 1
    for place in range(opened, len(text) if start >= 0 else 0):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if not depth:
            return text[opened:place]
    return None
