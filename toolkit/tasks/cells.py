"""What a cell of a table says as text, the same whether the table came as CSV, JSON, parquet or from the Hub.

The rule is what a CSV copy of the table would hold: text as it stands, numbers in the digits in which they were written,
True and False, dates as `2026-11-30`.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from toolkit.answers import canonical, gold_text

_DATES = (datetime.date, datetime.time, datetime.timedelta)
_EXPONENT = re.compile(r"[-+]?[0-9]+(?:\.[0-9]+)?[eE][-+]?[0-9]{1,3}")


class RowFault(ValueError):
    """Why a row cannot be used, in words that follow its place: `line 3: the gold is empty`."""


def stored(value: Any) -> Any:
    """A value of a typed table (parquet, the Hub) as JSON would hold it: dates as text, nan and infinities missing."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Decimal) and not value.is_finite():
        return None
    return str(value) if isinstance(value, _DATES) else value


def text_of(value: object, what: str = "it") -> str:
    """A cell (`what`) as text; empty where it is missing. RowFault where it holds no single value, or half a character."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value)
    text = value if isinstance(value, str) else gold_text(value)
    if not text and not isinstance(value, str):
        raise RowFault(f"{what} holds a {_kind(value)}, not a text")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise RowFault(f"{what} holds half of a surrogate pair, which is no text") from None
    return text


def number_of(value: object) -> str | None:
    """The number that a cell states, in plain digits, or None. Of typed tables 1e+16 is a number, so in CSV it is one too."""
    text = text_of(value, "the gold").strip()
    return canonical(gold_text(Decimal(text)) if _EXPONENT.fullmatch(text) else text)


def plain(value: Any) -> Any:
    """A value for a user's own code: numbers as Python's int and float, containers likewise."""
    if isinstance(value, Decimal):
        number = float(value)
        return number if math.isfinite(number) else None
    if isinstance(value, list):
        return [plain(item) for item in value]
    return {key: plain(item) for key, item in value.items()} if isinstance(value, dict) else value


def _kind(value: object) -> str:
    if isinstance(value, Mapping):
        return "mapping"
    kinds: dict[type, str] = {list: "list", tuple: "list", bytes: "byte string"}
    return kinds.get(type(value), "number out of range")
