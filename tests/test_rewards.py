"""The GSM8K rewards: what each pays, what the published functions paid, and how files of completions are scored."""

from __future__ import annotations

import json
import logging
import os
import pickle
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from effects import CLASSIC, REWARD_BASES
from toolkit.errors import DataError
from toolkit.prompts import format_completion
from toolkit.rewards import REWARDS, Correctness, Reward, RewardBase
from toolkit.rewards.scoring import score_file, score_text
from toolkit.tasks import GSM8K, Row, Table, grade


def reward(knobs: dict[str, Any]) -> RewardBase:
    return TypeAdapter(Reward).validate_python(knobs)


RIGHT = [reward(REWARD_BASES[name]) for name in CLASSIC]
LEGACY = [reward({"name": name, "legacy": True}) for name in CLASSIC]
ROW = Row("row", "How many clips?", "72")
FIXTURE = Path(__file__).parent / "data" / "gsm8k"
TASK = GSM8K(train_file=str(FIXTURE / "train.jsonl"), heldout_file=str(FIXTURE / "test.jsonl"))

R = "<reasoning>\n48 + 24 = 72\n</reasoning>\n"
A = "<answer>\n72\n</answer>"
LINES = "<reasoning>\nHalf of 48 is 24.\n48 + 24 = 72\n</reasoning>\n"
# text: (what the rewards pay, what the published ones pay): xmlcount, soft, strict, integer, correctness.
# The published tag counter, by hand: 0.125 a tag, less 0.001 a character after the closing tag, and a
# character of the whole text where no line break follows the closing tag.
PAY = {
    LINES + A: ((0.5, 0.5, 0.5, 0.5, 2.0), (0.501 - 0.077, 0, 0, 0.5, 2.0)),
    LINES + A + "\n": ((0.5, 0.5, 0.5, 0.5, 2.0), (0.5, 0, 0, 0.5, 2.0)),
    R + A + "\n": ((0.5, 0.5, 0.5, 0.5, 2.0), (0.5, 0, 0.5, 0.5, 2.0)),
    (R + A).replace("\n", ""): ((0, 0.5, 0, 0.5, 2.0), (0, 0.5, 0, 0.5, 2.0)),
    (R + A).replace("\n", "\r\n"): ((0.5, 0.5, 0.5, 0.5, 2.0), (0.126, 0, 0, 0.5, 2.0)),
    R + A.replace("72", "$72.00") + "\n": ((0.5, 0.5, 0.5, 0.5, 2.0), (0.5, 0, 0.5, 0, 0)),
    R + A.replace("72", "-72") + "\n": ((0.5, 0.5, 0.5, 0.5, 0), (0.5, 0, 0.5, 0, 0)),
    R + A.replace("72", "72.5") + "\n": ((0.5, 0.5, 0.5, 0, 0), (0.5, 0, 0.5, 0, 0)),
    R + A.replace("72", "36 or 72") + "\n": ((0.5, 0.5, 0.5, 0, 0), (0.5, 0, 0.5, 0, 0)),
    R + A.replace("72", "7²") + "\n": ((0.5, 0.5, 0.5, 0, 0), (0.5, 0, 0.5, 0.5, 0)),
    R + A + "\n" + "x" * 100: ((0.4, 0.5, 0, 0.5, 2.0), (0.5 - 0.1 - 0.1, 0, 0, 0.5, 2.0)),
    R + A + "\n" + "x" * 900: ((0, 0.5, 0, 0.5, 2.0), (0.5 - 0.9 - 0.9, 0, 0, 0.5, 2.0)),
    R + A + "\n" + A: ((0, 0, 0, 0.5, 2.0), (0.25, 0, 0, 0.5, 2.0)),
    R + A.replace("72", "64") + "\n" + A: ((0, 0, 0, 0.5, 2.0), (0.25, 0, 0, 0.5, 2.0)),
    R.replace("</reasoning>\n", "") + A: ((0, 0, 0, 0.5, 2.0), (0.376 - 0.046, 0, 0, 0.5, 2.0)),
    A: ((0, 0, 0, 0, 0), (0.126, 0, 0, 0.5, 2.0)),
    R + "<answer>\n72": ((0, 0, 0, 0, 0), (0.375 - 0.049, 0, 0, 0.5, 2.0)),
    R.replace("48", A): ((0, 0, 0, 0, 0), (0.501 - 0.057 - 0.024, 0, 0, 0.5, 2.0)),
    "Sure. " + R + A: ((0, 0, 0, 0.5, 2.0), (0.501 - 0.065, 0, 0, 0.5, 2.0)),
    R + "<answer>\n\n</answer>\n": ((0, 0, 0, 0, 0), (0.5, 0, 0.5, 0, 0)),
    "72": ((0, 0, 0, 0, 0), (0, 0, 0, 0.5, 2.0)),
    "": ((0, 0, 0, 0, 0), (0, 0, 0, 0, 0)),
}


def paid(rewards: Sequence[RewardBase], text: str, row: Row = ROW) -> tuple[float | None, ...]:
    return tuple(score_text(rewards, text, row).values.values())


@pytest.mark.parametrize("text", PAY)
def test_every_reward_pays_by_the_rules(text: str) -> None:
    assert paid(RIGHT, text) == pytest.approx(PAY[text][0])


@pytest.mark.parametrize("text", PAY)
def test_legacy_reproduces_the_published_functions(text: str) -> None:
    assert paid(LEGACY, text) == pytest.approx(PAY[text][1])


def test_legacy_splits_overlapping_tags_as_published() -> None:
    """`str.split` from the left takes the first of two overlapping separators."""
    text = R + "<answer>\n72\n</answer>\n</answer>\n"
    assert paid(LEGACY[:1], text) == pytest.approx((0.375 - 0.010,))


def test_a_perfect_completion_earns_four() -> None:
    for ending in ("", "\n"):
        assert score_text(RIGHT, LINES + A + ending, ROW).total == 4.0


def test_weights_scale_the_total_and_not_the_values() -> None:
    rewards = [TypeAdapter(Reward).validate_python({"name": "correctness", "weight": 0.25})]
    scores = score_text(rewards, LINES + A, ROW)
    assert (scores.values, scores.total) == ({"correctness": 2.0}, 0.5)


def test_an_unreadable_gold_never_pays() -> None:
    for gold in ("", " ", "seventy-two", "3,5"):
        for answer in ("", " ", "seventy-two", "3,5", "72"):
            assert paid(RIGHT, R + f"<answer>\n{answer}\n</answer>", Row("x", "", gold))[3:] == (0.0, 0.0)


def test_integer_pays_nothing_where_the_gold_is_no_whole_number() -> None:
    assert paid(RIGHT, R + "<answer>\n8\n</answer>", Row("x", "", "8.5"))[3] == 0.0


def test_correctness_is_the_graders_verdict() -> None:
    for text in PAY:
        assert (paid(RIGHT, text)[4] == 2.0) == grade(text, ROW).strict
        assert (paid(RIGHT, text)[2] == 0.5) == grade(text, ROW).well_formed


@given(
    st.text() | st.lists(st.sampled_from([R, A, "<answer>", "</reasoning>", "\n", "72"])).map("".join),
    st.text(),
)
def test_every_value_lies_in_its_bounds_and_no_text_raises(text: str, gold: str) -> None:
    for one in (*RIGHT, *LEGACY):
        low, high = one.bounds
        value = one.score(text, Row("x", "", gold))
        assert value is not None and high is not None and value <= high + 0.002 * one.model_dump()["legacy"]
        assert low is None or value >= low


@pytest.mark.parametrize("knobs", [{"weight": float("nan")}, {"weight": float("inf")}, {"wieght": 1}, {"legacy": "so"}])
def test_bad_knobs_are_refused(knobs: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Reward).validate_python({"name": "correctness", **knobs})


@pytest.mark.parametrize("name", REWARDS)
def test_a_reward_is_a_documented_frozen_picklable_model(name: str) -> None:
    one = reward(REWARD_BASES[name])
    assert type(one) is REWARDS[name]
    assert pickle.loads(pickle.dumps(one)) == one
    assert "Range" in (type(one).__doc__ or "") and "After " in (type(one).__doc__ or "")
    with pytest.raises(ValidationError):
        one.weight = 2.0


def test_what_was_scored_before_a_line_that_cannot_be_read_is_not_lost(tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(json.dumps({"completion": R + A, "gold": 72}) + "\n{")
    scores = score_file(RIGHT, file, task=TASK)
    assert next(scores)["total"] == 4.0
    with pytest.raises(DataError):
        next(scores)


def test_score_file_gives_one_record_a_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    good = R + A
    lines = [
        {"completion": good, "gold": "72"},
        {"completion": good, "gold": 72},
        {"completion": [{"role": "assistant", "content": good}], "gold": 72.0},
        {"completion": [{"role": "user", "content": "?"}, {"content": [{"text": good}]}], "gold": "72"},
        {"completion": good, "question": "?", "answer": "48 + 24 = <<48+24=72>>72\n#### 72"},
        {"completion": good, "gold": None},
        {"completion": good},
        {"completion": "", "gold": "72"},
    ]  # fmt: skip
    file = tmp_path / "completions.jsonl"
    file.write_text("\ufeff" + "\n".join(map(json.dumps, lines)), encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        results = list(score_file(RIGHT, file, task=TASK))
    assert [result["total"] for result in results] == [4.0] * 5 + [1.5, 1.5, 0.0]
    assert results[0]["rewards"] == dict(zip(CLASSIC, (0.5, 0.5, 0.5, 0.5, 2.0), strict=True))
    assert [record.message.split(": ")[0].rpartition(":")[2] for record in caplog.records] == ["6", "7"]
    json.dumps(results, allow_nan=False)


def test_score_file_reads_golds_of_any_length(tmp_path: Path) -> None:
    file = tmp_path / "long.jsonl"
    file.write_text(json.dumps({"completion": R + A.replace("72", "9" * 5000)})[:-1] + f', "gold": {"9" * 5000}}}')
    assert next(score_file(RIGHT, file, task=TASK))["total"] == 4.0


@pytest.mark.parametrize(
    "line",
    ["{", "[1]", '{"gold": 1}', '{"completion": 5, "gold": 1}', '{"completion": ["a"]}', "[" * 100_000],
)
def test_score_file_names_the_line_it_cannot_read(tmp_path: Path, line: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text('{"completion": "", "gold": 1}\n\n' + line)
    with pytest.raises(DataError) as error:
        list(score_file(RIGHT, file, task=TASK))
    assert error.value.where == f"{file}:3"


@pytest.mark.parametrize(
    ("content", "message", "hint"),
    [
        ('{"completions": "a", "gold": 1}', "no completion; keys found: completions, gold", "is completions meant"),
        ("\n", "there are no completions", None),
        ('{"completion": "a", "prompt": [{"role": "bot"}]}', "the prompt cannot be read: message 1 has the role", None),
    ],
)
def test_score_file_says_what_a_line_lacks(tmp_path: Path, content: str, message: str, hint: str | None) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(content)
    with pytest.raises(DataError, match=message) as error:
        list(score_file(RIGHT, file, task=TASK))
    assert hint is None or hint in str(error.value.hint)


def test_score_file_knows_the_columns_that_the_recipe_names(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"completion": R + A, "label": 72, "talk": [{"role": "user", "content": "48 + 24?"}]}))
    task = Table(train_file="unread.jsonl", prompt="talk", gold="label")
    assert next(score_file(RIGHT, file, task=task))["total"] == 4.0
    assert next(score_file(RIGHT, file, task=TASK))["total"] == 1.5


def test_score_file_shows_a_judge_the_whole_conversation(tmp_path: Path) -> None:
    seen: list[Row] = []

    class Watching(Correctness):
        def score(self, text: str, row: Row) -> float | None:
            seen.append(row)
            return 0.0

    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "And?"}]
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"completion": "a", "gold": 1, "prompt": talk}))
    list(score_file([Watching()], file, task=TASK))
    assert seen[0].question == "And?" and [message["role"] for message in seen[0].chat] == ["system", "user"]


def test_scoring_is_quick() -> None:
    """The promise is 10,000 completions of 1,000 characters in 2 s on one core; here a fifth of them."""
    body = "".join(f"Step {step}: {step} * 3 = {step * 3}, so we have {step} more.\n" for step in range(24))
    texts = [format_completion(f"{body}{index}"[-930:], f"${index:,}") for index in range(2_000)]
    start = time.process_time()
    for text in texts:
        score_text(RIGHT, text, ROW)
    assert time.process_time() - start < 2.0  # 0.04 s here


@pytest.mark.skipif("TOOLKIT_CASES_DIR" not in os.environ, reason="TOOLKIT_CASES_DIR is not set")
def test_the_shared_cases_are_paid_by_their_verdict() -> None:
    file = Path(os.environ["TOOLKIT_CASES_DIR"]) / "grader.jsonl"
    verdicts = [json.loads(line)["correct"] for line in file.read_text("utf-8").splitlines()]
    assert [result["rewards"]["correctness"] == 2.0 for result in score_file(RIGHT, file, task=TASK)] == verdicts
