"""Takes the typographic and LaTeX dress off a text. It decides nothing about numbers.

A rewrite never joins digits that stood apart: what LaTeX or emphasis wraps stays wrapped, in round brackets.
"""

from __future__ import annotations

import re

_SPACES = "\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
_MINUS = "\u2212\u2010\u2011\u2013\ufe63\uff0d"  # minus; hyphens and the en dash, which stand in for it
_TABLE = str.maketrans(dict.fromkeys(_SPACES, " ") | dict.fromkeys(_MINUS, "-"))

# GSM8K's calculator annotations, which are no part of the text.
_ANNOTATION = re.compile(r"(?<![0-9])<<[^<>]*>>")

_FRACTION = r"\\[dt]?frac\s?\{\s?(-?[0-9]+)\s?\}\s?\{\s?([0-9]+)\s?\}(?!\s?[0-9])"
# Square and cubic units: their exponent is no part of the number. After LaTeX a unit may stand in brackets.
_AREA = (
    r"(?<![^\W\d_])(km|m|dm|cm|mm|mi|yd|ft|in|inches|feet|yards|miles|met(?:er|re)s|units)(\)?)"
    r"\s?(?:[²³]|\^\s?(?:[23]|\{\s?[23]\s?\}))(?![\w^])"
)
_LATEX: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\{\s?,\s?\}"), ","),
    (re.compile(r"\{\\[,;: ]\}|\\[,;: ]|\\thinspace(?![a-zA-Z])"), " "),
    (re.compile(r",\\!"), ","),
    (re.compile(r"~(?=\\)"), " "),
    (re.compile(r"\\([$%#&])"), r"\1"),
    (re.compile(r"\\([()\[\]])"), r"\1"),
    (re.compile(r"\^\s?(?:\\circ(?![a-zA-Z])|\{\s?\\circ\s?\})"), "°"),
    (re.compile(r"(\\[dt]?frac)\s?([0-9])\s?([0-9])(?![0-9])"), r"\1{\2}{\3}"),
    (re.compile(r"(?<=[0-9])" + _FRACTION), r" \1/\2"),
    (re.compile(r"(?<![0-9.,])" + _FRACTION), r"\1/\2"),
    (re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|mbox|boxed)\s?\{([^{}]*)\}"), r"(\1)"),
    (re.compile(_AREA), r"\1\2"),
)
# Bold, italics, code. Beside a letter, a digit or another mark it is no emphasis but an operator.
_EMPHASIS = re.compile(r"(?<![\w*`])(\*{1,3}|_{1,3}|`{1,3})(?=[^\s*_`])([^*_`\n]*)(?<=\S)\1(?![\w*`])")
_NESTING = 3
_LATEX_MARKS = ("\\", "{", "^", "²", "³")


def clean(text: str) -> str:
    """Unify spaces, minus signs, line ends; drop annotations, all up to `####`, LaTeX, emphasis, exponents of units."""
    text = straighten(text)
    if "<<" in text:
        text = _ANNOTATION.sub("", text)
    if "#" in text:
        text = text.rpartition("####")[2].strip().lstrip("#")
    if any(mark in text for mark in _LATEX_MARKS):
        text = _without_latex(text)
    if "*" in text or "_" in text or "`" in text:
        text = _without_emphasis(text)
    return text.strip()


def straighten(text: str) -> str:
    """One kind of space, of minus and of line end. Length and positions may change."""
    if not text.isascii():
        text = text.translate(_TABLE).strip().strip("\ufeff\u200b")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _without_latex(text: str) -> str:
    for _ in range(_NESTING):
        before = text
        for pattern, plain in _LATEX:
            text = pattern.sub(plain, text)
        if text == before:
            break
    return text


def _without_emphasis(text: str) -> str:
    for _ in range(_NESTING):
        before, text = text, _EMPHASIS.sub(r"(\2)", text)
        if text == before:
            break
    return text
