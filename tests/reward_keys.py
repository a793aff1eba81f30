"""The effect of every key of every reward."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from effects import CLASSIC, Effect, Read, setting, several
from judge_server import Answer, Asked, ScriptedJudge
from toolkit.engine import arguments
from toolkit.errors import ToolkitError
from toolkit.recipe import Recipe
from toolkit.rewards.base import Surroundings
from toolkit.tasks.base import Row

NO_TAGS = "2"
LINES = "<reasoning>\n1\n2\n</reasoning>\n<answer>\n2\n</answer>\n"
PERFECT = "<reasoning>\n1 + 1 = 2\n</reasoning>\n<answer>\n2\n</answer>"
ENDPOINT = {"rewards.judge.endpoint": "http://127.0.0.1:1/v1"}
"""For keys that are the endpoint's; where one is asked, a real address takes its place."""
THOUGHT = "<think>1 + 1 is two.</think><answer>2</answer>"


def score(name: str, text: str) -> Read:
    row = Row("row", "What is 1 + 1?", "2")
    return lambda recipe: next(reward.score(text, row) for reward in recipe.rewards if reward.name == name)


def counted(name: str, tokens: int) -> Read:
    """What is paid for a completion of so many tokens, where the recipe's limit is known."""

    def paid(recipe: Recipe) -> float | None:
        around = Surroundings(len, lambda chats, limit: [], recipe.grpo.max_completion_length)
        reward = next(reward for reward in recipe.rewards if reward.name == name).within(around)
        return reward.score_batch(["text"], [Row("row", "What is 1 + 1?", "2")], ids=[[0] * tokens])[0]

    return paid


def judged(read: Callable[[Recipe, ScriptedJudge], Any], *answers: Answer) -> Read:
    """What is read where the recipe's judge is a server that gives these answers in turn, and then marks of 7."""

    def run(recipe: Recipe) -> Any:
        script = dict(enumerate(answers))
        models = [{"id": "judge"}, {"id": "other"}] if judge_of(recipe).model else None
        with ScriptedJudge(lambda number, asked: script.get(number, Answer()), models) as server:
            there = judge_of(recipe).model_copy(update={"endpoint": server.url})
            rewards = [there if reward.name == "judge" else reward for reward in recipe.rewards]
            return read(recipe.model_copy(update={"rewards": tuple(rewards)}), server)

    return run


def judge_of(recipe: Recipe) -> Any:
    return next(reward for reward in recipe.rewards if reward.name == "judge")


def marked(*answers: Answer) -> Read:
    return judged(lambda recipe, _: judge_of(recipe).score("text", Row("row", "?", "")), *answers)


def request(read: Callable[[list[Asked]], Any]) -> Read:
    """What the judge's server is asked, where the same completion is judged twice."""

    def run(recipe: Recipe, server: ScriptedJudge) -> Any:
        judge = judge_of(recipe).within(Surroundings(len, lambda chats, limit: [], 10, cache_folder=Path("cache")))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("JUDGE_KEY", "the-key")
            for _ in range(2):
                judge.score("text", Row("row", "?", ""))
        return read(server.asked)

    return judged(run)


def side_by_side(recipe: Recipe, server: ScriptedJudge) -> int:
    """How many of five completions were judged at the same time."""
    judge_of(recipe).score_batch(list("abcde"), [Row("row", "?", "")] * 5)
    return server.busiest


def unreachable(recipe: Recipe) -> str | None:
    """The address at which no judge was found."""
    try:
        judge_of(recipe).ready([])
    except ToolkitError as error:
        return error.where
    return None


def fails(recipe: Recipe) -> str:
    try:
        return str(score("python", "bad")(recipe))
    except ToolkitError:
        return "stopped"


def weight(name: str, text: str = PERFECT) -> Read:
    """What TRL multiplies with, and what the record of completions does."""

    def recorded(recipe: Recipe) -> float:
        from toolkit.engine.rollout import ROW_COLUMN, RewardRecorder

        recorder = RewardRecorder(recipe.rewards, {"row": Row("row", "What is 1 + 1?", "2")})
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
    "rewards.math_verify.weight": Effect(0.25, weight("math_verify"), [0.25, 0.25]),
    "rewards.math_verify.boxed": Effect(True, score("math_verify", "\\boxed{2}"), 1.0),
    "rewards.math_verify.timeout_s": Effect(
        0.001, score("math_verify", PERFECT.replace(">\n2", ">\n(x+y+z)^9")), None, {"rewards.math_verify.timeout_s": 60}
    ),
    "rewards.length.weight": Effect(0.25, weight("length"), [0.25, 0.25]),
    "rewards.length.ideal": Effect(10, score("length", "x" * 10), 0.0),
    "rewards.length.unit": Effect("words", score("length", "one two"), -48.0),
    "rewards.length.form": Effect("bounded", score("length", "x" * 25), 0.5),
    "rewards.think_format.weight": Effect(0.25, weight("think_format", THOUGHT), [0.25, 0.25]),
    "rewards.think_format.min_think_chars": Effect(40, score("think_format", THOUGHT), 0.5),
    "rewards.think_format.min_answer_chars": Effect(2, score("think_format", THOUGHT), 0.5),
    "rewards.pattern.weight": Effect(0.25, weight("pattern"), [0.25, 0.25]),
    "rewards.pattern.pattern": Effect("b", score("pattern", "abc"), 1.0),
    "rewards.pattern.flags": Effect(["IGNORECASE"], score("pattern", "b"), 1.0, {"rewards.pattern.pattern": "B"}),
    "rewards.pattern.match": Effect("fullmatch", score("pattern", "12"), 0.0),
    "rewards.pattern.pays": Effect(-3.0, score("pattern", "2")),
    "rewards.pattern.timeout_s": Effect(
        0.001, score("pattern", "a" * 30 + "!"), None, {"rewards.pattern.pattern": "^(a|aa)+$", "rewards.pattern.timeout_s": 60}
    ),
    "rewards.repetition.weight": Effect(
        0.25, weight("repetition", "a a"), [0.25, 0.25], {"rewards.repetition.ngram_size": 1}
    ),
    "rewards.repetition.ngram_size": Effect(1, score("repetition", "a a"), -0.5),
    "rewards.repetition.max_penalty": Effect(-4.0, score("repetition", "a a a a"), -2.0),
    "rewards.overlong.weight": Effect(
        0.25, weight("overlong"), [0.25, 0.25], {"rewards.overlong.max_length": 3, "rewards.overlong.cache": 2}
    ),
    "rewards.overlong.cache": Effect(4, counted("overlong", 8), -0.5, {"rewards.overlong.max_length": 10}),
    "rewards.overlong.max_length": Effect(10, counted("overlong", 10), -1.0),
    "rewards.judge.weight": Effect(0.25, judged(lambda recipe, _: weight("judge")(recipe)), pytest.approx([0.25, 0.25])),
    "rewards.judge.criteria": Effect(
        "It is brief.", request(lambda asked: asked[0].prompt.partition("Criteria:\n")[2].partition("\n")[0])
    ),
    "rewards.judge.scale": Effect([0, 8], marked(), 0.75),
    "rewards.judge.clip": Effect(0.25, marked(), 0.25),
    "rewards.judge.endpoint": Effect("http://127.0.0.1:1/v1", unreachable),
    "rewards.judge.model": Effect(
        "other", request(lambda asked: asked[0].body["model"]), given=ENDPOINT | {"rewards.judge.model": "judge"}
    ),
    "rewards.judge.api_key_env": Effect(
        "JUDGE_KEY", request(lambda asked: asked[0].headers["authorization"]), "Bearer the-key", ENDPOINT
    ),
    "rewards.judge.timeout_s": Effect(0.1, marked(Answer(delay_s=0.5)), None, {"rewards.judge.retries": 0}),
    "rewards.judge.retries": Effect(0, marked(Answer(status=500)), None),
    "rewards.judge.parallel": Effect(3, judged(side_by_side, *[Answer(delay_s=0.2)] * 5)),
    "rewards.judge.temperature": Effect(0.5, request(lambda asked: asked[0].body["temperature"]), given=ENDPOINT),
    "rewards.judge.max_tokens": Effect(64, request(lambda asked: asked[0].body["max_tokens"])),
    "rewards.judge.reply": Effect(
        "json_object", request(lambda asked: asked[0].body.get("response_format", {}).get("type")), given=ENDPOINT
    ),
    "rewards.judge.cache": Effect(False, request(len), 2),
    "rewards.python.weight": Effect(0.25, weight("python"), [0.25, 0.25]),
    "rewards.python.function": Effect("user_functions:words", score("python", "one two"), 2.0),
    "rewards.python.arguments": Effect({"share": 2.0}, score("python", "abc"), 6.0),
    "rewards.python.factory_arguments": Effect(
        {"least": 5}, score("python", "one two"), 0.0,
        {"rewards.python.function": "user_functions:least_words", "rewards.python.factory_arguments": {}},
    ),
    "rewards.python.columns": Effect(
        {"gold": "question"}, score("python", "What is 1 + 1?"), 1.0, {"rewards.python.function": "user_functions:equals"}
    ),
    "rewards.python.on_error": Effect("abstain", fails, "None", {"rewards.python.function": "user_functions:fails_on_bad"}),
}  # fmt: skip
