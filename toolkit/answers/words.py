"""Judges what stands around a number: a unit or a short sentence may, anything else may not.

The lists are English, as the tasks are; words of other languages pass as units do. It reads no digits.
"""

from __future__ import annotations

import re

_MAX_CHARS = 300
_MAX_WORDS = 25
_MAX_MONEY = 12

_CURRENCY = r"[$€£¥₹₩₽₺₫₴₦₱฿¢]"
_CODES = r"USD|EUR|GBP|JPY|CNY|INR|CHF|CAD|AUD|Rs"
# What may be glued to the front of a number, before or after its sign.
_MONEY_BEFORE = re.compile(rf"(?:(?<![A-Za-z])(?:US|CA|AU)?{_CURRENCY}+|(?<![A-Za-z])(?:{_CODES})\.?)\s?$")
_AFTER = re.compile(rf"\)*\s?(?:%|°|º|{_CURRENCY})+")  # brackets: what bold or \boxed became
_GLUED_UNIT = re.compile(
    rf"(?:{_CODES}|kg|mg|g|lbs?|oz|km|cm|mm|m|mi|ft|in|yds?|ml|mL|l|L|hrs?|h|mins?|s|secs?|ms|mph|kph|am|pm|AM|PM"
    r"|c|p|kW|kWh|GB|MB)(?![^\W_])"
)
# `5k` and `5 M` are not five. A number glued to other letters (5x, 3rd, 1e5) is part of something else.
_SCALE = re.compile(r"\s?-?\s?(?:[kKMBT]|bn|mn|mil|bil|tn|e|E|[xX])(?![^\W_])")
_PER_OR_HYPHEN = re.compile(r"-(?=[^\W\d_])|\s?/\s?(?=[^\W\d_])")
# Letters, spaces, currency and the punctuation of a sentence; hyphen and slash only between letters.
_HARMLESS = re.compile(
    rf"(?:[^\W\d_]|[\s.,;:!()\[\]\"'“”‘’…]|{_CURRENCY}|(?<=[^\W\d_])[-/](?=[^\W\d_]))*",
)
_WORD = re.compile(r"[^\W\d_]+")
_NEGATION = re.compile(r"n['’]t(?![^\W_])")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Part of a number wherever they stand: `5 million`, `2 thirds`, `72 and a half`.
_SCALES = _words("""
    hundred hundreds thousand thousands million millions billion billions trillion trillions half halves third
    thirds quarter fourth fourths fifth fifths sixth sixths seventh sevenths eighth eighths ninth ninths tenth
    tenths hundredth hundredths thousandth thousandths inf infinity infinite nan
""")
# Part of a number only beside one: `twenty 5`, but not `the two of them have 72`.
_CARDINALS = _words("""
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
    seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety pi π sqrt log ln
""")
# Words that make another statement of the number: a sign, an operation, a bound, a denial, an alternative.
_TURNING = _words("""
    minus negative plus squared cubed root factorial power or either neither nor not never cannot except least
    most
""")
# These only in front of it: `less than 72`, but not `72 less than before`.
_TURNING_BEFORE = _words("than under over below above between")


def sign_before(head: str) -> tuple[str, str] | None:
    """Split the text before a number into (rest, sign), or None where it belongs to something else."""
    rest, sign = _take_sign(head)
    money = _MONEY_BEFORE.search(rest, max(len(rest) - _MAX_MONEY, 0))
    if money:
        rest = rest[: money.start()]
        if not sign:
            rest, sign = _take_sign(rest)
    if rest and not (rest[-1].isspace() or rest[-1] in "([:\"'“‘$"):
        return None
    if rest.endswith("(") and rest[-2:-1].isalnum():
        return None  # a function: sqrt(16)
    return rest, sign


def _take_sign(text: str) -> tuple[str, str]:
    return (text[:-1], text[-1]) if text[-1:] in ("-", "+") else (text, "")


def rest_after(tail: str) -> str | None:
    """The text after a number without the unit that touches it, or None where the number goes on."""
    if _SCALE.match(tail):
        return None
    mark = _AFTER.match(tail)
    if mark:
        return tail[mark.end() :]
    if tail[:1].isalpha():
        unit = _GLUED_UNIT.match(tail)
        return tail[unit.end() :] if unit else None
    joint = _PER_OR_HYPHEN.match(tail)
    return tail[joint.end() :] if joint else tail


def leaves_number_alone(before: str, after: str) -> bool:
    """Whether both together are at most a unit or a short sentence that takes the number as it stands."""
    text = f"{before} {after}"
    if text.isspace():
        return True
    if len(text) > _MAX_CHARS or not _HARMLESS.fullmatch(text):
        return False
    if any(char.isnumeric() for char in text) or _NEGATION.search(text):
        return False
    ahead, behind = _WORD.findall(before.lower()), _WORD.findall(after.lower())
    words = {*ahead, *behind}
    if len(ahead) + len(behind) > _MAX_WORDS or words & _SCALES or words & _TURNING:
        return False
    return _TURNING_BEFORE.isdisjoint(ahead) and _CARDINALS.isdisjoint((*ahead[-1:], *behind[:1]))
