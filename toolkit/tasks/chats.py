"""Conversations as data sets write them -> role and content, in the one form that chat templates take. It renders nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolkit.errors import nearest
from toolkit.tasks.cells import RowFault, text_of

ROLES = ("system", "user", "assistant", "tool")
_ALIASES = {"developer": "system"}
_OTHER_NAMES = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant"}
_TEXT_PARTS = ("text", "input_text")
_CALLS = ("tool_calls", "function_call")
# Text that was meant as messages: JSON, or what str() makes of a list, which is refused.
_MESSAGES = re.compile(r"""\s*\[\s*\{\s*["'](?:role|content|from)["']\s*:""")

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation that asks something, and the answer with which it ended, where it did."""

    messages: tuple[Message, ...]
    answer: str | None = None
    ignored: frozenset[str] = frozenset()
    """Keys of its messages that no template will see."""

    @property
    def question(self) -> str:
        """What the user said last."""
        return next(message["content"] for message in reversed(self.messages) if message["role"] == "user")


def conversation(value: object) -> Conversation:
    """From a list of messages (or the same as JSON text, or one list a key). RowFault says what cannot be used."""
    raw = _as_list(value)
    messages = [_message(item, place) for place, item in enumerate(raw, 1)]
    ignored = frozenset(
        key for item in raw for key, given in item.items() if given is not None and key not in ("role", "content")
    )
    ordered = _system_first(messages)
    answer = ordered.pop()["content"] if ordered and ordered[-1]["role"] == "assistant" else None
    if not any(message["role"] == "user" for message in ordered):
        raise RowFault("the conversation has no user message")
    return Conversation(tuple(ordered), answer, ignored)


def is_conversation(value: object) -> bool:
    """Whether a cell holds messages and not the text of a question."""
    return _MESSAGES.match(value) is not None if isinstance(value, str) else isinstance(value, (list, tuple, Mapping))


def _as_list(value: object) -> list[Mapping[str, Any]]:
    if isinstance(value, str):
        value = _from_json(value)
    if isinstance(value, Mapping):
        value = [value] if isinstance(value.get("role"), str) else _by_message(value)
    if not isinstance(value, (list, tuple)) or not value:
        raise RowFault("the conversation is empty")
    for place, item in enumerate(value, 1):
        if not isinstance(item, Mapping):
            raise RowFault(f"message {place} is no object with role and content")
    return list(value)


def _from_json(text: str) -> Any:
    """The messages in a cell of CSV, which can hold text only."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as cause:
        raise RowFault(f"the conversation is text, and not JSON ({cause}): write it with json.dumps") from None


def _by_message(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """`{"role": [...], "content": [...]}`, as older data sets on the Hub come, message by message."""
    lists = {key: column for key, column in columns.items() if isinstance(column, (list, tuple))}
    if not {"role", "content"} <= set(lists) or len({len(column) for column in lists.values()}) != 1:
        raise RowFault(f"a conversation is a list of messages; keys found: {', '.join(map(str, columns)) or 'none'}")
    return [dict(zip(lists, cells, strict=True)) for cells in zip(*lists.values(), strict=True)]


def _message(item: Mapping[str, Any], place: int) -> Message:
    where = f"message {place}"
    if "from" in item and "value" in item:
        raise RowFault(f"{where} has from and value; write role and content (human is user, gpt is assistant)")
    given = item.get("role")
    if not isinstance(given, str):
        raise RowFault(f"{where} needs role and content; keys found: {', '.join(map(str, item)) or 'none'}")
    if any(item.get(key) for key in _CALLS):
        raise RowFault(f"{where} calls a tool, which cannot be asked here")
    role = _ALIASES.get(given, given)
    if role not in ROLES:
        near = _OTHER_NAMES.get(role.lower()) or nearest(role, ROLES)
        known = f"did you mean {near}?" if near else f"known are {', '.join(ROLES)}"
        raise RowFault(f"{where} has the role {role[:40]!r}; {known}")
    content = _content(item.get("content"), where)
    if not content.strip() and role != "system":
        raise RowFault(f"{where} ({role}) is empty")
    return {"role": role, "content": content}


def _content(content: object, where: str) -> str:
    """A message's text: itself, or its text parts joined as they stand."""
    if not isinstance(content, (list, tuple)):
        return text_of(content, where)
    return "".join(_part(part, where) for part in content)


def _part(part: object, where: str) -> str:
    if isinstance(part, str):
        return text_of(part, where)
    if not isinstance(part, Mapping):
        raise RowFault(f"{where} has a part that is no text")
    given = {key: value for key, value in part.items() if value is not None}
    kind = given.get("type", "text")
    if kind not in _TEXT_PARTS or not isinstance(given.get("text"), str):
        raise RowFault(f"{where} has a part of the type {str(kind)[:40]!r}; only text can be trained on here")
    return text_of(given["text"], where)


def _system_first(messages: Sequence[Message]) -> list[Message]:
    """Several system messages as one, at the front, where templates look for it; an empty one is none."""
    texts = [message["content"] for message in messages if message["role"] == "system"]
    merged = "\n\n".join(text for text in texts if text.strip())
    others = [message for message in messages if message["role"] != "system"]
    return [{"role": "system", "content": merged}, *others] if merged else others
