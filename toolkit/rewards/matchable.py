"""Whether a regular expression can match any text at all: the common impossibilities are found, none invented.

It walks the pattern over kinds of characters. What it cannot follow (backreferences, what only the library
`regex` knows) counts as matching; so True may be wrong, False never is. It matches no text.
"""

from __future__ import annotations

import importlib
import re
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any

# Where a match stands: what is before it (text start, newline, word character, other) and what may still come
# next (text end, a newline that ends the text, a newline within it, word character, other).
_START, _NEWLINE, _WORD, _OTHER, _END, _LAST_NEWLINE = "^", "n", "w", "o", "$", "z"
_BEFORE = (_START, _NEWLINE, _WORD, _OTHER)
_ANY_NEXT = frozenset((_END, _LAST_NEWLINE, _NEWLINE, _WORD, _OTHER))
_NO_WORD_NEXT = _ANY_NEXT - {_WORD}
_ANY_CHARACTER = frozenset((_NEWLINE, _WORD, _OTHER))
State = tuple[str, frozenset[str]]
States = frozenset[State]

_ANALYSED_FLAGS = {"ASCII", "IGNORECASE", "MULTILINE", "DOTALL", "VERBOSE", "UNICODE", "VERSION0"}
# Read differently by `regex` without an error from `re`: fuzzy matching in braces, POSIX classes in sets.
_OTHER_SYNTAX = re.compile(r"\{(?!\d+(?:,\d*)?\}|,\d+\})|\[:")
_CATEGORIES = {
    "CATEGORY_WORD": frozenset(_WORD),
    "CATEGORY_NOT_WORD": frozenset((_NEWLINE, _OTHER)),
    "CATEGORY_DIGIT": frozenset(_WORD),
    "CATEGORY_NOT_DIGIT": _ANY_CHARACTER,
    "CATEGORY_SPACE": frozenset((_NEWLINE, _OTHER)),
    "CATEGORY_NOT_SPACE": frozenset((_WORD, _OTHER)),
}
# The kinds of which a category holds every character, so that its complement holds none.
_COVERED = {
    "CATEGORY_WORD": frozenset(_WORD),
    "CATEGORY_NOT_WORD": frozenset((_NEWLINE, _OTHER)),
    "CATEGORY_NOT_DIGIT": frozenset((_NEWLINE, _OTHER)),
    "CATEGORY_SPACE": frozenset(_NEWLINE),
    "CATEGORY_NOT_SPACE": frozenset(_WORD),
}
_MAX_RANGE = 256


class _NotFollowed(Exception):
    """A part of the pattern that this module does not know."""


def can_match(pattern: str, flags: Iterable[str], *, match: str) -> bool:
    """False where no text is found by `search`, `match` or `fullmatch`. `flags`: their names."""
    if not set(flags) <= _ANALYSED_FLAGS or _OTHER_SYNTAX.search(pattern):
        return True
    try:
        tree = _parsed(pattern, flags)
        start = _BEFORE if match == "search" else (_START,)
        ends = _after(tree, frozenset((before, _ANY_NEXT) for before in start), tree.state.flags)
    except (_NotFollowed, re.error, Warning, OverflowError, RecursionError):
        return True
    return any(_END in following for _, following in ends) if match == "fullmatch" else bool(ends)


def _parsed(pattern: str, flags: Iterable[str]) -> Any:
    # The module is private, but its trees are those of the old public sre_parse, unchanged for many years.
    parser = importlib.import_module("re._parser")
    value = 0
    for name in flags:
        value |= getattr(re, name, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # FutureWarning: sets that `regex` reads otherwise
        return parser.parse(pattern, value)


def _after(sequence: Any, states: States, flags: int) -> States:
    """Where a match can stand after the parts of a sequence, one after the other."""
    for operation, argument in sequence:
        step = _STEPS.get(operation.name)
        if step is None:
            raise _NotFollowed(operation.name)
        states = step(argument, states, flags)
    return states


def _consume(states: States, kinds: frozenset[str]) -> States:
    """One character of these kinds."""
    wanted = kinds | {_LAST_NEWLINE} if _NEWLINE in kinds else kinds
    reached = set()
    for _, following in states:
        for kind in following & wanted:
            left = {_LAST_NEWLINE: frozenset(_END), _NEWLINE: _ANY_NEXT - {_END}}.get(kind, _ANY_NEXT)
            reached.add((_NEWLINE if kind == _LAST_NEWLINE else kind, left))
    return frozenset(reached)


def _closure(states: States, step: Callable[[States], States]) -> States:
    """Any number of steps, none among them."""
    while True:
        more = states | step(states)
        if more == states:
            return states
        states = more


def _narrow(states: States, allowed: Callable[[str], frozenset[str]]) -> States:
    """An assertion: given what stands before, only these may follow."""
    narrowed = ((before, following & allowed(before)) for before, following in states)
    return frozenset((before, following) for before, following in narrowed if following)


def _literal(code: int, states: States, flags: int) -> States:
    return _consume(states, _kinds_of(code))


def _not_literal(code: int, states: States, flags: int) -> States:
    return _consume(states, _ANY_CHARACTER - {_NEWLINE} if code == ord("\n") else _ANY_CHARACTER)


def _any(_: Any, states: States, flags: int) -> States:
    return _consume(states, _ANY_CHARACTER if flags & re.DOTALL else _ANY_CHARACTER - {_NEWLINE})


def _set(items: list[Any], states: States, flags: int) -> States:
    named = [(operation.name, argument) for operation, argument in items]
    if named[0][0] == "NEGATE":
        return _consume(states, _complement(named[1:]))
    return _consume(states, frozenset().union(*(_kinds_in(*item) for item in named)))


def _kinds_of(code: int) -> frozenset[str]:
    """The kinds of one character. `re` and `regex` differ in which others are word characters."""
    if code == ord("\n"):
        return frozenset(_NEWLINE)
    if code > 127:
        return frozenset((_WORD, _OTHER))
    return frozenset(_WORD if chr(code).isalnum() or code == ord("_") else _OTHER)


def _kinds_in(name: str, argument: Any) -> frozenset[str]:
    if name == "CATEGORY":
        return _category(argument, _CATEGORIES)
    if name == "LITERAL":
        return _kinds_of(argument)
    first, last = argument
    if last - first < _MAX_RANGE:
        return frozenset().union(*map(_kinds_of, range(first, last + 1)))
    return _ANY_CHARACTER


def _category(code: Any, table: dict[str, frozenset[str]]) -> frozenset[str]:
    if code.name not in _CATEGORIES:
        raise _NotFollowed(code.name)
    return table.get(code.name, frozenset())


def _complement(items: list[tuple[str, Any]]) -> frozenset[str]:
    left = _ANY_CHARACTER
    categories = {argument.name for name, argument in items if name == "CATEGORY"}
    if any(name.replace("NOT_", "") in categories for name in categories if "NOT_" in name):
        return frozenset()
    for name, argument in items:
        if name == "CATEGORY":
            left -= _category(argument, _COVERED)
            continue
        first, last = argument if name == "RANGE" else (argument, argument)
        if first <= ord("\n") <= last:
            left -= {_NEWLINE}
        if first == 0 and last == sys.maxunicode:
            return frozenset()
    return left


def _at(place: Any, states: States, flags: int) -> States:
    lines = bool(flags & re.MULTILINE)
    ends = {_END, _LAST_NEWLINE, _NEWLINE} if lines else {_END, _LAST_NEWLINE}
    starts = {_START, _NEWLINE} if lines else {_START}
    allowed: dict[str, Callable[[str], frozenset[str]]] = {
        "AT_BEGINNING": lambda before: _ANY_NEXT if before in starts else frozenset(),
        "AT_BEGINNING_STRING": lambda before: _ANY_NEXT if before == _START else frozenset(),
        "AT_END": lambda before: frozenset(ends),
        "AT_END_STRING": lambda before: frozenset(_END),
        "AT_BOUNDARY": lambda before: _NO_WORD_NEXT if before == _WORD else frozenset(_WORD),
        "AT_NON_BOUNDARY": lambda before: frozenset(_WORD) if before == _WORD else _NO_WORD_NEXT,
    }
    if place.name not in allowed:
        raise _NotFollowed(place.name)
    return _narrow(states, allowed[place.name])


def _branch(argument: Any, states: States, flags: int) -> States:
    return frozenset().union(*(_after(branch, states, flags) for branch in argument[1]))


def _group(argument: Any, states: States, flags: int) -> States:
    _, added, removed, body = argument
    return _after(body, states, (flags | added) & ~removed)


def _repeat(argument: Any, states: States, flags: int) -> States:
    """The first two times exactly; from there any number, which is never too few."""
    least, most, body = argument
    done = min(least, 2)
    for _ in range(done):
        states = _after(body, states, flags)
    return _closure(states, lambda now: _after(body, now, flags)) if most > done else states


def _look(argument: Any, states: States, flags: int) -> States:
    direction, body = argument
    if direction > 0:
        return frozenset(state for state in states if _after(body, frozenset([state]), flags))
    anywhere = frozenset((before, _ANY_NEXT) for before in _BEFORE)
    return states if _after(body, anywhere, flags) else frozenset()


def _look_not(argument: Any, states: States, flags: int) -> States:
    return frozenset() if _always_matches(argument[1]) else states


def _always_matches(sequence: Any) -> bool:
    """Whether it matches everywhere because it may match nothing."""
    return all(name.name in ("MAX_REPEAT", "MIN_REPEAT") and argument[0] == 0 for name, argument in sequence)


def _backreference(_: Any, states: States, flags: int) -> States:
    return _closure(states, lambda now: _consume(now, _ANY_CHARACTER))


def _conditional(argument: Any, states: States, flags: int) -> States:
    _, yes, no = argument
    return _after(yes, states, flags) | (_after(no, states, flags) if no else states)


def _failure(_: Any, states: States, flags: int) -> States:
    return frozenset()


_STEPS: dict[str, Callable[[Any, States, int], States]] = {
    "LITERAL": _literal,
    "NOT_LITERAL": _not_literal,
    "ANY": _any,
    "IN": _set,
    "AT": _at,
    "BRANCH": _branch,
    "SUBPATTERN": _group,
    "ATOMIC_GROUP": _after,
    "MAX_REPEAT": _repeat,
    "MIN_REPEAT": _repeat,
    "POSSESSIVE_REPEAT": _repeat,
    "ASSERT": _look,
    "ASSERT_NOT": _look_not,
    "GROUPREF": _backreference,
    "GROUPREF_EXISTS": _conditional,
    "FAILURE": _failure,
}
