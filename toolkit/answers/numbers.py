"""Reads the one number that a text states, exactly: integers and decimals of any length, fractions.

What it accepts is listed in docs/rewards.md. A text with two numbers, or one inside something else, states
none. It rounds nothing.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

from toolkit.answers.cleaning import clean
from toolkit.answers.words import leaves_number_alone, rest_after, sign_before

_PLAIN = re.compile(r"([-+]?)([0-9]+)(?:\.([0-9]+))?")
# Digits that belong together: groups, a decimal part, a denominator, a whole number before a fraction.
_CLUSTER = re.compile(r"(?:(?<![\w.])\.)?[0-9]+(?:[,. ][0-9]+)*(?: ?/ ?[0-9]+(?:,[0-9]+)*)*")
_DECIMAL = re.compile(r"([0-9]+|[1-9][0-9]{0,2}(?:,[0-9]{3})+|[1-9][0-9]{0,2}(?: [0-9]{3})+|)(?:\.([0-9]+))?")
_INTEGER = r"[0-9]+|[1-9][0-9]{0,2}(?:,[0-9]{3})+"
_RATIO = re.compile(rf"({_INTEGER}) ?/ ?({_INTEGER})")
# Two digits at most: in `1 200/300` the space might as well separate thousands.
_MIXED = re.compile(r"([0-9]+) ([0-9]{1,2}) ?/ ?([0-9]{1,2})")
_LOOSE = re.compile(r"[0-9]+ ?/ ?[0-9]+|(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+")
# Left of an equals sign stands a calculation or a name. What these separate would be a second statement.
_STATEMENTS = re.compile(r"[;\n]|,\s|\.\s|\b(?:or|and|then|to|vs)\b", re.IGNORECASE)
_COMPARISON = re.compile(r"[<>≠≈≤≥~±?]|!$|!=")
_MAX_LEFT = 300
# Fractions need arithmetic on their digits. A longer one is not read, so that no text costs much time.
_MAX_RATIO_CHARS = 10_000
_CHUNK = 600  # Python refuses longer texts to int() where it is set up strictly
_MAX_EXPONENT = 1_000


@dataclass(frozen=True, slots=True)
class Number:
    """A number as its digits: comparing two costs no more than reading them."""

    negative: bool
    whole: str
    decimals: str = ""
    ratio: Fraction | None = None
    """Set, without a sign, for a fraction that is no whole number; `whole` and `decimals` are empty then."""

    def fraction(self) -> Fraction:
        """The exact value."""
        value = self.ratio
        if value is None:
            value = Fraction(_to_int(self.whole + self.decimals), 10 ** len(self.decimals))
        return -value if self.negative else value

    def plain(self) -> str:
        """`-1248`, `8.5`, `1/3`."""
        sign = "-" if self.negative else ""
        if self.ratio is not None:
            return f"{sign}{self.ratio.numerator}/{self.ratio.denominator}"
        return f"{sign}{self.whole}.{self.decimals}" if self.decimals else sign + self.whole

    @property
    def is_integer(self) -> bool:
        return self.ratio is None and not self.decimals


def same(left: Number | None, right: Number | None) -> bool:
    """Whether both are numbers and equal."""
    if left is None or right is None:
        return False
    if (left.ratio is None) == (right.ratio is None):
        return left == right
    decimal, ratio = (left, right) if left.ratio is None else (right, left)
    # A decimal part of n digits has at most 10**n as its denominator; far longer ones are no short fraction.
    if len(decimal.whole) + len(decimal.decimals) > 2 * _MAX_RATIO_CHARS:
        return False
    return decimal.fraction() == ratio.fraction()


@lru_cache(maxsize=1024)
def number(text: str) -> Number | None:
    """The number that `text` states, if it states exactly one."""
    plain = _PLAIN.fullmatch(text.strip())
    if plain:
        return _decimal(plain[1] == "-", plain[2], plain[3] or "")
    text = clean(text)
    if "=" in text:
        left, _, text = text.rpartition("=")
        if not _is_left_side(left):
            return None
    return _only_number(text)


def is_plain(text: str) -> bool:
    """Whether `text` is an integer or a decimal and nothing else."""
    return _PLAIN.fullmatch(text.strip()) is not None


@lru_cache(maxsize=1024)
def trailing_number(text: str) -> Number | None:
    """The last number anywhere in `text`, whatever stands around it."""
    text = clean(text)
    cluster = _last(_CLUSTER, text, 0, len(text))
    if cluster is None:
        return None
    whole = _value(cluster[0], negative=_is_negative(text, cluster.start()))
    if whole:
        return whole
    piece = _last(_LOOSE, text, cluster.start(), cluster.end())
    return _value(piece[0], negative=_is_negative(text, piece.start())) if piece else None


def _last(pattern: re.Pattern[str], text: str, start: int, end: int) -> re.Match[str] | None:
    found = deque(pattern.finditer(text, start, end), maxlen=1)
    return found[0] if found else None


def _is_negative(text: str, start: int) -> bool:
    """Whether a minus sign, and no subtraction, stands before the number."""
    before = text[max(start - 4, 0) : start].rstrip("$€£")
    return before.endswith("-") and not before[-2:-1].isalnum() and before[-2:-1] not in (")", "-")


def gold_text(value: object) -> str:
    """A gold as text. JSON may hold a number; what is neither text nor a finite number becomes empty."""
    if isinstance(value, bool) or value is None:
        return ""
    if isinstance(value, int):
        return _int_text(value)
    if isinstance(value, float):
        value = Decimal(repr(value))
    if isinstance(value, Decimal):
        return _decimal_text(value)
    if isinstance(value, Fraction):
        return f"{_int_text(value.numerator)}/{_int_text(value.denominator)}"
    return value if isinstance(value, str) else ""


def _is_left_side(left: str) -> bool:
    if len(left) > _MAX_LEFT or _COMPARISON.search(left):
        return False
    return not any(re.search("[0-9]", part) for part in _STATEMENTS.split(left)[:-1])


def _only_number(text: str) -> Number | None:
    found = _CLUSTER.search(text)
    if found is None or _CLUSTER.search(text, found.end()):
        return None
    before = sign_before(text[: found.start()])
    after = rest_after(text[found.end() :])
    if before is None or after is None:
        return None
    rest, sign = before
    if not leaves_number_alone(rest, after):
        return None
    return _value(found[0], negative=sign == "-")


def _value(cluster: str, *, negative: bool) -> Number | None:
    match = _DECIMAL.fullmatch(cluster)
    if match:
        return _decimal(negative, re.sub("[, ]", "", match[1]), match[2] or "")
    if len(cluster) > _MAX_RATIO_CHARS:
        return None
    match = _MIXED.fullmatch(cluster)
    if match and 0 < int(match[2]) < int(match[3]):
        return _ratio(negative, _to_int(match[1]) + Fraction(int(match[2]), int(match[3])))
    match = _RATIO.fullmatch(cluster)
    if match is None:
        return None
    top, bottom = (_to_int(part.replace(",", "")) for part in match.groups())
    return _ratio(negative, Fraction(top, bottom)) if bottom else None


def _decimal(negative: bool, whole: str, decimals: str) -> Number:
    whole = whole.lstrip("0") or "0"
    decimals = decimals.rstrip("0")
    return Number(negative and (whole != "0" or decimals != ""), whole, decimals)


def _ratio(negative: bool, value: Fraction) -> Number:
    if value.denominator == 1:
        return _decimal(negative, _int_text(value.numerator), "")
    return Number(negative, "", "", value)


def _to_int(digits: str) -> int:
    """int() for any length: Python's own stops at a few thousand digits, and is quadratic."""
    if len(digits) <= _CHUNK:
        return int(digits)
    low = len(digits) // 2
    return _to_int(digits[:-low]) * 10**low + _to_int(digits[-low:])


def json_int(text: str) -> int:
    """For `json.loads(parse_int=…)`: any length."""
    return -_to_int(text[1:]) if text.startswith("-") else _to_int(text)


def _int_text(value: int) -> str:
    """str() for any length."""
    sign, value, parts = ("-" if value < 0 else ""), abs(value), list[str]()
    step = 10**_CHUNK
    while value >= step:
        value, low = divmod(value, step)
        parts.append(f"{low:0{_CHUNK}d}")
    return sign + str(value) + "".join(reversed(parts))


def _decimal_text(value: Decimal) -> str:
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int) or abs(exponent) > _MAX_EXPONENT:
        return ""
    return format(value, "f")
