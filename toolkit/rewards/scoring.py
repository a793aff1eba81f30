"""Scores completions with a list of rewards: one at a time, or a JSONL file of them. It prints nothing."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.answers import gold_text, number
from toolkit.errors import DataError, nearest
from toolkit.rewards.base import RewardBase
from toolkit.rewards.correctness import Correctness
from toolkit.rewards.integer import Integer
from toolkit.rewards.python import Python
from toolkit.tasks.base import Row, TaskBase
from toolkit.tasks.cells import RowFault
from toolkit.tasks.chats import conversation, is_conversation
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

    A line holds `completion` (text, or a list of chat messages), `gold` (or the task's own column, or GSM8K's `answer`) where a
    reward reads it, and whatever columns rewards ask for. A gold that cannot be read never pays; it is logged with its
    line number.
    """
    for at, batch in enumerate(_batches(_completions(Path(path), task))):
        texts, rows = [text for text, _ in batch], [row for _, row in batch]
        if not at:
            _require_columns(rewards, rows)
        _warn_of_golds(rewards, rows)
        paid = {reward.name: reward.score_batch(texts, rows) for reward in rewards}
        for place in range(len(batch)):
            values = {name: scores[place] for name, scores in paid.items()}
            yield {"rewards": values, "total": total(rewards, values)}


def _require_columns(rewards: Sequence[RewardBase], rows: Sequence[Row]) -> None:
    """A user's function is compared with what the first rows hold before it is called. A gold may be missing here or there."""
    for reward in rewards:
        if isinstance(reward, Python):
            reward.ready([row for row in rows if row.gold] or rows)


def _completions(path: Path, task: TaskBase) -> Iterator[tuple[str, Row]]:
    where = None
    for line, record in read_jsonl(path):
        where = f"{path}:{line}"
        if "completion" not in record:
            near = nearest("completion", record)
            hint = f"is {near} meant to be completion?" if near else None
            found = ", ".join(record) or "none"
            raise DataError(f"there is no completion; keys found: {found}", where=where, hint=hint)
        yield completion_text(record["completion"], where), _row(record, where, task)
    if where is None:
        raise DataError("there are no completions", where=str(path))


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
            gold = f"the gold {row.gold[:60]!r} cannot be read as a number" if row.gold else "no gold can be read"
            _log.warning("%s: %s, so it never pays", row.id, gold)


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
    gold = _gold(record, task.column_names.get("gold", "gold"))
    cell = record.get(task.column_names.get("prompt", "question"), record.get("question", record.get("prompt")))
    try:
        talk = conversation(cell) if is_conversation(cell) else None
    except RowFault as fault:
        raise DataError(f"the prompt cannot be read: {fault}", where=where) from fault
    question = talk.question if talk else cell if isinstance(cell, str) else ""
    chat = talk.messages if talk and len(talk.messages) > 1 else ()
    columns = {name: value for name, value in record.items() if name not in ("completion", "gold")}
    return Row(where, question, gold, judge=task.judge_of(gold), chat=chat, columns=columns)


def _gold(record: Mapping[str, Any], column: str) -> str:
    for name in ("gold", column):
        if name in record and name != "completion":
            return gold_text(record[name])
    return _gold_of_answer(record.get("answer"))


def _gold_of_answer(answer: object) -> str:
    text = gold_text(answer)
    return split_answer(text)[1] or "" if "####" in text else text
