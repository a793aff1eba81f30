"""The effect of every key of every reward."""

from __future__ import annotations

from pathlib import Path

from effects import CLASSIC, Effect, Read, setting, several
from toolkit.engine import arguments
from toolkit.recipe import Recipe
from toolkit.tasks.base import Row

NO_TAGS = "2"
LINES = "<reasoning>\n1\n2\n</reasoning>\n<answer>\n2\n</answer>\n"


def score(name: str, text: str) -> Read:
    row = Row("row", "What is 1 + 1?", "2")
    return lambda recipe: next(reward.score(text, row) for reward in recipe.rewards if reward.name == name)


def weight(name: str) -> Read:
    """What TRL multiplies with, and what the record of completions does."""

    def recorded(recipe: Recipe) -> float:
        from toolkit.engine.rollout import ROW_COLUMN, RewardRecorder

        recorder = RewardRecorder(recipe.rewards, {"row": Row("row", "What is 1 + 1?", "2")})
        text = "<reasoning>\n1 + 1 = 2\n</reasoning>\n<answer>\n2\n</answer>"
        for function in recorder.functions:
            function(completions=[[{"content": text}]], completion_ids=[[1, 2]], **{ROW_COLUMN: ["row"]})
        (entry,) = recorder.take()
        paid = sum(entry[f"reward/{reward.name}"] for reward in recipe.rewards if reward.name != name)
        return (entry["reward"] - paid) / entry[f"reward/{name}"]

    def passed(recipe: Recipe) -> float:
        at = [reward.name for reward in recipe.rewards].index(name)
        return arguments.grpo_arguments(recipe, setting(recipe), Path())["reward_weights"][at]

    return several(passed, recorded)


REWARD_EFFECTS: dict[str, Effect] = {
    **{f"rewards.{name}.weight": Effect(0.25, weight(name), [0.25, 0.25]) for name in CLASSIC},
    "rewards.xmlcount.legacy": Effect(True, score("xmlcount", "<reasoning>\n"), 0.125),
    "rewards.soft_format.legacy": Effect(True, score("soft_format", LINES), 0.0),
    "rewards.strict_format.legacy": Effect(True, score("strict_format", LINES), 0.0),
    "rewards.integer.legacy": Effect(True, score("integer", NO_TAGS), 0.5),
    "rewards.correctness.legacy": Effect(True, score("correctness", NO_TAGS), 2.0),
}  # fmt: skip
