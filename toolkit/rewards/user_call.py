"""Calls a user's function and takes what comes back for what it is: a reward, or a fault. Nothing that it does raises here."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from toolkit.rewards.user_function import a_kind, prints_aside, what_was_raised
from toolkit.rewards.waiting import wait_for


@dataclass(frozen=True, slots=True)
class Fault:
    """What a user's function did instead of giving a reward."""

    message: str
    cause: BaseException | None = None


def outcomes(call: Callable[..., Any], arguments: Sequence[Mapping[str, Any]]) -> list[Any]:
    """What the function returns for each set of arguments, or its Fault. Coroutines run at the same time."""
    with prints_aside():
        results = [_called(call, each) for each in arguments]
        return wait_for(_awaited(results)) if any(map(inspect.isawaitable, results)) else results


def as_rewards(outcome: Any, count: int) -> list[float | Fault | None] | Fault:
    """So many rewards from what a function of lists returned."""
    if isinstance(outcome, Fault):
        return outcome
    try:
        if isinstance(outcome, str | bytes | Mapping):
            raise TypeError
        values = [outcome[place] for place in range(len(outcome))]
    except Exception:
        return Fault(f"gave {a_kind(outcome)} instead of a list of numbers")
    if len(values) != count:
        return Fault(f"gave {len(values)} values for {count} completions")
    return [as_reward(value) for value in values]


def as_reward(value: Any) -> float | Fault | None:
    """A finite number, or None. Numbers of numpy and tensors of one element are numbers; true and false are not."""
    if value is None or isinstance(value, Fault):
        return value
    try:
        plain = value.item() if hasattr(value, "item") else value
        if isinstance(plain, bool) or not isinstance(plain, Real):
            return Fault(f"gave {a_kind(plain)} instead of a number")
        number = float(plain)
    except Exception as error:  # several elements; a number that no float holds
        return Fault(f"gave {a_kind(value)} that is no number", error)
    return number if math.isfinite(number) else Fault(f"gave {number}")


def _called(call: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    try:
        return call(**arguments)
    except (Exception, SystemExit) as error:
        return _raised(error)


async def _awaited(results: Sequence[Any]) -> list[Any]:
    async def settled(result: Any) -> Any:
        try:
            return await result if inspect.isawaitable(result) else result
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            return _raised(error)

    return await asyncio.gather(*map(settled, results))


def _raised(error: BaseException) -> Fault:
    return Fault(f"raised {what_was_raised(error)}", error)
