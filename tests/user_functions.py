"""Functions as a user writes them, for the reward `python`; also run in the process that imported unsloth first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import TypeAdapter

from toolkit.rewards import Python, Reward
from toolkit.tasks import Row

ROWS = [
    Row("row 1", "What is 1 + 1?", "2", solution="1 + 1 = 2", columns={"topic": "sums", "seen": 1}),
    Row("row 2", "What is 1 + 2?", "3", solution="1 + 2 = 3", columns={"topic": "sums", "seen": 0}),
]


def python(function: str, **knobs: Any) -> Python:
    reward = TypeAdapter(Reward).validate_python({"name": "python", "function": function, **knobs})
    assert isinstance(reward, Python)
    return reward


def half(text: str, row: Row, *, share: float = 0.5) -> float:
    return share * len(text)


def words(completions: list[Any], **columns: Any) -> list[float]:
    return [float(len(completion[0]["content"].split())) for completion in completions]


def least_words(least: int = 0) -> Callable[..., list[float]]:
    def reward(completions: list[Any], **columns: Any) -> list[float]:
        return [value if value >= least else 0.0 for value in words(completions)]

    return reward


def equals(completions: list[Any], gold: list[str]) -> list[float]:
    return [float(completion[0]["content"] == right) for completion, right in zip(completions, gold, strict=True)]


def fails_on_bad(text: str, row: Row) -> float:
    if "bad" in text:
        raise ValueError("this is bad")
    return 1.0


def of_trl() -> dict[str, Any]:
    """What TRL's own functions pay through the reward, and in this process straight."""
    import trl.rewards

    thought, right, wrong = "<think>\n1 + 1\n</think>\n2", r"\boxed{2}", r"\boxed{3}"
    form = python("trl.rewards:think_format_reward")
    accuracy = python("trl.rewards:accuracy_reward", columns={"solution": "gold"})
    overlong = python(
        "trl.rewards:get_soft_overlong_punishment", factory_arguments={"max_completion_len": 10, "soft_punish_cache": 4}
    )
    for reward in (form, accuracy, overlong):
        reward.ready(ROWS)
    ids = [[5] * 8, [5] * 12]
    return {
        "form": form.score_batch([thought, "2"], ROWS),
        "accuracy": accuracy.score_batch([right, wrong], [ROWS[0], ROWS[0]]),
        "overlong": overlong.score_batch(["", ""], ROWS, ids=ids),
        "straight": trl.rewards.get_soft_overlong_punishment(10, 4)(ids),
    }
