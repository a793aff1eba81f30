"""The only caller of the library reasoning-gym: makes its datasets, judges answers that are no integers.

Some of its scorers hand the answer to `eval`, or to sympy, which evaluates it. What a model writes is not
trusted with that: where it could call anything, or take for ever, the answer is wrong, unseen by the library.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from toolkit.answers import is_plain, same_number
from toolkit.errors import DataError, MissingExtraError

_MAX_CHARS = 2_000
# Scorers of reasoning-gym 0.1.25 that evaluate the answer as Python or through sympy.parse_expr.
_EVALUATED = {
    "binary_matrix", "composite", "countdown", "n_queens", "polynomial_multiplication", "puzzle24",
    "spiral_matrix", "string_insertion",
}  # fmt: skip
_EVALUATED_WITH_FUNCTIONS = {"intermediate_integration", "simple_integration"}
_FUNCTIONS = r"(?:sin|cos|tan|sec|csc|cot|asin|acos|atan|sinh|cosh|tanh|exp|log|ln|sqrt)\s*\("
_CODE = r"__|[:=@`\\{}!]|\blambda\b|[\])'\"]\s*\(|[\]'\"]\s*\*|\*\s*[\['\"]"
_POWERS = r"\*\*\s*[-+(]*\s*[0-9]{3,}|\*\*\s*[-+(]*\s*[\w.]+\s*\)*\s*\*\*"
_CALL = r"\b[A-Za-z_]\w*\s*\("
_UNSAFE = re.compile(rf"{_CODE}|{_POWERS}|{_CALL}")
_UNSAFE_BUT_FUNCTIONS = re.compile(rf"{_CODE}|{_POWERS}|(?!\b{_FUNCTIONS}){_CALL}")


@dataclass(frozen=True, slots=True)
class LibraryJudge:
    """Asks the library whether an answer that is no whole number is right: full marks or none."""

    dataset: str
    knobs: str
    entry: dict[str, Any]

    def __call__(self, answer: str) -> bool:
        gold = self.entry["answer"]
        if isinstance(gold, str) and gold and (answer == gold or (is_plain(gold) and same_number(answer, gold))):
            return True
        if not answer or len(answer) > _MAX_CHARS or self._is_unsafe(answer):
            return False
        try:
            return library(self.dataset, self.knobs, 0, 1).score_answer(answer, self.entry) == 1.0
        except Exception:  # the boundary to the library's parsers, which raise on much of what a model writes
            return False

    def _is_unsafe(self, answer: str) -> bool:
        if self.dataset in _EVALUATED:
            return _UNSAFE.search(answer) is not None
        return self.dataset in _EVALUATED_WITH_FUNCTIONS and _UNSAFE_BUT_FUNCTIONS.search(answer) is not None


@lru_cache(maxsize=16)
def library(dataset: str, knobs: str, seed: int, size: int) -> Any:
    """The library's own dataset object. Its checks of parameters are assertions: they become one error."""
    try:
        import reasoning_gym
        from reasoning_gym.composite import DatasetSpec
    except ImportError as cause:
        raise MissingExtraError("reasoning-gym", "cpu") from cause
    parameters = json.loads(knobs)
    try:
        if dataset == "composite":
            parts = parameters.get("datasets") or []
            parameters["datasets"] = [DatasetSpec(**{"config": {}, **part}) for part in parts]
        return reasoning_gym.create_dataset(dataset, seed=seed, size=size, **parameters)
    except Exception as cause:  # the boundary to the library: AssertionError, TypeError, ValueError and others
        raise DataError(f"reasoning-gym refuses {knobs}: {cause}", where=f"task {dataset}") from cause
