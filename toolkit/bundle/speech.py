"""How one GGUF file is spoken to: its chat template, BOS and stop tokens, and the template once more for Ollama.

It runs no model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from toolkit.atomic import read_json
from toolkit.bundle.go_template import Messages, Turns, turns_of
from toolkit.fixed_chats import CHATS
from toolkit.llamacpp import GgufFile, render_chat
from toolkit.llamacpp.vocabulary import adds_bos
from toolkit.prompts import messages, suited, takes_system

_TODAY = re.compile(r"""strftime_now\(\s*(['"])(.*?)\1\s*\)""")
"""Where a Jinja template writes today's date. Ollama's language has a function for that since 2025, of one form, 2026-11-30."""
QUESTION = "What is 12 + 345?"
UNLIKE: dict[str, list[dict[str, str]]] = {
    "white space at the ends of a message": [{"role": "user", "content": "  Name a colour.\n"}],
    "thoughts in earlier answers": [
        {"role": "user", "content": "Name a colour."},
        {"role": "assistant", "content": "<think>\nOne of them.\n</think>\n\nRed."},
        {"role": "user", "content": "Another?"},
    ],
}
"""What many Jinja templates take away and Go's language cannot, as Ollama offers it: said, but no reason to do without."""


@dataclass(frozen=True, slots=True)
class Speech:
    """Template and tokens of a file, as llama.cpp has them."""

    template: str | None
    bos: str
    eos: str
    adds_bos: bool
    """Whether llama.cpp puts BOS before a prompt by itself; Ollama lets it, so its templates must not write one."""
    stops: tuple[str, ...]
    day: date = field(default_factory=date.today)
    """What the template takes for today, should it write the date."""

    def render(self, chat: Messages, generate: bool) -> str | None:
        """The chat as training wrote it; None where the file's template refuses it, which each does in words of its own."""

        def write(chat: list[dict[str, str]]) -> str:
            return render_chat(self._template_of_that_day(), chat, bos=self.bos, eos=self.eos, generate=generate)

        try:
            return write(suited(chat, write)) or None
        except Exception:
            return None

    def _template_of_that_day(self) -> str:
        return _TODAY.sub(lambda found: json.dumps(self.day.strftime(found[2])), self.template or "")

    def without_bos(self, chat: Messages, generate: bool) -> str | None:
        text = self.render(chat, generate)
        return text if text is None or not self.adds_bos else text.removeprefix(self.bos)


@dataclass(frozen=True, slots=True)
class OllamaTemplate:
    """A Go template and what its reader has to know. `template` is None where none writes what the training wrote."""

    template: str | None
    notes: tuple[str, ...]


def speech_of(gguf: Path, merged: Path, *, day: date | None = None) -> Speech:
    """From the header of the file; which tokens end an answer, from the merged model's generation config."""
    file = GgufFile(gguf)
    ids = read_json(merged / "generation_config.json")["eos_token_id"]
    return Speech(
        template=file.field("tokenizer.chat_template"),
        bos=_token(file, file.field("tokenizer.ggml.bos_token_id")),
        eos=_token(file, file.field("tokenizer.ggml.eos_token_id")),
        adds_bos=adds_bos(gguf),
        stops=tuple(_token(file, number) for number in (ids if isinstance(ids, list) else [ids])),
        day=day or date.today(),
    )


def has_system_role(merged: Path) -> bool:
    """Whether the merged model's chat template has one. Where it has none, the system text stands in the first user turn."""
    path = merged / "chat_template.jinja"
    template = path.read_bytes().decode("utf-8") if path.is_file() else ""
    return takes_system(lambda chat: render_chat(template, chat, bos="", eos=""))


def _token(file: GgufFile, number: Any) -> str:
    return file.tokens[number] if isinstance(number, int) and 0 <= number < len(file.tokens) else ""


def ollama_template(speech: Speech, system: str) -> OllamaTemplate:
    """The Go template that writes what training wrote, on the fixed chats and on a question under the training's prompt."""
    chats = {**CHATS, "a question of the training": messages(QUESTION, system)}
    expected = {name: text for name, chat in chats.items() if (text := speech.without_bos(chat, True)) is not None}
    if not expected:
        return OllamaTemplate(None, ("The file has no chat template that writes a chat.",))
    if speech.adds_bos and any(speech.render(chats[name], True) == text for name, text in expected.items()):
        return OllamaTemplate(None, (f"Ollama puts {speech.bos} before every prompt, and the training did not.",))
    turns = turns_of(speech.without_bos)
    if turns is None:
        return OllamaTemplate(
            None, ("The model's own template writes no plain turns, and Go's language has no other for it.",)
        )
    wrong = [name for name, text in expected.items() if turns.render(chats[name]) != text]
    if wrong:
        return OllamaTemplate(None, (f"No template of Go writes the text of the training for: {', '.join(wrong)}.",))
    checked = f"TEMPLATE writes the text of the training: the same on all of {len(expected)} chats."
    return OllamaTemplate(turns.go(), (checked, *_unlike(speech, turns)))


def _unlike(speech: Speech, turns: Turns) -> Iterable[str]:
    for what, chat in UNLIKE.items():
        if speech.without_bos(chat, True) not in (None, turns.render(chat)):
            yield f"Unlike the model's own template it keeps {what}."
    if _TODAY.search(speech.template or ""):
        yield f"The model's own template writes the day's date. Here stands that of the training, {speech.day:%d %b %Y}."
