"""Markdown out of foreign text: what it says is shown, what it would do in a page is not done."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "\\": "&#92;", "|": "&#124;", "$": "&#36;"}
_MARKS = re.compile(
    r"[`*{}\[\]!~@&<>|$\\]|(?<![a-z0-9])_|_(?![a-z0-9])|:(?=//)|(?<=www)\.|^[#+\-=]|(?<=^\d)[.)](?=\s)|(?<=^\d\d)[.)](?=\s)",
    re.IGNORECASE,
)
"""What Markdown, HTML or formulas read within a line or at its beginning, in links that Markdown finds by itself too."""


def visible(text: object) -> str:
    """Without control characters, overrides of the writing direction and other invisible ones; lines and tabs stay."""
    return "".join(c for c in str(text) if c in "\n\t" or unicodedata.category(c)[0] != "C")


def inline(text: object) -> str:
    """Foreign text within a line: one line, read as nothing but text."""
    line = " ".join(visible(text).split())
    return _MARKS.sub(lambda found: _ENTITIES.get(found[0], f"\\{found[0]}"), line)


def fenced(text: object, language: str = "") -> str:
    """Foreign text as a block of code, behind a fence that is longer than any in it."""
    body = visible(text).rstrip("\n")
    longest = max((len(run) for run in re.findall(r"`+", body)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{body}\n{fence}"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table. Cells are Markdown already."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def link(text: object, address: str) -> str:
    """A link to an address that is known to be one."""
    return f"[{inline(text)}]({address})"
