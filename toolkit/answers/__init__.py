"""Text to answer to exact number: the one reader behind rewards, evaluation and verification.

Pure functions; nothing raises, whatever the text; no floats. `blocks` finds the answer in a completion,
`numbers` reads it.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

from toolkit.answers.blocks import Blocks, find_blocks
from toolkit.answers.numbers import Number, gold_text, is_plain, json_int, number, same, trailing_number

__all__ = [
    "Blocks",
    "Number",
    "canonical",
    "extract_block",
    "find_blocks",
    "gold_text",
    "is_plain",
    "is_well_formed",
    "json_int",
    "last_number",
    "number",
    "read_number",
    "same_last_number",
    "same_number",
]


def extract_block(text: str) -> str | None:
    """The content of the `<answer>` block that counts, or None: the last complete one after the reasoning."""
    return find_blocks(text).answer


def is_well_formed(text: str) -> bool:
    """One reasoning block, one answer block, every tag alone on its line, nothing else around them."""
    return find_blocks(text).strict


def read_number(text: str) -> Fraction | None:
    """The one number that `text` states, exactly, or None."""
    found = number(text)
    return found.fraction() if found else None


def last_number(text: str) -> Fraction | None:
    """The last number anywhere in `text`: the lenient reading, for evaluation only."""
    found = trailing_number(text)
    return found.fraction() if found else None


def same_number(text: str, gold: str) -> bool:
    """Whether both state a number, and the same one. An unreadable gold equals nothing."""
    wanted = number(gold)
    return wanted is not None and same(number(text), wanted)


def same_last_number(text: str, gold: str) -> bool:
    """Whether the last number anywhere in `text` is the gold's."""
    wanted = number(gold)
    return wanted is not None and same(trailing_number(text), wanted)


@lru_cache(maxsize=4096)
def canonical(text: str) -> str | None:
    """The number that `text` states in plain digits (`1,080` gives `1080`, `$8.50` gives `8.5`), or None."""
    found = number(text)
    return found.plain() if found else None
