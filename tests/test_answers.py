"""The number reader and the block finder: what is an answer, what is not, and that no text costs much."""

from __future__ import annotations

import json
import os
import sys
import time
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.answers import (
    extract_block,
    gold_text,
    is_well_formed,
    json_int,
    last_number,
    read_number,
    same_last_number,
    same_number,
)
from toolkit.prompts import format_completion

CASES = Path(__file__).parent / "cases"


def cases(name: str) -> list[dict[str, str | None]]:
    return [json.loads(line) for line in (CASES / name).read_text("utf-8").splitlines()]


NUMBERS = {str(case["text"]): case["value"] for case in cases("numbers.jsonl")}
BLOCKS = {str(case["name"]): case for case in cases("blocks.jsonl")}


@pytest.mark.parametrize("text", [text for text, value in NUMBERS.items() if value is not None])
def test_a_dressed_number_is_read_exactly(text: str) -> None:
    assert read_number(text) == Fraction(str(NUMBERS[text]))


@pytest.mark.parametrize("text", [text for text, value in NUMBERS.items() if value is None])
def test_what_states_no_single_number_is_refused(text: str) -> None:
    assert read_number(text) is None


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("8.5", "9"),
        ("25%", "0.25"),
        ("0.25", "25"),
        ("150", "15"),
        ("172", "72"),
        ("3/4", "3"),
        ("7", "72"),
        ("", ""),
    ],
)
def test_near_misses_are_not_the_gold(text: str, gold: str) -> None:
    assert not same_number(text, gold)


@pytest.mark.parametrize(("text", "gold"), [("0.75", "3/4"), ("1,080", "1080"), ("1080", "1,080"), ("25", "25%")])
def test_gold_goes_through_the_same_reader(text: str, gold: str) -> None:
    assert same_number(text, gold)


def test_a_long_sentence_is_no_answer() -> None:
    assert read_number("word " * 10 + "72") == 72
    assert read_number("word " * 40 + "72") is None


def test_numbers_of_any_length_compare_exactly() -> None:
    digits = "9" * 50_000
    assert same_number(digits, digits)
    assert not same_number(digits, digits[:-1] + "8")
    assert same_number(f"{digits}.0", digits)
    assert read_number("1" + "0" * 6000) == 10**6000
    assert not same_number("9" * 5000, "72")
    assert same_number("3" * 3000 + "/" + "6" * 3000, "0.5")


def test_reading_works_under_the_strictest_digit_limit() -> None:
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    try:
        assert read_number("7" * 5001 + ".5") is not None
        assert same_number("1" * 2000 + "/" + "1" * 2000, "1")
        assert gold_text(10**2000) == "1" + "0" * 2000
    finally:
        sys.set_int_max_str_digits(before)


def test_a_gold_may_be_a_json_number() -> None:
    assert [gold_text(value) for value in (72, -3, 72.0, 1e22)] == ["72", "-3", "72.0", "1" + "0" * 22]
    assert [gold_text(value) for value in (None, True, float("nan"), float("inf"), [72], {})] == [""] * 6
    assert json_int("-12") == -12
    assert json.loads("9" * 5000, parse_int=json_int) == 10**5000 - 1


def test_the_lenient_reading_takes_the_last_number_anywhere() -> None:
    cases = {
        "so 48+24=72 clips": 72,
        "36 or 72": 72,
        "3,5": 5,
        "5-3": 3,
        "it is -$4.50.": Fraction("-4.5"),
        "1,248 x": 1248,
    }
    assert {text: last_number(text) for text in cases} == cases
    assert last_number("none") is None
    assert same_last_number("<answer>\n7", "7")


@pytest.mark.parametrize("name", BLOCKS)
def test_only_a_complete_block_after_the_reasoning_counts(name: str) -> None:
    found = extract_block(str(BLOCKS[name]["text"]))
    assert (None if found is None else found.strip()) == BLOCKS[name]["content"]


def test_the_strict_format_is_the_one_the_prompt_asks_for() -> None:
    good = format_completion("line one\nline two", "72")
    assert all(map(is_well_formed, [good, good + "\n", "\n" + good, good.replace("\n", "\r\n")]))
    bad = [
        good + "\nmore", "Sure. " + good, good.replace("\n", ""), good + "\n<answer>7</answer>", good[:-1],
        format_completion("", "72"), format_completion("a", " "), good.replace("</reasoning>\n", ""), "",
        good.replace("</reasoning>\n", "</reasoning>\nso\n"), good.replace("two", "<answer>"),
    ]  # fmt: skip
    assert not any(map(is_well_formed, bad))


HOSTILE = {
    "open tags": "<answer>" * 25_000,
    "mixed tags": "<reasoning><answer>" * 10_000,
    "pairs": "<reasoning></reasoning><answer>" * 7_000,
    "digits": "9" * 200_000,
    "decimals": "0." + "3" * 200_000,
    "groups": "1" + ",000" * 50_000,
    "commas": "1," * 100_000,
    "fraction": "1" * 100_000 + "/" + "3" * 100_000,
    "slashes": "1/" * 100_000,
    "spaces": " " * 200_000 + "5",
    "stars": "*" * 200_000,
    "half bold": "**a " * 50_000,
    "ticks": "`a" * 100_000,
    "backslashes": "\\" * 200_000,
    "boxed": "\\boxed{" * 30_000,
    "half fractions": "\\frac{1" * 30_000,
    "annotations": "<<" * 100_000,
    "equals": "1=" * 100_000,
    "dollars": "$" * 200_000 + "5" + "$" * 1000,
    "currency codes": "Rs." * 60_000 + "5",
    "minus": "-" * 200_000 + "5",
    "words": "a " * 100_000 + "5",
    "hyphens": "a-" * 100_000 + "5",
    "dots": "." * 200_000 + "5",
    "lines": "\n" * 200_000 + "5",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_costs_linear_time(name: str) -> None:
    text = HOSTILE[name]
    start = time.process_time()
    for whole in (text, format_completion("a", text)):
        is_well_formed(whole)
        content = extract_block(whole) or text
        same_number(content, "72")
        same_number(content, "1/3")
        same_number("72", content)
        same_last_number(whole, "72")
    assert time.process_time() - start < 3  # 0.2 s here; quadratic work on 200,000 characters takes minutes


def spaced(digits: str, separator: str) -> str:
    return f"{int(digits):,}".replace(",", separator)


WHOLE = st.integers(-(10**30), 10**30)
SEPARATORS = st.sampled_from(["", ",", " ", "\u00a0", "\u2009", "\u202f", "{,}", "\\,"])
FRAMES = (
    "{}|{}.| {} |{}\r\n|**{}**|`{}`|\\boxed{{{}}}|$\\boxed{{{}}}$|#### {}|{}%|({})|{} clips|The answer is {}."
    "|{}.0|x = {}|48 + 24 = {}|Total: {} clips|<<1+1=2>>{}|{}.00 dollars"
)
SIGNS = st.sampled_from(["-", "\u2212"])
CURRENCY = st.sampled_from(["", "$", "€", "US$", "\\$"])


@given(WHOLE, SEPARATORS, st.sampled_from(FRAMES.split("|")), SIGNS, CURRENCY)
def test_any_integer_in_any_dress_reads_as_itself(
    value: int, separator: str, frame: str, sign: str, currency: str
) -> None:
    dressed = frame.format((sign if value < 0 else "") + currency + spaced(str(abs(value)), separator))
    assert read_number(dressed) == value
    assert same_number(dressed, str(value))
    assert not same_number(dressed, str(value + 1))


@given(st.decimals(allow_nan=False, allow_infinity=False, places=6, min_value=-(10**12), max_value=10**12))
def test_decimals_are_exact(value: object) -> None:
    text = f"{value:f}"
    assert read_number(text) == Fraction(text)


@given(st.integers(-(10**9), 10**9), st.integers(1, 10**9))
def test_fractions_are_exact(top: int, bottom: int) -> None:
    assert read_number(f"{top}/{bottom}") == Fraction(top, bottom)
    assert same_number(f"{top}/{bottom}", gold_text(Fraction(top, bottom)))


@given(WHOLE, st.sampled_from([" ", ", ", " or ", "; ", "\n", " and ", " - ", "–", " = 2 or ", "/1/"]), WHOLE)
def test_two_numbers_are_never_read_as_one(left: int, between: str, right: int) -> None:
    grouped = between == " " and len(str(abs(left))) <= 3 and right >= 0 and len(str(right)) == 3
    if not grouped:
        assert read_number(f"{left}{between}{right}") is None


PIECES = "<reasoning> </reasoning> <answer> </answer> 7 72 , . / - $ = ** #### \\boxed{ } \\frac{ { % << >> or e5"
MARKS = " \n\u202f\u2212²½\ud800\x00"
ANY_TEXT = st.one_of(st.text(), st.lists(st.sampled_from([*PIECES.split(), *MARKS]), max_size=30).map("".join))


@settings(max_examples=500)
@given(ANY_TEXT, ANY_TEXT)
def test_no_text_raises(text: str, gold: str) -> None:
    content = extract_block(text)
    is_well_formed(text)
    read_number(text)
    last_number(text)
    same_number(content or text, gold)
    same_last_number(text, gold)
    gold_text(text)


@given(ANY_TEXT)
def test_a_readable_number_survives_its_own_plain_form(text: str) -> None:
    value = read_number(text)
    if value is not None:
        assert read_number(gold_text(value)) == value


@given(ANY_TEXT)
def test_what_counts_was_written_in_the_text(text: str) -> None:
    content = extract_block(text)
    if content is not None:
        assert f"<answer>{content}</answer>" in text.replace("\r\n", "\n").replace("\r", "\n")


def shared_cases() -> list[dict[str, object]]:
    folder = os.environ.get("TOOLKIT_CASES_DIR")
    path = Path(folder) / "grader.jsonl" if folder else None
    if path is None or not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.mark.skipif(not shared_cases(), reason="TOOLKIT_CASES_DIR holds no grader.jsonl")
def test_the_shared_cases_get_their_verdict() -> None:
    verdicts = {}
    for case in shared_cases():
        content = extract_block(str(case["completion"]))
        verdicts[case["id"]] = content is not None and same_number(content, gold_text(case["gold"]))
    assert verdicts == {case["id"]: case["correct"] for case in shared_cases()}


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think>\n48 + 24\n</think>\n<answer>\n72\n</answer>", "\n72\n"),
        ("<think>\nis it <answer>64</answer>?\n</think>\n<answer>72</answer>", "72"),
        ("<think>\n<answer>72</answer>\n</think>", None),
        ("<think>\n48 + 24 = 72\n<answer>72</answer>", "72"),
        ("<reasoning>\nI <think> of it: <answer>64</answer>\n</reasoning>\n<answer>72</answer>", "72"),
    ],
)
def test_think_tags_mark_the_reasoning_where_there_are_no_reasoning_tags(text: str, answer: str | None) -> None:
    assert extract_block(text) == answer
