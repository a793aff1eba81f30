"""The rewards for length, thinking tags, patterns, repetition and the limit: what each pays, against hand-made numbers."""

from __future__ import annotations

import logging
import pickle
import random
import time
from typing import Any

import pytest
import regex
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from toolkit.errors import KeyFault, ToolkitError
from toolkit.rewards import REWARDS, Reward, RewardBase
from toolkit.rewards.base import Surroundings
from toolkit.rewards.matchable import can_match
from toolkit.tasks import Row, grade

ROW = Row("row", "How many clips?", "72")
AROUND = Surroundings(
    count_tokens=lambda text: len(text.split()), ask_base=lambda chats, limit: [], max_completion_length=100
)
SHELF: list[dict[str, Any]] = [
    {"name": "length", "ideal": 50},
    {"name": "length", "ideal": 50, "form": "bounded", "unit": "words"},
    {"name": "length", "ideal": 50, "form": "bounded", "unit": "tokens"},
    {"name": "think_format"},
    {"name": "pattern", "pattern": r"^<reasoning>\n.*?\n</reasoning>\n<answer>\n.*?\n</answer>\n$"},
    {"name": "pattern", "pattern": r"(?i)sorry|\bAI\b", "pays": -0.5},
    {"name": "repetition"},
    {"name": "overlong", "cache": 20},
]  # fmt: skip


def build(**knobs: Any) -> RewardBase:
    return TypeAdapter(Reward).validate_python(knobs).within(AROUND)


def paid(text: str, **knobs: Any) -> float | None:
    return build(**knobs).score(text, ROW)


def fault(**knobs: Any) -> KeyFault:
    """What a validator of ours says is wrong."""
    with pytest.raises(ValidationError) as error:
        build(**knobs)
    cause = error.value.errors()[0].get("ctx", {}).get("error")
    assert isinstance(cause, KeyFault)
    return cause


@pytest.mark.parametrize("knobs", SHELF, ids=lambda knobs: knobs["name"])
def test_a_reward_is_a_documented_picklable_model(knobs: dict[str, Any]) -> None:
    reward = TypeAdapter(Reward).validate_python(knobs)
    assert type(reward) is REWARDS[knobs["name"]]
    assert pickle.loads(pickle.dumps(reward)) == reward
    assert "Range" in (type(reward).__doc__ or "") and "After " in (type(reward).__doc__ or "")


@given(
    st.text()
    | st.lists(st.sampled_from(["<think>", "</think>", "<answer>", "</answer>", "a b ", "日本", "\n"])).map("".join)
)
def test_no_text_raises_and_every_value_lies_in_its_bounds(text: str) -> None:
    for knobs in SHELF:
        for gold in ("72", ""):
            reward = build(**knobs)
            value, (low, high) = reward.score(text, Row("x", "", gold)), reward.bounds
            assert value is not None and high is not None and value <= high
            assert low is None or value >= low


@pytest.mark.parametrize(
    ("unit", "text", "size"),
    [("characters", "añ b\n", 5), ("characters", "", 0), ("words", " one\ttwo\nthree ", 3), ("tokens", "one two", 2)],
)
def test_length_measures_in_its_unit(unit: str, text: str, size: int) -> None:
    for ideal in (1, 3, 50):
        assert paid(text, name="length", ideal=ideal, unit=unit) == -abs(size - ideal)
        bounded = paid(text, name="length", ideal=ideal, unit=unit, form="bounded")
        assert bounded == pytest.approx(max(0.0, 1 - abs(size - ideal) / ideal))


def test_length_is_the_published_distance() -> None:
    """Of the TL;DR practical: -abs(50 - len(completion)), by hand."""
    assert [paid("x" * size, name="length", ideal=50) for size in (0, 49, 50, 60)] == [-50.0, -1.0, 0.0, -10.0]


def test_length_in_characters_or_words_needs_no_tokenizer() -> None:
    for unit in ("characters", "words"):
        reward = TypeAdapter(Reward).validate_python({"name": "length", "ideal": 3, "unit": unit})
        assert reward.score_batch(["a b c"], [ROW], ids=[[0] * 77]) == [reward.score("a b c", ROW)]
    tokens = TypeAdapter(Reward).validate_python({"name": "length", "ideal": 3, "unit": "tokens"})
    with pytest.raises(ToolkitError):
        tokens.score("a b c", ROW)


def test_length_in_tokens_takes_those_that_were_generated() -> None:
    reward = build(name="length", ideal=3, unit="tokens")
    assert reward.score_batch(["a b c", "a"], [ROW, ROW], ids=[[0] * 5, [0] * 3]) == [-2.0, 0.0]
    assert reward.score_batch(["a b c", "a"], [ROW, ROW]) == [0.0, -2.0]


THOUGHT = "<think>Half of 48 is 24.</think>"
ANSWER = "<answer>72</answer>"
THINK = {
    THOUGHT + ANSWER: 1.0,
    f" {THOUGHT}\n\n{ANSWER}\n": 1.0,
    THOUGHT.replace(">", ">\n", 1) + "\n" + ANSWER: 1.0,
    "<think>123456789</think>" + ANSWER: 0.5,
    "<think> \n </think>" + ANSWER: 0.5,
    THOUGHT + "<answer> </answer>": 0.5,
    "<think></think><answer></answer>": 0.5,
    "": 0.0,
    "72": 0.0,
    THOUGHT: 0.0,
    ANSWER: 0.0,
    ANSWER + THOUGHT: 0.0,
    "Sure. " + THOUGHT + ANSWER: 0.0,
    THOUGHT + "so" + ANSWER: 0.0,
    THOUGHT + ANSWER + " I hope this helps.": 0.0,
    THOUGHT + ANSWER + ANSWER: 0.0,
    THOUGHT + THOUGHT + ANSWER: 0.0,
    "<think>" + THOUGHT + ANSWER: 0.0,
    "<think>" + ANSWER + "Half of 48 is 24.</think>": 0.0,
    "<think>Half of 48 is 24.<answer>72</answer>": 0.0,
    THOUGHT + "<answer>72": 0.0,
    THOUGHT + "<answer><think>72</answer>": 0.0,
    (THOUGHT + ANSWER).replace("think", "THINK"): 0.0,
    "<think>" * 50_000: 0.0,
}


@pytest.mark.parametrize("text", THINK, ids=lambda text: text[:40])
def test_think_format_pays_full_half_or_nothing(text: str) -> None:
    assert paid(text, name="think_format") == THINK[text]


def test_think_format_has_its_thinness_set() -> None:
    text = "<think>12345</think><answer>72</answer>"
    assert paid(text, name="think_format", min_think_chars=5) == 1.0
    assert paid(text, name="think_format", min_think_chars=5, min_answer_chars=3) == 0.5


def test_an_answer_after_thinking_tags_is_graded() -> None:
    """To the grader, which knows `<reasoning>`, the tagged thinking is plain text ahead of the answer."""
    assert grade(THOUGHT + ANSWER, ROW).strict
    assert not grade("<think></think>" + ANSWER.replace("72", "36"), ROW).strict


def test_repetition_is_the_published_formula() -> None:
    """By hand after Yeo et al.: max_penalty * (1 - different / all)."""
    assert paid("a b c d", name="repetition", ngram_size=2) == 0.0
    assert paid("5 5 5 5 5", name="repetition", ngram_size=2) == -0.75  # TRL's own example: 1 of 4 differs
    assert paid("a b a b a b", name="repetition", ngram_size=2) == pytest.approx(-(1 - 2 / 5))
    assert paid("The the THE", name="repetition", ngram_size=1, max_penalty=-3) == pytest.approx(-2.0)
    assert paid("a b a b c a b a", name="repetition", max_penalty=-0.5) == pytest.approx(-0.5 * (1 - 5 / 6))


def test_repetition_needs_as_many_words_as_an_ngram_has() -> None:
    for text in ("", " ", "a a"):
        assert str(paid(text, name="repetition")) == "0.0"
    assert paid("a a a a", name="repetition") == -0.5


def test_repetition_counts_characters_as_words_where_the_script_has_no_spaces() -> None:
    assert paid("你好你好", name="repetition", ngram_size=2) == pytest.approx(-1 / 3)
    assert paid("ไปไป", name="repetition", ngram_size=2) == pytest.approx(-1 / 3)
    assert paid("grün grün grün", name="repetition", ngram_size=1) == pytest.approx(-2 / 3)
    assert paid("𠀀𠀀 x", name="repetition", ngram_size=1) == pytest.approx(-1 / 3)


def test_overlong_is_daos_equation_13() -> None:
    """TRL's own example (limit 100, cache 20): 90 tokens earn -0.5."""
    reward = build(name="overlong", max_length=100, cache=20)
    sizes = [0, 79, 80, 81, 90, 99, 100, 101, 5000]
    values = reward.score_batch([""] * 9, [ROW] * 9, ids=[[0] * size for size in sizes])
    assert values == [0.0, 0.0, 0.0, -0.05, -0.5, -0.95, -1.0, -1.0, -1.0]


def test_overlong_takes_the_recipes_limit() -> None:
    reward = build(name="overlong", cache=20)
    assert reward.score_batch([""], [ROW], ids=[[0] * 95]) == [-0.75]
    assert reward.score("word " * 95, ROW) == -0.75
    reward.ready([ROW])


def test_overlong_refuses_a_cache_that_leaves_nothing_unpunished() -> None:
    for cache in (10, 11):
        found = fault(name="overlong", max_length=10, cache=cache)
        assert found.at == ("cache",) and found.hint == "for example 2, a fifth of the limit as in DAPO"
    with pytest.raises(ToolkitError, match="cache 100 must be below the limit of 100 tokens"):
        build(name="overlong", cache=100).ready([ROW])


def test_pattern_searches_matches_or_matches_all() -> None:
    text = "Sure.\nThe answer is 72."
    assert [paid(text, name="pattern", pattern=r"\d+", match=how) for how in ("search", "match", "fullmatch")] == [
        1,
        0,
        0,
    ]
    assert [paid(text, name="pattern", pattern="Sure", match=how) for how in ("search", "match", "fullmatch")] == [
        1,
        1,
        0,
    ]
    assert paid(text, name="pattern", pattern=".*", match="fullmatch") == 0.0
    assert paid(text, name="pattern", pattern=".*", match="fullmatch", flags=["DOTALL"], pays=-2) == -2.0


def test_pattern_takes_the_librarys_flags_and_syntax() -> None:
    assert paid("THE END", name="pattern", pattern="the  end # twice", flags=["VERBOSE", "IGNORECASE"]) == 0.0
    assert paid("THE END", name="pattern", pattern=r"the \s end # once", flags=["VERBOSE", "IGNORECASE"]) == 1.0
    assert paid("a\nb", name="pattern", pattern="^b", flags=["MULTILINE"]) == 1.0
    assert paid("Ünlü", name="pattern", pattern=r"^\p{Lu}\p{Ll}++$") == 1.0
    assert paid("anser", name="pattern", pattern="(?:answer){e<=1}") == 1.0


def test_pattern_names_a_flag_that_was_meant() -> None:
    found = fault(name="pattern", pattern="a", flags=["DOTALL", "IGNORCASE"])
    assert (found.at, found.hint) == (("flags", 1), "did you mean IGNORECASE?")
    assert "VERSION0" in str(fault(name="pattern", pattern="a", flags=["VERSION0", "VERSION1"]))


@pytest.mark.parametrize(("pattern", "place"), [("(ab", "position 3"), ("a**", "position 2"), ("[z-a]", "position 4")])
def test_pattern_says_where_it_is_wrong(pattern: str, place: str) -> None:
    found = fault(name="pattern", pattern=pattern)
    assert found.at == ("pattern",) and place in str(found)


def test_pattern_that_pays_nothing_is_refused() -> None:
    assert fault(name="pattern", pattern="a", pays=0).at == ("pays",)


def test_pattern_abstains_on_a_text_that_takes_too_long(caplog: pytest.LogCaptureFixture) -> None:
    reward = build(name="pattern", pattern="^(a|aa)+$", timeout_s=0.05)
    start = time.monotonic()
    with caplog.at_level(logging.WARNING):
        assert reward.score("a" * 60 + "!", ROW) is None
    assert time.monotonic() - start < 2 and "row row" in caplog.text
    assert reward.score("aaa", ROW) == 1.0


NEVER = {
    "search": [
        "(?!)", "a^b", "$x", r"[^\s\S]", r"\b\B", r"a\Ab", r"x\Zy", r"a\bb", r" \b ", r"a(?!.*)b", r"[^\w\W\d]",
        "(?:a|b)^c", "(^a){2}", "a$b|c^d", r"(?:x(?!))+", r"\n^a", "(?=a^b)c", "a(?:$|^)b", r"[^\x00-\U0010ffff]",
        r"(?s)a\Z.", "(?<=a^b)c", r"\Bx\b\w",
    ],
    "match": ["a^", r"\n^", r"(?:\b)(?:\B)"],
    "fullmatch": [r"a$\n\n", r"$\n."],
}  # fmt: skip
SOMETIMES = {
    "search": [
        r"^<reasoning>\n.*?\n</reasoning>\n<answer>\n.*?\n</answer>\n$", "", "a", "^$", r"$\n", "(?m)a$\n^b", r"\bword\b",
        "(?:^a|b)c", "a*^b", "(?:a^)?b", r"[^\W\d_]", r"[^\S\n]", r"\B\B", "(?!a)b", "(?<!a)b", r"(a)\1", "(a)?(?(1)b|c)",
        r"\p{L}^", "(?:a^b){e<=2}", "[[:alpha:]]^b", "é\\bé", "a(?=b)b", "(?i:straße)", r"[^\w\s]", r"(?:a$\n)*b", "^^a$$",
        r"\A\A", "(?m:^)a", r"\d\b\D", r"[\w\W]", "(?>a|b)c", "a{0}^b", r"(?:$\s)", "(?=$)", "(a|b^)+",
    ],
    "match": [r"(?m)\n^", "(?:^)(?:^)"],
    "fullmatch": [r"a$\n", r"a\n?"],
}  # fmt: skip


@pytest.mark.parametrize(("how", "pattern"), [(how, pattern) for how, some in NEVER.items() for pattern in some])
def test_a_pattern_that_can_never_match_is_refused(how: str, pattern: str) -> None:
    assert "can never match" in str(fault(name="pattern", pattern=pattern, match=how))


@pytest.mark.parametrize(("how", "pattern"), [(how, pattern) for how, some in SOMETIMES.items() for pattern in some])
def test_a_pattern_that_can_match_is_accepted(how: str, pattern: str) -> None:
    assert can_match(pattern, [], match=how)


ATOMS = [
    "a", "b", r"\n", " ", ".", "^", "$", r"\b", r"\B", r"\A", r"\Z", r"\w", r"\W", r"\s", r"\S", r"\d", "[a-b]", "[^a]",
    r"[^\w]", r"[^\s]", r"[^\n]", r"[^\S\n]", "é", "(?=a)", "(?!a)", "(?<=a)", "(?<!a)", "(?!)", r"(?=\s)",
    "(?m:^)", "(?m:$)", "(?s:.)",
]  # fmt: skip
PATTERNS = st.recursive(
    st.sampled_from(ATOMS),
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=4).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+?", "?", "{2}", "{3,}", "{0,2}", "++"])).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
    ),
    max_leaves=8,
)  # fmt: skip


@given(
    PATTERNS, st.text("ab\n é1", max_size=6), st.sampled_from([[], ["MULTILINE"], ["DOTALL", "IGNORECASE"], ["ASCII"]])
)
def test_no_pattern_that_matches_something_is_called_impossible(pattern: str, text: str, flags: list[str]) -> None:
    value = sum(getattr(regex, flag) for flag in flags)
    for how in ("search", "match", "fullmatch"):
        try:
            found = getattr(regex.compile(pattern, value), how)(text, timeout=1)
        except (regex.error, TimeoutError):
            assume(False)
        assert not found or can_match(pattern, flags, match=how)


def test_scoring_is_quick() -> None:
    """The promise is 10,000 completions of 1,000 characters in 2 s on one core; here a tenth of them."""
    draw = random.Random(1)
    words = [f"word{number}" for number in range(300)]
    bodies = [" ".join(draw.choices(words, k=150))[:900] for _ in range(1_000)]
    texts = [f"<think>{body}</think><answer>72</answer>" for body in bodies]
    rewards = [build(**knobs) for knobs in SHELF]
    start = time.process_time()
    for reward in rewards:
        reward.score_batch(texts, [ROW] * len(texts), ids=[[0] * 250] * len(texts))
    assert time.process_time() - start < 1.0
