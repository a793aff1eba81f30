"""A model's chat template once more, in Go's template language as Ollama runs it. It reads and writes no file.

A Jinja template is not translated but questioned: chats of marked words show what it writes before and after the words of
each role. From that a Go template is made, which counts only where it writes the same text as the Jinja template on every chat
of a list.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

Messages = Sequence[Mapping[str, str]]
Render = Callable[[Messages, bool], str | None]
"""A chat, and whether an answer is to begin -> its text without BOS; None where the template refuses the chat."""
Around = tuple[str, str]
"""What is written before and after."""

SYSTEM, USER, ANSWER, LATER = "toolkit-system-mark", "toolkit-user-mark", "toolkit-answer-mark", "toolkit-later-mark"


@dataclass(frozen=True, slots=True)
class Turns:
    """What a template writes around the words of each role."""

    user: Around
    assistant: Around
    generate: str
    """The beginning of an answer."""
    head: str
    """Written first where the chat has no system message; where it is folded, always."""
    system: Around | None
    """Around the system message; None where the template never writes it."""
    folded: bool
    """Whether the system message, with what is around it, stands in the first user turn, before the user's words."""

    def go(self) -> str:
        """The template in Go's text/template, for what Ollama passes: .System, and .Messages with .Role and .Content."""
        user = _around(self.user, (_folded_system(self.system) if self.folded else "") + "{{ .Content }}")
        assistant = _around(self.assistant, "{{ .Content }}")
        return (
            self._go_head()
            + f'{{{{ range .Messages }}}}{{{{ if eq .Role "user" }}}}{user}'
            + f'{{{{ else if eq .Role "assistant" }}}}{assistant}{{{{ end }}}}{{{{ end }}}}'
            + _literal(self.generate)
        )

    def _go_head(self) -> str:
        default = _literal(self.head)
        if self.system is None or self.folded:
            return default + ("{{ $system := .System }}" if self.folded else "")
        system = "{{ if .System }}" + _around(self.system, "{{ .System }}")
        return system + (f"{{{{ else }}}}{default}" if default else "") + "{{ end }}"

    def render(self, messages: Messages) -> str:
        """What Ollama writes for this chat with `go()`: a test holds the two together, through Go itself."""
        system = "\n\n".join(message["content"] for message in messages if message["role"] == "system")
        whole = system.join(self.system) if system and self.system else ""
        text = whole if whole and not self.folded else self.head
        for role, content in _collated(messages):
            if role == "user":
                text += (whole + content if self.folded else content).join(self.user)
                whole = whole and ""
            elif role == "assistant":
                text += content.join(self.assistant)
        return text + self.generate


def turns_of(render: Render) -> Turns | None:
    """The turns of a template; None where what it writes is no row of turns."""
    user, answer = _message("user", USER), _message("assistant", ANSWER)
    try:
        begun, between, again, end = _cut(render([user, answer, _message("user", LATER)], True), USER, ANSWER, LATER)
        user_end = _cut(render([user], False), USER)[1]
        answer_end = _cut(render([user, answer], False), ANSWER)[1]
        before_user = _without_start(again, answer_end)
        head = _without_end(begun, before_user)
        system, folded = _system_of(render, head, before_user)
        return Turns(
            user=(before_user, user_end),
            assistant=(_without_start(between, user_end), answer_end),
            generate=_without_start(end, user_end),
            head=head,
            system=system,
            folded=folded,
        )
    except ValueError:
        return None


def _system_of(render: Render, head: str, before_user: str) -> tuple[Around | None, bool]:
    """Around the system message, and whether it is folded into the user's turn."""
    text = render([_message("system", SYSTEM), _message("user", USER)], True)
    if text is None or SYSTEM not in text:
        return None, False
    before, between, _ = _cut(text, SYSTEM, USER)
    if between.endswith(before_user):
        return (before, _without_end(between, before_user)), False
    return (_without_start(before, head + before_user), between), True


def _cut(text: str | None, *marks: str) -> list[str]:
    """The pieces of the text between the marks, each of which stands in it once, in this order."""
    pieces = [text or ""]
    for mark in marks:
        if pieces[-1].count(mark) != 1:
            raise ValueError(f"the template does not write {mark} once")
        pieces += pieces.pop().split(mark)
    return pieces


def _without_start(text: str, start: str) -> str:
    if not text.startswith(start):
        raise ValueError("what is written around a turn depends on its neighbours")
    return text[len(start) :]


def _without_end(text: str, end: str) -> str:
    if not text.endswith(end):
        raise ValueError("what is written around a turn depends on its neighbours")
    return text[: len(text) - len(end)]


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _collated(messages: Messages) -> Iterator[tuple[str, str]]:
    """As Ollama hands messages to a template: neighbours of one role are one message (template/template.go, collate)."""
    for role, group in groupby(messages, key=lambda message: message["role"]):
        yield role, "\n\n".join(message["content"] for message in group)


def _folded_system(system: Around | None) -> str:
    """Within the first user turn: a variable that is emptied once it is written."""
    assert system is not None
    return "{{ if $system }}" + _around(system, "{{ $system }}") + '{{ $system = "" }}{{ end }}'


def _around(words: Around, inner: str) -> str:
    return inner.join(map(_literal, words))


def _literal(text: str) -> str:
    """A text that Go's template language writes as it stands: as a string in an action where it would read braces."""
    if "{{" not in text and not text.endswith("{"):
        return text
    return "{{ " + json.dumps(text, ensure_ascii=False) + " }}"
