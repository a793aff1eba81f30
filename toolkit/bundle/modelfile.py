"""Writes Ollama's Modelfile for one GGUF file. It knows no chat template and opens no file.

The format has quotes but no escapes: what stands between three double quotes is taken as it is, except that a line which ends
in three double quotes ends the text, and that characters which do not print are dropped (ollama, parser/parser.go). So every
text is read back here, and one that would not come back as it was has no place in a Modelfile.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Modelfile:
    """What a Modelfile says. Its texts must be such that `quoted` knows a value for them."""

    template: str | None
    system: str
    stops: Sequence[str]
    parameters: Mapping[str, float]
    notes: Sequence[str]
    """Comments at its head."""

    def text(self, gguf: str, *, notes: Sequence[str] = ()) -> str:
        """The file for a GGUF file that lies beside it; `notes` are about that one."""
        lines = [*(f"# {note}" for note in [*self.notes, *notes]), f"FROM ./{gguf}"]
        if self.template is not None:
            lines.append(f"TEMPLATE {quoted(self.template)}")
        if self.system:
            lines.append(f"SYSTEM {quoted(self.system)}")
        lines += [f"PARAMETER stop {quoted(stop)}" for stop in self.stops]
        lines += [f"PARAMETER {name} {value:.10g}" for name, value in self.parameters.items()]
        return "\n".join(lines) + "\n"


def quoted(text: str) -> str | None:
    """The text as a value that Ollama reads as it was; None where there is no such value."""
    quote = '"' if "\n" not in text and '"' not in text else '"""'
    value = quote + text + quote
    return value if _read(value) == text else None


def _read(value: str) -> str | None:
    """What Ollama reads: the value ends at the first end of a line where its quotes are closed."""
    kept = ""
    for character in value + "\n":
        if character in "\r\n" and (inner := _unquoted(kept.strip())) is not None:
            return inner
        if character in "\t\r\n" or _prints(character):
            kept += character
    return None


def _unquoted(text: str) -> str | None:
    for quote in ('"""', '"'):
        if text.startswith(quote):
            whole = len(text) >= 2 * len(quote) and text.endswith(quote)
            return text[len(quote) : -len(quote)] if whole else None
    return text


def _prints(character: str) -> bool:
    """Go's strconv.IsPrint: letters, marks, numbers, punctuation, symbols, and of the spaces the common one."""
    return character == " " or unicodedata.category(character)[0] in "LMNPS"
