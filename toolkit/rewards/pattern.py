"""The reward `pattern`: a regular expression of the user's is found in the completion. It reads no answer."""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from toolkit.errors import KeyFault, nearest
from toolkit.rewards.base import RewardBase
from toolkit.rewards.matchable import can_match
from toolkit.tasks.base import Row

_log = logging.getLogger(__name__)
# Of the library's flags: not DEBUG, which prints, nor LOCALE, which is for bytes, nor TEMPLATE, which is for tests.
_FLAGS = (
    "ASCII", "BESTMATCH", "DOTALL", "ENHANCEMATCH", "FULLCASE", "IGNORECASE", "MULTILINE", "POSIX", "REVERSE",
    "UNICODE", "VERBOSE", "VERSION0", "VERSION1", "WORD",
)  # fmt: skip


class Pattern(RewardBase):
    """`pays` where a regular expression is found in the text, else 0.

    Range 0 to `pays`, or `pays` to 0 where it is negative. Abstains (None) on a text that takes more than `timeout_s`.
    After the regular expressions of the library `regex` (M. Barnett), by whose rules the pattern is read.
    """

    name: Literal["pattern"] = "pattern"
    pattern: Annotated[str, Field(min_length=1)]
    """The regular expression. One that cannot be compiled, or can never match, is refused."""
    flags: tuple[str, ...] = ()
    """Names of the library's flags, for example [IGNORECASE, DOTALL]."""
    match: Literal["search", "match", "fullmatch"] = "search"
    """Anywhere in the text, at its start, or the whole of it."""
    pays: float = 1.0
    """What a match earns; negative for what should not be written."""
    timeout_s: Annotated[float, Field(gt=0, le=60)] = 1.0
    """Seconds for one text, of this process's computing time."""

    @model_validator(mode="after")
    def _usable(self) -> Self:
        for index, flag in enumerate(self.flags):
            if flag not in _FLAGS:
                near = nearest(flag, _FLAGS)
                hint = f"did you mean {near}?" if near else f"flags: {', '.join(_FLAGS)}"
                raise KeyFault(f"there is no flag {flag[:60]}", at=("flags", index), hint=hint)
        if not self.pays:
            raise KeyFault("pays 0, so it teaches nothing", at=("pays",), hint="a number above or below 0")
        _check(self.pattern, self.flags, self.match)
        return self

    @property
    def bounds(self) -> tuple[float, float]:
        return min(0.0, self.pays), max(0.0, self.pays)

    def score(self, text: str, row: Row) -> float | None:
        find = getattr(_compiled(self.pattern, self.flags), self.match)
        try:
            return self.pays if find(text, timeout=self.timeout_s) else 0.0
        except (TimeoutError, MemoryError):
            _log.warning("the reward pattern gave up after %g s on row %s: %.80r", self.timeout_s, row.id, text)
            return None


def _check(pattern: str, flags: tuple[str, ...], match: str) -> None:
    import regex

    try:
        _compiled(pattern, flags)
    except (regex.error, ValueError, OverflowError, RecursionError, MemoryError) as error:
        raise KeyFault(f"not a regular expression: {error}", at=("pattern",)) from error
    if not can_match(pattern, flags, match=match):
        message = f"can never match, whatever the text, with match: {match}"
        raise KeyFault(message, at=("pattern",), hint="an anchor (^ $ \\b) in the wrong place, or an empty set?")


@lru_cache(maxsize=64)
def _compiled(pattern: str, flags: tuple[str, ...]) -> Any:
    """Flags that contradict each other and patterns that are none raise the library's errors."""
    import regex

    value = 0
    for name in flags:
        value |= getattr(regex, name)
    return regex.compile(pattern, value)
