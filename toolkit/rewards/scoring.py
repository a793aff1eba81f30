"""Scores completions with a list of rewards: one at a time, or a JSONL file of them. It prints nothing."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.answers import gold_text, number
from toolkit.errors import DataError
from toolkit.rewards.base import RewardBase
from toolkit.rewards.correctness import Correctness
from toolkit.rewards.integer import Integer
from toolkit.tasks.base import Row, TaskBase
from toolkit.tasks.files import read_jsonl
from toolkit.tasks.gsm8k import split_answer

_log = logging.getLogger(__name__)
BATCH = 64
"""Completions that a reward sees together: one that asks a server may ask for several at once."""


@dataclass(frozen=True, slots=True)
class Scores:
    """What each reward pays for one completion, before its weight, and the weighted total."""

    values: dict[str, float | None]
    total: float


def score_text(rewards: Sequence[RewardBase], text: str, row: Row) -> Scores:
    """Ask every reward. One that cannot judge the row (None) adds nothing to the total."""
    values = {reward.name: reward.score(text, row) for reward in rewards}
    return Scores(values, total(rewards, values))


def total(rewards: Sequence[RewardBase], values: Mapping[str, float | None]) -> float:
    """The weighted sum; a reward that abstains adds nothing."""
    return sum((reward.weight * (values[reward.name] or 0.0) for reward in rewards), 0.0)


def score_file(rewards: Sequence[RewardBase], path: str | Path, *, task: TaskBase) -> Iterator[dict[str, Any]]:
    """`{"rewards": {name: value}, "total": value}` for each line of a JSONL file of completions with golds.

    A line holds `completion` (text, or a list of chat messages), `gold` (or GSM8K's `answer`) where a reward reads it, and
    whatever columns rewards ask for. A gold that cannot be read never pays; it is logged with its line number.
    """
    for batch in _batches(_completions(Path(path), task)):
        texts, rows = [text for text, _ in batch], [row for _, row in batch]
        _warn_of_golds(rewards, rows)
        paid = {reward.name: reward.score_batch(texts, rows) for reward in rewards}
        for place in range(len(batch)):
            values = {name: scores[place] for name, scores in paid.items()}
            yield {"rewards": values, "total": total(rewards, values)}


def _completions(path: Path, task: TaskBase) -> Iterator[tuple[str, Row]]:
    for line, record in read_jsonl(path):
        where = f"{path}:{line}"
        yield completion_text(record.get("completion"), where), _row(record, where, task)


def _batches(completions: Iterable[tuple[str, Row]]) -> Iterator[list[tuple[str, Row]]]:
    """At most BATCH at a time. Before an error, those that came before it."""
    batch: list[tuple[str, Row]] = []
    try:
        for completion in completions:
            batch.append(completion)
            if len(batch) == BATCH:
                yield batch
                batch = []
    except DataError:
        if batch:
            yield batch
        raise
    if batch:
        yield batch


def _warn_of_golds(rewards: Sequence[RewardBase], rows: Sequence[Row]) -> None:
    if not any(isinstance(reward, (Correctness, Integer)) for reward in rewards):
        return
    for row in rows:
        if row.judge is None and number(row.gold) is None:
            _log.warning("%s: the gold %r cannot be read as a number, so it never pays", row.id, row.gold[:60])


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


def _row(record: Mapping[str, Any], where: str, task: TaskBase) -> Row:
    gold = gold_text(record["gold"]) if "gold" in record else _gold_of_answer(record.get("answer"))
    question = record.get("question", record.get("prompt"))
    text = question if isinstance(question, str) else ""
    columns = {name: value for name, value in record.items() if name not in ("completion", "gold")}
    return Row(where, text, gold, judge=task.judge_of(gold), columns=columns)


def _gold_of_answer(answer: object) -> str:
    text = gold_text(answer)
    return split_answer(text)[1] or "" if "####" in text else text
