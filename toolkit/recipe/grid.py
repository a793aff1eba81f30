"""`key=a,b,c` words -> the variants of a recipe: every combination of the values, each checked as a recipe. It runs nothing."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from toolkit.errors import Fault, RecipeError, ToolkitError
from toolkit.recipe.load import Loaded, load_recipe

MAX_VARIANTS = 500
_OPENING, _CLOSING = "[{", "]}"
_BEFORE_QUOTE = ",[{:"


@dataclass(frozen=True, slots=True)
class Variant:
    """One combination: its number from 1 on, the values of the keys that vary as they were written, and its recipe."""

    number: int
    changes: dict[str, str]
    loaded: Loaded

    @property
    def label(self) -> str:
        """`grpo.learning_rate=1e-5 seed=1`."""
        return " ".join(f"{key}={value}" for key, value in self.changes.items())

    @property
    def fingerprint(self) -> str:
        """The same for the same resolved recipe, however it was written."""
        text = json.dumps(self.loaded.recipe.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def variants(recipe: str, words: Sequence[str]) -> list[Variant]:
    """Every combination of the words' values, the last key changing fastest. A word with one value holds for all.

    RecipeError with every fault of every variant; ToolkitError where nothing varies, or too much.
    """
    axes = _axes(words)
    count = math.prod(map(len, axes.values()))
    if count == 1:
        hint = "for example grpo.learning_rate=1e-5,1e-4; one variant: toolkit train"
        raise ToolkitError("no key has several values", hint=hint)
    if count > MAX_VARIANTS:
        raise ToolkitError(
            f"these are {count} variants, and {MAX_VARIANTS} at most", hint="fewer values, or two sweeps"
        )
    varied = [key for key, values in axes.items() if len(values) > 1]
    found, faults = list[Variant](), dict[Fault, list[str]]()
    for number, values in enumerate(itertools.product(*axes.values()), start=1):
        chosen = dict(zip(axes, values, strict=True))
        changes = {key: chosen[key] for key in varied}
        try:
            loaded = load_recipe(recipe, [f"{key}={value}" for key, value in chosen.items()])
            found.append(Variant(number, changes, loaded))
        except RecipeError as error:
            for fault in error.faults:
                faults.setdefault(fault, []).append(" ".join(f"{key}={value}" for key, value in changes.items()))
    if faults:
        raise RecipeError([_told(fault, where, count) for fault, where in faults.items()])
    return found


def _axes(words: Sequence[str]) -> dict[str, list[str]]:
    axes: dict[str, list[str]] = {}
    for word in words:
        key, equals, text = word.partition("=")
        key = key.strip()
        values = split_values(text) if equals else []
        if not equals or not key:
            raise ToolkitError(f"{word[:60]} is no key=value,value", hint="grpo.learning_rate=1e-5,1e-4")
        if key in axes:
            raise ToolkitError(f"{key[:60]} stands there twice", hint=f"{key[:60]}=value,value")
        if len(values) > 1 and not all(values):
            hint = "a text with commas stands in quotes: 'key=\"one, two\"'"
            raise ToolkitError(f"{key[:60]}: a value between commas is empty", hint=hint)
        axes[key] = values
    return axes


def split_values(text: str) -> list[str]:
    """The values between the commas, but not those inside YAML's brackets and quotes: `[a,b],c` is two values."""
    values, begin, depth, at, before = list[str](), 0, 0, 0, ","
    while at < len(text):
        letter = text[at]
        if letter in "'\"" and before in _BEFORE_QUOTE:  # elsewhere an apostrophe is one
            at = _end_of_quote(text, at)
        elif letter in _OPENING + _CLOSING:
            depth += 1 if letter in _OPENING else -1
        elif letter == "," and depth <= 0:
            values.append(text[begin:at].strip())
            begin = at + 1
        before = before if letter.isspace() else letter
        at += 1
    return [*values, text[begin:].strip()]


def _end_of_quote(text: str, begin: int) -> int:
    """Where the quote that opens at `begin` closes; the end of the text where it does not, which YAML then says."""
    quote, at = text[begin], begin + 1
    while at < len(text):
        doubled = quote == "'" and text[at : at + 2] == "''"
        escaped = quote == '"' and text[at] == "\\"
        if text[at] == quote and not doubled:
            return at
        at += 2 if doubled or escaped else 1
    return at


def _told(fault: Fault, where: Sequence[str], count: int) -> Fault:
    """A fault that only some of the variants have says in which."""
    if len(where) == count:
        return fault
    more = f" and {len(where) - 1} more" if len(where) > 1 else ""
    return replace(fault, message=f"{fault.message} (in {where[0]}{more})")
