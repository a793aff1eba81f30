"""The reward `python`: which functions it takes, what it gives them, and what it does where they fail."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy
import pytest
from pydantic import ValidationError

import user_functions
from toolkit.errors import ToolkitError
from toolkit.recipe import load_recipe
from toolkit.rewards.base import Surroundings
from toolkit.rewards.scoring import score_file
from toolkit.rewards.user_function import user_function
from toolkit.tasks import GSM8K, Row
from user_functions import ROWS, python

pytest_plugins = ("shared",)

AROUND = Surroundings(len, lambda chats, limit: [], 10, token_ids=lambda text: list(text.encode()))


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """Writes `mine.py` into the folder that the test is in."""
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)

    def write(text: str, name: str = "mine.py") -> Path:
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name

    yield write
    sys.path[:] = path


# What it gives


def test_our_signature_gets_text_and_row(mine: Callable[..., Path]) -> None:
    mine("def score(row, text, factor=1):\n    return factor * len(text) if row.gold == '2' else None\n")
    assert python("mine.py:score").score_batch(["abc", "abc"], ROWS) == [3.0, None]
    assert python("mine.py:score", arguments={"factor": 2}).score("abc", ROWS[0]) == 6.0


def test_trls_signature_gets_lists(mine: Callable[..., Path]) -> None:
    mine(
        "seen = []\n"
        "def score(prompts, completions, completion_ids, topic, gold, **rest):\n"
        "    seen.append((prompts, completions, completion_ids, topic, gold, rest))\n"
        "    return [1, None]\n"
    )
    chat = (
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "?"},
        {"role": "user", "content": "1 + 2"},
    )
    rows = [ROWS[0], Row("row 3", "1 + 2", "3", chat=chat, columns={"topic": "sums"})]
    reward = python("mine.py:score").within(AROUND)
    reward.ready(rows)
    assert reward.score_batch(["ab", "c"], rows) == [1.0, None]
    seen = user_function("mine.py:score", None).call.__globals__["seen"]
    prompts, completions, ids, topic, gold, rest = seen[-1]
    assert prompts == [[{"role": "user", "content": "What is 1 + 1?"}], [dict(message) for message in chat]]
    assert completions == [[{"role": "assistant", "content": "ab"}], [{"role": "assistant", "content": "c"}]]
    assert ids == [[97, 98], [99]] and topic == ["sums", "sums"] and gold == ["2", "3"]
    assert rest == {
        "id": ["row 1", "row 3"], "question": ["What is 1 + 1?", "1 + 2"], "solution": ["1 + 1 = 2", None], "seen": [1, None],
    }  # fmt: skip
    assert reward.score_batch(["ab", "c"], rows, ids=[(1, 2, 3), (4,)]) == [1.0, None]
    assert seen[-1][2] == [[1, 2, 3], [4]]


def test_a_column_of_the_data_comes_before_one_of_the_toolkit() -> None:
    row = Row("r", "?", "2", columns={"gold": "42"})
    assert python("user_functions:equals").score("42", row) == 1.0
    assert python("user_functions:equals", columns={"gold": "topic"}).score("sums", ROWS[0]) == 1.0
    assert python("user_functions:equals", arguments={"gold": ["7"]}).score("7", row) == 1.0


def test_token_ids_are_made_only_for_a_function_that_names_them(mine: Callable[..., Path]) -> None:
    mine(
        "def a(completions, **rest):\n    return [float('completion_ids' in rest)]\ndef b(completion_ids):\n    return [0]\n"
    )
    assert python("mine.py:a").score("x", ROWS[0]) == 0.0
    assert python("mine.py:a").score_batch(["x"], ROWS[:1], ids=[[1]]) == [1.0]
    with pytest.raises(ToolkitError, match="needs the recipe's model"):
        python("mine.py:b").score("x", ROWS[0])


def test_coroutines_run_side_by_side(mine: Callable[..., Path]) -> None:
    mine(
        "import asyncio\n"
        "door = asyncio.Barrier(3)\n"
        "async def score(text, row):\n"
        "    await door.wait()\n"
        "    return len(text)\n"
        "async def lists(completions, **columns):\n"
        "    await asyncio.sleep(0)\n"
        "    return [len(c[0]['content']) for c in completions]\n"
        "async def bad(text, row):\n"
        "    raise KeyError('asleep')\n"
    )
    three = [ROWS[0]] * 3
    assert python("mine.py:score").score_batch(["a", "bb", "ccc"], three) == [1.0, 2.0, 3.0]
    assert python("mine.py:score").score_batch(["a", "bb", "ccc"], three) == [1.0, 2.0, 3.0], "on the same loop"
    assert python("mine.py:lists").score_batch(["a", "bb"], ROWS) == [1.0, 2.0]
    with pytest.raises(ToolkitError, match="KeyError: 'asleep'"):
        python("mine.py:bad").score("x", ROWS[0])

    async def within_a_running_loop() -> float | None:
        return python("mine.py:lists").score("abc", ROWS[0])

    assert asyncio.run(within_a_running_loop()) == 3.0


# What it takes for a reward


@pytest.mark.parametrize(
    ("value", "reward"),
    [
        (1, 1.0), (-0.5, -0.5), (None, None), (numpy.float32(0.5), 0.5), (numpy.int64(3), 3.0), (numpy.array(2.5), 2.5),
        (Fraction(1, 4), 0.25),
    ],
)  # fmt: skip
def test_numbers_of_any_make_are_rewards(value: Any, reward: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_functions, "given", lambda text, row: value, raising=False)
    assert python("user_functions:given").score("x", ROWS[0]) == reward
    monkeypatch.setattr(user_functions, "listed", lambda completions: [value], raising=False)
    assert python("user_functions:listed").score("x", ROWS[0]) == reward


def test_arrays_and_tensors_are_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    for values in (numpy.array([1.0, 2.0]), torch.tensor([1.0, 2.0]), (1, 2), [torch.tensor(1), numpy.float64(2)]):
        monkeypatch.setattr(user_functions, "listed", lambda completions, values=values: values, raising=False)
        assert python("user_functions:listed").score_batch(["x", "y"], ROWS) == [1.0, 2.0]


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), -float("inf"), True, "1", [1.0], numpy.array([1.0, 2.0]), numpy.bool_(True), 10**400, 1j,
     numpy.float32("nan")],
    ids=repr,
)  # fmt: skip
@pytest.mark.parametrize("lists", [False, True])
def test_anything_else_names_function_row_and_text(value: Any, lists: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "It is bad. " * 50

    def by_row(text: str, row: Row) -> Any:
        return value if "bad" in text else 1.0

    def listed(completions: Any) -> Any:
        return [value if "bad" in completion[0]["content"] else 1.0 for completion in completions]

    monkeypatch.setattr(user_functions, "given", listed if lists else by_row, raising=False)
    with pytest.raises(ToolkitError) as error:
        python("user_functions:given").score_batch(["good", text], ROWS)
    assert error.value.where == "user_functions:given, row row 2"
    assert "'It is bad." in error.value.message and len(error.value.message) < 400
    assert "on_error" in str(error.value.hint)
    abstains = python("user_functions:given", on_error="abstain")
    assert abstains.score_batch(["good", text], ROWS) == [1.0, None]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return [1.0]", "gave 1 values for 2 "), ("return []", "gave 0 values for 1 "), ("return None", "gave nothing"),
        ("return 1.0", "gave a float instead of a list"), ("return 'ab'", "gave a str"), ("return {0: 1, 1: 2}", "gave a dict"),
        ("return (x for x in [1, 2])", "gave a generator"), ("raise RuntimeError('boom')", "RuntimeError: boom, at mine.py:2"),
        ("import sys; sys.exit(3)", "SystemExit: 3"), ("return [1.0, 2.0, 3.0]", "gave 3 values for 1 "),
    ],
)  # fmt: skip
def test_a_failure_of_the_whole_call_is_an_error(body: str, message: str, mine: Callable[..., Path]) -> None:
    mine(f"def score(completions):\n    {body}\n")
    with pytest.raises(ToolkitError) as error:
        python("mine.py:score").score_batch(["first", "second"], ROWS)
    assert message in error.value.message and error.value.where == "mine.py:score, row row 1"
    assert python("mine.py:score", on_error="abstain").score_batch(["first", "second"], ROWS) == [None, None]


def test_the_completion_that_a_call_broke_on_is_found(mine: Callable[..., Path]) -> None:
    mine(
        "def score(completions, gold):\n"
        "    if any('bad' in c[0]['content'] for c in completions):\n"
        "        raise ValueError('this is bad')\n"
        "    return [1.0] * len(completions)\n"
    )
    rows = [Row(f"row {number}", "?", "1") for number in range(4)]
    with pytest.raises(ToolkitError) as error:
        python("mine.py:score").score_batch(["good", "good", "bad\x1b[2J", "bad"], rows)
    assert error.value.where == "mine.py:score, row row 2"
    assert error.value.message == r"raised ValueError: this is bad, at mine.py:3, on 'bad\x1b[2J'"
    assert isinstance(error.value.__cause__, ValueError)


def test_those_that_abstain_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    reward = python("user_functions:fails_on_bad", on_error="abstain")
    with caplog.at_level(logging.WARNING):
        assert reward.score_batch(["bad", "good", "bad"], [ROWS[0]] * 3) == [None, 1.0, None]
    (record,) = caplog.records
    assert "2 of 3 completions are left out" in record.message and "this is bad" in record.message


# Loading


def test_what_it_prints_does_not_reach_standard_output(
    mine: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    mine(
        "print('loading')\nasync def score(completions, **columns):\n    print('asked')\n    return [1.0] * len(completions)"
    )
    assert python("mine.py:score").score_batch(["a", "b"], ROWS) == [1.0, 1.0]
    out, err = capsys.readouterr()
    assert (out, err) == ("", "loading\nasked\n")


def test_a_column_that_a_file_of_completions_lacks_is_named_before_it_is_called(
    mine: Callable[..., Path], tmp_path: Path
) -> None:
    mine("def score(completions, topic): raise RuntimeError")
    (tmp_path / "rows.jsonl").write_text('{"completion": "a", "topik": "sums"}')
    with pytest.raises(ToolkitError, match="needs the column topic") as error:
        list(score_file([python("mine.py:score")], tmp_path / "rows.jsonl", task=GSM8K()))
    assert "columns: {topic: topik}" in str(error.value.hint)


def test_reading_a_recipe_loads_no_function(mine: Callable[..., Path]) -> None:
    mine("raise RuntimeError('loaded')\n")
    Path("r.yaml").write_text("extends: smollm2-arithmetic\nrewards: [{name: python, function: 'mine.py:score'}]\n")
    (reward,) = load_recipe("r.yaml").recipe.rewards
    assert pickle.loads(pickle.dumps(reward)) == reward
    with pytest.raises(ToolkitError, match=r"cannot be loaded: RuntimeError: loaded, at mine.py:1"):
        reward.ready(ROWS)


def test_a_file_is_loaded_once_and_again_where_it_was_edited(mine: Callable[..., Path]) -> None:
    """Both texts are equally long and written in the same second, which a compiled file would not tell apart."""
    text = "calls = 0\ndef score(text, row):\n    global calls\n    calls += 1\n    return calls + 100\n"
    mine(text)
    reward = python("mine.py:score")
    reward.ready(ROWS)
    assert [reward.score("x", ROWS[0]) for _ in range(3)] == [101, 102, 103]
    reward.ready(ROWS)
    assert reward.score("x", ROWS[0]) == 104, "its state is kept"
    mine(text.replace("100", "200"))
    assert reward.score("x", ROWS[0]) == 105, "a run keeps the text that it began with"
    reward.ready(ROWS)
    assert reward.score("x", ROWS[0]) == 201


def test_a_file_finds_its_neighbours_and_takes_nobodys_place(mine: Callable[..., Path]) -> None:
    Path("sub").mkdir()
    mine("from dataclasses import dataclass\nimport neighbour_of_mine\n\n@dataclass\nclass Pay:\n    value: float\n\n"
         "def score(text, row):\n    import late_neighbour\n    return Pay(neighbour_of_mine.PAY + late_neighbour.PAY).value\n",
         "sub/json.py")  # fmt: skip
    mine("PAY = 2.0\n", "sub/neighbour_of_mine.py")
    mine("PAY = 0.5\n", "sub/late_neighbour.py")
    import json

    assert python("sub/json.py:score").score("x", ROWS[0]) == 2.5
    assert sys.modules["json"] is json and sys.path[0] != str(Path("sub").resolve())


def test_a_factory_is_called_once(mine: Callable[..., Path]) -> None:
    mine(
        "made = 0\n"
        "def factory(step=1):\n"
        "    global made\n"
        "    made += 1\n"
        "    count = 0\n"
        "    def reward(text, row):\n"
        "        nonlocal count\n"
        "        count += step\n"
        "        return count + 100 * made\n"
        "    return reward\n"
    )
    reward, other = (python("mine.py:factory", factory_arguments=given) for given in ({}, {"step": 5}))
    assert [reward.score("x", ROWS[0]) for _ in range(3)] == [101, 102, 103]
    assert [other.score("x", ROWS[0]), reward.score("x", ROWS[0])] == [205, 204]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("gone.py:score", "cannot be read: No such file"), ("mine.py:scroe", "there is no scroe.*did you mean score"),
        ("mine.py:NUMBER", "is no function but an int"), ("broken.py:score", "SyntaxError.*broken.py:2"),
        ("no_such_package.inside:score", "ModuleNotFoundError"), ("json:no_such_thing", "there is no no_such_thing"),
        ("leaves.py:score", "SystemExit"), ("mine.py:factory", "TypeError.*least"),
    ],
)  # fmt: skip
def test_what_cannot_be_loaded_says_why(function: str, message: str, mine: Callable[..., Path]) -> None:
    mine("NUMBER = 3\ndef score(text, row):\n    return 1\ndef factory(most):\n    return score\n")
    mine("def score(text, row):\n    return (\n", "broken.py")
    mine("import sys\nsys.exit(2)\n", "leaves.py")
    knobs = {"factory_arguments": {"least": 1}} if function.endswith("factory") else {}
    with pytest.raises(ToolkitError, match=message) as error:
        python(function, **knobs).ready(ROWS)
    assert error.value.where == function


# Whether it is ready


@pytest.mark.parametrize(
    ("signature", "knobs", "message"),
    [
        ("completions, topics", {}, r"needs the column topics, .*columns: {topics: topic}"),
        ("completions, answer", {}, r"needs the column answer, .*columns: {answer: gold}"),
        ("completions, level", {}, r"needs the column level, which the rows do not have: row 1"),
        ("completions, gold", {"columns": {"gold": "golds"}}, "needs the column golds"),
        ("completions, solution", {"columns": {"solution": "gold"}, "arguments": {"weigth": 1}}, "takes no argument weigth"),
        ("completions, weight=1", {"arguments": {"weigth": 1}}, "did you mean weight"),
        ("completions, trainer_state", {}, "trainer_state, which only TRL's own trainer"),
        ("text, row, factor", {}, r"needs factor, and nobody gives it.*arguments: {factor: …}"),
        ("text, row", {"columns": {"gold": "topic"}}, "takes no argument gold"),
        ("text, row, **more", {"columns": {"gold": "topic"}}, "takes a text and its row, so no columns"),
        ("completions, /", {}, "takes completions by its place only"), ("gold, topic", {}, "takes no completions"),
        ("", {}, "takes no completions"),
    ],
)  # fmt: skip
def test_what_the_function_lacks_is_named_at_start(
    signature: str, knobs: dict[str, Any], message: str, mine: Callable[..., Path]
) -> None:
    mine(f"def score({signature}):\n    return 1\n")
    with pytest.raises(ToolkitError, match=message) as error:
        python("mine.py:score", **knobs).ready(ROWS)
    assert error.value.where == "mine.py:score"


@pytest.mark.parametrize(
    ("signature", "knobs"),
    [
        ("completions, topic, seen, id, question, gold, solution", {}), ("completions, level=None", {}), ("*args, **columns", {}),
        ("prompts, completions, completion_ids, **kwargs", {}), ("completion_ids", {}), ("text, row, factor=1", {}),
        ("completions, trainer_state=None, log_metric=None", {}), ("completions, wanted", {"arguments": {"wanted": 3}}),
        ("completions, wanted", {"columns": {"wanted": "seen"}}), ("text, row, **more", {"arguments": {"any": 1}}),
    ],
)  # fmt: skip
def test_what_has_all_it_needs_is_ready(signature: str, knobs: dict[str, Any], mine: Callable[..., Path]) -> None:
    mine(f"def score({signature}):\n    return 1\n")
    python("mine.py:score", **knobs).ready(ROWS)


def test_a_column_that_some_rows_lack_is_named_with_their_number() -> None:
    bare = Row("bare", "?", "2")
    with pytest.raises(
        ToolkitError, match=r"topic, which 1 of 3 rows do not have: bare.*there are: id, question, gold;"
    ):
        python("user_functions:equals", columns={"gold": "topic"}).ready([*ROWS, bare])


@pytest.mark.parametrize(
    "knobs",
    [
        {"function": "mine.py"}, {"function": "mine:"}, {"function": ":score"}, {"function": "mine.py:a b"}, {"function": "a/b:c"},
        {"function": "1a:b"}, {"function": ""}, {"arguments": {"completions": 1}}, {"columns": {"prompts": "gold"}},
        {"arguments": {"a": 1}, "columns": {"a": "gold"}}, {"on_error": "ignore"}, {"columns": {"a": 3}},
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_meant_is_refused_when_the_recipe_is_read(knobs: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        python(**{"function": "mine.py:score"} | knobs)


# TRL's own


@pytest.mark.parametrize("unsloth_first", [False, True])
def test_trls_own_functions_work_through_it(unsloth_first: bool, unsloth_process: Callable[..., Any]) -> None:
    pytest.importorskip("trl")
    paid = unsloth_process(user_functions.of_trl) if unsloth_first else user_functions.of_trl()
    assert paid["form"] == [1.0, 0.0] and paid["accuracy"] == [1.0, 0.0]
    assert paid["overlong"] == pytest.approx(paid["straight"]) == [-0.5, -1.0]


def test_in_a_process_of_its_own_trls_rewards_load_no_model_library() -> None:
    pytest.importorskip("trl")
    program = (
        "import sys; from user_functions import ROWS, python\n"
        "reward = python('trl.rewards:think_format_reward')\n"
        "assert 'trl' not in sys.modules\n"
        "reward.ready(ROWS)\n"
        "print(reward.score_batch(['<think>a</think>b', 'b'], ROWS), 'torch' in sys.modules, 'transformers' in sys.modules)"
    )
    here = str(Path(__file__).parent)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([os.environ["PYTHONPATH"], here, str(Path(here).parent)])}
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert child.stdout.strip() == "[1.0, 0.0] False False", child.stderr
