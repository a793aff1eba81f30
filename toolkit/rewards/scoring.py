"""Scores completions with a list of rewards: one at a time, or a JSONL file of them. It prints nothing."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.answers import gold_text, number
from toolkit.errors import DataError
from toolkit.rewards.base import RewardBase
from toolkit.tasks.base import Row
from toolkit.tasks.gsm8k import split_answer
from toolkit.tasks.jsonl import read_jsonl

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Scores:
    """What each reward pays for one completion, before its weight, and the weighted total."""

    values: dict[str, float | None]
    total: float


def score_text(rewards: Sequence[RewardBase], text: str, row: Row) -> Scores:
    """Ask every reward. One that cannot judge the row (None) adds nothing to the total."""
    values = {reward.name: reward.score(text, row) for reward in rewards}
    total = sum((reward.weight * (values[reward.name] or 0.0) for reward in rewards), 0.0)
    return Scores(values, total)


def score_file(rewards: Sequence[RewardBase], path: str | Path) -> Iterator[dict[str, Any]]:
    """`{"rewards": {name: value}, "total": value}` for each line of a JSONL file of completions with golds.

    A line holds `completion` (text, or a list of chat messages) and `gold` (or GSM8K's `answer`). A gold that
    cannot be read never pays; it is logged with its line number, and the line is scored all the same.
    """
    path = Path(path)
    for line, record in read_jsonl(path):
        where = f"{path}:{line}"
        row = _row(record, where)
        if any(reward.reads_gold for reward in rewards) and number(row.gold) is None:
            _log.warning("%s: the gold %r cannot be read as a number, so it never pays", where, row.gold[:60])
        scores = score_text(rewards, completion_text(record.get("completion"), where), row)
        yield {"rewards": scores.values, "total": scores.total}


def completion_text(completion: object, where: str = "completion") -> str:
    """The text of a completion: itself, or the contents of its assistant messages."""
    if isinstance(completion, str):
        return completion
    if isinstance(completion, Mapping):
        completion = [completion]
    if not isinstance(completion, list) or not all(isinstance(message, Mapping) for message in completion):
        raise DataError("completion must be text or a list of chat messages", where=where)
    spoken = [message for message in completion if message.get("role", "assistant") == "assistant"]
    return "".join(_content(message.get("content"), where) for message in spoken)


def _content(content: object, where: str) -> str:
    """A message's content: text, nothing, or a list of text parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, Mapping) else part for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise DataError("a message's content must be text or a list of text parts", where=where)
    return "".join(str(text) for text in texts)


def _row(record: Mapping[str, Any], where: str) -> Row:
    gold = gold_text(record["gold"]) if "gold" in record else _gold_of_answer(record.get("answer"))
    question = record.get("question")
    return Row(where, question if isinstance(question, str) else "", gold)


def _gold_of_answer(answer: object) -> str:
    text = gold_text(answer)
    return split_answer(text)[1] or "" if "####" in text else text
