"""The reward lint: what it finds wrong with a list of rewards on a task's rows before anything is trained."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Literal

from test_rewards import LEGACY, RIGHT, TASK, reward
from toolkit.answers import extract_block
from toolkit.errors import ToolkitError
from toolkit.rewards import RewardBase
from toolkit.rewards.lint import LintReport, lint
from toolkit.tasks import ReasoningGym, Row, TaskBase, accepts


class Open(TaskBase):
    """Questions without a right answer."""

    name: Literal["open"] = "open"
    system_prompt: str = ""

    @property
    def graded(self) -> bool:
        return False


OPEN_ROWS = [Row("one", "Tell me of the sea.", ""), Row("two", "Tell me of the hills.", "", solution=None)]


def said(report: LintReport, level: str) -> str:
    return "\n".join(problem.message for problem in report.problems if problem.level == level)


def test_lint_finds_nothing_wrong_with_the_shelf() -> None:
    report = lint(RIGHT, TASK.rows("train"), TASK)
    assert report.ok and report.exit_code == 0 and not report.problems
    assert (report.rows, report.highest_total, report.lowest_total) == (4, 4.0, 0.0)
    assert (report.correctness_share, report.exclusive_pairs, report.gold_failures) == (0.5, [], {})
    assert {probe.name for probe in report.probes if probe.total > 0} == {
        "two candidates in the answer", "wrong answer in the right form",
    }  # fmt: skip
    assert json.loads(report.model_dump_json())["rows"] == 4


def test_lint_shows_what_is_wrong_with_the_published_functions() -> None:
    report = lint(LEGACY, TASK.rows("train"), TASK)
    assert not report.ok and not report.blocking
    paying = {problem.message.partition(": ")[2] for problem in report.errors}
    assert {"bare answer", "answer inside the reasoning", "answer cut off"} <= paying
    assert ("soft_format", "strict_format") in report.exclusive_pairs
    assert report.gold_failures["integer"] == 1  # the negative gold
    assert report.highest_total < 4.0


def test_lint_warns_where_form_outweighs_the_answer() -> None:
    form = [reward for reward in RIGHT if not reward.reads_gold]
    light = reward({"name": "correctness", "weight": 0.5})
    assert "form outweighs" in lint([*form, light], TASK.rows("train"), TASK).problems[0].message
    assert "no reward reads the gold" in lint(form, TASK.rows("train"), TASK).problems[0].message


def test_lint_counts_golds_that_do_not_pay() -> None:
    rows = [Row("good", "?", "1"), Row("words", "?", "one"), Row("none", "?", "")]
    report = lint(RIGHT, rows, TASK)
    assert (report.rows, report.skipped, report.gold_failures) == (2, 1, {"integer": 1, "correctness": 1})
    assert report.exit_code == 1 and report.blocking
    assert not lint(RIGHT, [], TASK).ok


def test_lint_accepts_golds_that_the_library_judges() -> None:
    task = ReasoningGym(dataset="countdown", train_rows=5, heldout_rows=5)
    report = lint([RIGHT[-1]], task.rows("train"), task)
    assert report.ok and report.gold_failures == {}


def test_lint_takes_the_form_that_the_rewards_ask_for() -> None:
    report = lint([reward({"name": "think_format"}), RIGHT[-1]], TASK.rows("train"), TASK)
    assert report.ok and report.gold_failures == {}


def test_lint_refuses_a_weight_that_punishes_right_answers() -> None:
    report = lint([reward({"name": "correctness", "weight": -1})], TASK.rows("train"), TASK)
    assert "a right answer is punished" in said(report, "error") and report.blocking
    assert "pays nothing" in said(lint([reward({"name": "integer", "weight": 0})], TASK.rows("train"), TASK), "warning")


def test_without_golds_a_reward_that_reads_them_is_an_error() -> None:
    report = lint(RIGHT, OPEN_ROWS, Open())
    assert "correctness reads the gold, and the task open has none" in said(report, "error")


def test_without_golds_rewards_must_tell_texts_apart() -> None:
    report = lint([reward({"name": "length", "ideal": 60})], OPEN_ROWS, Open())
    assert (report.ok, report.rows, report.gold_failures) == (True, 2, {})
    assert report.lowest_total < report.highest_total and not report.problems
    blind = reward({"name": "pattern", "pattern": "no such text"})
    assert "pays 0 for every tried text" in said(lint([blind], OPEN_ROWS, Open()), "warning")


def test_without_golds_an_empty_text_should_not_earn_most() -> None:
    report = lint([reward({"name": "length", "ideal": 1})], OPEN_ROWS, Open())
    assert "nothing that was tried earns more than: empty text" in said(report, "warning")


class Broken(RewardBase):
    """A reward that cannot work on one text."""

    name: str = "broken"

    @property
    def bounds(self) -> tuple[float | None, float | None]:
        return None, None

    def score(self, text: str, row: Row) -> float | None:
        if not text:
            raise ToolkitError("the function fails on an empty text", where="mine.py:score")
        return 1.0


def test_a_reward_that_fails_is_an_error_and_does_not_end_the_lint() -> None:
    report = lint([Broken(), RIGHT[-1]], TASK.rows("train"), TASK)
    assert said(report, "error") == "mine.py:score: the function fails on an empty text"
    assert report.highest_total == 3.0


class Lacking(Broken):
    """A reward that cannot work on any row, and says so before it is asked."""

    def ready(self, rows: Sequence[Row]) -> None:
        raise ToolkitError("needs the column topic", where="mine.py:score", hint="columns: {topic: level}")


def test_a_reward_that_is_not_ready_is_asked_nothing() -> None:
    report = lint([Lacking(), RIGHT[-1]], TASK.rows("train"), TASK)
    assert said(report, "error") == "mine.py:score: needs the column topic (columns: {topic: level})"
    assert {probe.pays["broken"] for probe in report.probes} == {None}


class Users(Broken):
    """A function of the user's, which knows no bounds and says nothing of what it reads."""

    name: str = "users"
    pays: Callable[[str, Row], float | None]

    def score(self, text: str, row: Row) -> float | None:
        return self.pays(text, row)


def test_a_users_function_is_seen_to_judge_answers() -> None:
    right = Users(pays=lambda text, row: 3.0 * accepts(row, extract_block(text)))
    report = lint([right, RIGHT[0]], TASK.rows("train"), TASK)
    assert report.correctness_share == 3 / 3.5 and "no reward reads the gold" not in said(report, "warning")
    blind = lint([Users(pays=lambda text, row: float(len(text))), RIGHT[0]], TASK.rows("train"), TASK)
    assert blind.correctness_share == 0.0 and "no reward reads the gold" in said(blind, "warning")


def test_a_reward_that_always_abstains_is_told_and_not_asked_for_every_gold() -> None:
    asked: list[str] = []
    silent = Users(pays=lambda text, row: asked.append(text))
    rows = [Row(f"row {number}", f"{number}?", "1") for number in range(500)]
    assert "users abstained on every tried text" in said(lint([silent, RIGHT[-1]], rows, TASK), "warning")
    assert len(asked) < len(rows)


class Asking(Broken):
    """A reward that would ask a model."""

    asks_model = True
    name: str = "asking"


def test_a_reward_that_asks_a_model_is_left_out_and_named() -> None:
    report = lint([Asking(), RIGHT[-1]], TASK.rows("train"), TASK)
    assert (report.not_tried, report.ok, report.highest_total) == (["asking"], True, 2.0)
