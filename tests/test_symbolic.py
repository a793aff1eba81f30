"""Symbolic answers: what means the same, that no text hangs, fills or ends anything, and what the reward pays for them."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from toolkit.errors import DataError
from toolkit.rewards import Reward, RewardBase
from toolkit.tasks import Row
from toolkit.tasks import symbolic as symbolic_module
from toolkit.tasks.symbolic import expression, is_readable, same_expression

R = "<reasoning>\nThe sum of both.\n</reasoning>\n"

SAME = [
    ("1/2", r"\frac{1}{2}"), (r"\frac12", "0.5"), (r"\dfrac{3}{4}", "0.75"), ("$1,248$", "1248"), ("$18", "18"),
    ("x^2+2x+1", "(x+1)^2"), ("(x+1)**2", "(x+1)^2"), (r"2\sqrt{2}", r"\sqrt{8}"), ("sqrt(8)", r"\sqrt{8}"),
    (r"\boxed{x+1}", "1+x"), (r"$\boxed{x+1}$", "1+x"), ("The answer is $x+1$.", "1+x"), (r"\(x+1\)", "1+x"),
    (r"\[ x + 1 \]", "1+x"), ("**x+1**", "1+x"), ("x = 5", "5"), ("5", "x=5"), (r"\{2, 1\}", r"\{1,2\}"), ("2, 1", "1, 2"),
    ("$x=1$ and $x=2$", "$x=1$, $x=2$"), ("[0,1)", "[0, 1)"), ("x < 5", "5 > x"), (r"\sin^2 x + \cos^2 x", "1"),
    (r"\binom{5}{2}", "10"), ("5!", "120"), (r"5 \text{ cm}", "5"), (r"5\text{ cm}^2", "5"), (r"\text{East}", "east"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"), ("x\n+\n1", "x+1"), (r"\pm 2", "2, -2"),
    ("2x - x", "x"), ("x", r"\frac{2x}{2}"),
    ("9" * 5_000, "9" * 5_000 + ".0"), ("72 clips", "72"), ("The answer is 72.", "72"), ("18 dollars a day", "$18"),
]  # fmt: skip
DIFFERENT = [
    ("0.3333", r"\frac{1}{3}"), ("3.14", r"\pi"), ("50%", "0.5"), (r"50\%", r"\frac12"), ("x+1", "x+2"), ("y=5", "x=5"),
    ("2t", "2"), ("2t", "2s"), ("5c", "5"), ("5!", "5"), ("3i", "3"), ("(1,2)", "(2,1)"), ("[0,1]", "[0,1)"),
    ("36 or 72", "72"), ("36, 72", "72"), ("36 72", "2592"), ("$1$, no, $2$", "2"), (r"\boxed{1} or \boxed{2}", "2"),
    ("x = 36, x = 72", "72"), ("seat", "east"), ("", "7"), ("||", "7"), (r"\frac{", "x"), ("}{", "x"), ("x+1" * 500, "x+1"),
    ("9" * 5_000 + "8", "9" * 5_001), ("nothing", "x"), ("2 t", "2"), ("2 pi", "2"),
    ("72 clips", "36"), ("72 clips or 36", "72"),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "gold"), SAME, ids=lambda text: text[:20])
def test_the_same_in_another_form_is_the_same(answer: str, gold: str) -> None:
    assert same_expression(answer, gold, timeout_s=30) is True


@pytest.mark.parametrize(("answer", "gold"), DIFFERENT, ids=lambda text: text[:20])
def test_what_is_rounded_hedged_or_another_is_not(answer: str, gold: str) -> None:
    assert same_expression(answer, gold, timeout_s=30) is False


@pytest.mark.parametrize("gold", ["", "  ", "}{", r"\frac{", r"\frac{1}{0}", "x" * 1_001, "$1$ then $2$"])
def test_a_gold_that_cannot_be_read_decides_nothing(gold: str) -> None:
    assert not is_readable(gold)
    for answer in ("5", "x", gold):
        assert not same_expression(answer, gold)
    assert same_expression("$1$ then $2$", gold) is None


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        (" $x$ ", "x"), ("It is $x$, or $y$.", "x,y"), ("$x$ because $y$", None), (r"\$5x", "5x"), ("", None),
        (r"\boxed{$x$}", r"\boxed{ x }"), ("north west", r"\text{north west}"), ("abc", "abc"), ("x" * 1_001, None),
    ],
)  # fmt: skip
def test_an_expression_is_the_mathematics_of_a_text(text: str, latex: str | None) -> None:
    assert expression(text) == latex


HOSTILE = [
    "9^{9^{9^{9}}}", "(10^9)!", r"\sum_{i=1}^{10^9} i^{i}", "(x+y+z+w)^{400}", r"\operatorname{eye}(100000)",
    "(" * 300 + "x" + ")" * 300, r"\operatorname{__import__}(os)", "\ud800\x00",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text[:20]))
def test_a_hostile_text_costs_its_time_limit_and_no_more(text: str) -> None:
    assert same_expression("x", "x + 0") is True  # the worker runs
    worker = symbolic_module._process._running
    start = time.monotonic()
    assert not same_expression(text, "x+1", timeout_s=0.2)
    assert not same_expression("x+1", text, timeout_s=0.2)
    assert time.monotonic() - start < 2 * 4 * 0.2 + 2
    assert symbolic_module._process._running is worker and same_expression("1+x+0", "x+1") is True


def test_a_time_out_is_no_verdict() -> None:
    assert same_expression("9^{9^{9^{9}}}", "x+1", timeout_s=0.3) is None


def test_what_a_text_calls_is_not_executed(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    for text in (f"__import__('os').system('touch {mark}')", f"$$__import__('os').system('touch {mark}')$$"):
        assert not same_expression(text, "x") and not same_expression("x", text)
    assert not mark.exists()


def test_many_threads_may_ask() -> None:
    questions = [(f"{number}x + x", f"{number + 1 + number % 2}x") for number in range(2, 42)]
    with ThreadPoolExecutor(8) as pool:
        verdicts = list(pool.map(lambda question: same_expression(*question, timeout_s=30), questions))
    assert verdicts == [number % 2 == 0 for number in range(2, 42)]


def test_verdicts_do_not_depend_on_what_was_asked_before() -> None:
    pairs = [*SAME[5:12], *DIFFERENT[4:11]]
    symbolic_module._asked.cache_clear()
    first = [same_expression(*pair, timeout_s=30) for pair in pairs]
    symbolic_module._asked.cache_clear()
    assert [same_expression(*pair, timeout_s=30) for pair in reversed(pairs)] == first[::-1]


def test_a_killed_worker_is_replaced() -> None:
    assert same_expression("a+b+0", "b+a") is True
    running = symbolic_module._process._running
    assert running is not None
    os.killpg(running.pid, signal.SIGKILL)
    assert same_expression("c+d+0", "d+c") is True
    assert running.poll() is not None


def run_python(code: str) -> subprocess.Popen[str]:
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=variables)


ASKS = """
import os, sys
from toolkit.tasks import symbolic
print(symbolic.same_expression("x+1", "1+x"), symbolic._process._running.pid, flush=True)
"""


@pytest.mark.parametrize("ending", ["", "os.kill(os.getpid(), 9)"])
def test_the_worker_ends_with_its_process(ending: str) -> None:
    with run_python(ASKS + ending) as process:
        assert process.stdout is not None
        verdict, worker = process.stdout.readline().split()
    deadline = time.monotonic() + 10
    while _alive(int(worker)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert verdict == "True" and not _alive(int(worker))


def _alive(pid: int) -> bool:
    """Running, and no zombie that waits for an init to collect it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_a_forked_process_asks_a_worker_of_its_own() -> None:
    code = (
        ASKS
        + """
if os.fork():
    print(os.waitstatus_to_exitcode(os.wait()[1]), symbolic.same_expression("y+1", "1+y"), flush=True)
else:
    same = symbolic.same_expression("z+1", "1+z") and symbolic._process._running.pid
    sys.exit(0 if same else 1)
"""
    )
    with run_python(code) as process:
        assert process.communicate(timeout=60)[0].splitlines()[1] == "0 True"


def test_importing_costs_no_sympy() -> None:
    code = "import sys, toolkit.rewards; print([n for n in ('sympy', 'math_verify', 'regex') if n in sys.modules])"
    with run_python(code) as process:
        assert process.communicate(timeout=60)[0] == "[]\n"


def build(**knobs: Any) -> RewardBase:
    return TypeAdapter(Reward).validate_python({"name": "math_verify", **knobs})


@pytest.mark.parametrize(
    ("text", "pay"),
    [
        (R + r"<answer>\frac{2}{4}x</answer>", 1.0), (R + r"<answer>x</answer>", 0.0), (R + r"<answer>0.5x", 0.0),
        ("<think>so</think>" + r"<answer>0.5x</answer>", 1.0), ("0.5x", 0.0), (r"It is \boxed{0.5x}", 0.0), ("", 0.0),
        (R.replace("sum", "<answer>0.5x</answer>"), 0.0), (R + "<answer>x</answer><answer>0.5x</answer>", 1.0),
        (R + "<answer>9^{9^{9^{9}}}x</answer>", None), (R + "<answer>0.5x or x</answer>", 0.0),
    ],
)  # fmt: skip
def test_math_verify_pays_for_the_answer_block_that_counts(text: str, pay: float | None) -> None:
    assert build(timeout_s=1).score(text, Row("row", "?", r"\frac{x}{2}")) == pay


@pytest.mark.parametrize(
    ("text", "pay"),
    [
        (r"It is \boxed{0.5x}", 1.0), (r"First \boxed{x}, then \boxed{\frac{x}{2}}.", 1.0), (r"\boxed{0.5x} or \boxed{x}", 0.0),
        (r"It is \boxed{0.5x", 0.0), (r"<think>\boxed{0.5x}", 0.0), (r"<think>\boxed{x}</think> \boxed{0.5x}", 1.0),
        (r"<think>\boxed{0.5x}</think> so", 0.0), (r"\boxed{0.5x} <answer>x", 0.0), (R + "<answer>0.5x</answer>", 1.0),
        (R + r"<answer>x</answer> \boxed{0.5x}", 0.0), ("0.5x", 0.0), (r"\boxed" * 9_999, 0.0), (r"\boxed{" * 9_999, 0.0),
    ],
)  # fmt: skip
def test_math_verify_takes_a_box_where_it_is_told_to(text: str, pay: float) -> None:
    assert build(boxed=True).score(text, Row("row", "?", r"\frac{x}{2}")) == pay


def test_math_verify_is_a_documented_picklable_model() -> None:
    assert pickle.loads(pickle.dumps(build(boxed=True))) == build(boxed=True)
    assert build().reads_gold and build().bounds == (0.0, 1.0)
    assert "Range" in (type(build()).__doc__ or "") and "After " in (type(build()).__doc__ or "")


def test_math_verify_abstains_where_the_gold_cannot_be_read() -> None:
    for gold in ("", " ", "}{"):
        assert build().score(R + f"<answer>{gold or 'x'}</answer>", Row("row", "?", gold)) is None


def test_math_verify_names_the_golds_that_it_cannot_read() -> None:
    rows = [Row("good", "?", "x^2"), Row("number", "?", "72"), *(Row(f"bad{n}", "?", "}{" * n) for n in range(7))]
    with pytest.raises(DataError) as error:
        build().ready(rows)
    assert error.value.message.startswith("math_verify cannot read the gold of 7 of 9 rows: bad0 (''), bad1 ('}{'), ")
    assert "bad4" in error.value.message and "bad5" not in error.value.message
    build().ready(rows[:2])


@settings(max_examples=40)
@given(st.text(max_size=40) | st.text(r"\frac{}x1+^_$ ()[],=", max_size=30), st.text(max_size=5) | st.just("x"))
def test_no_text_raises(answer: str, gold: str) -> None:
    value = build(timeout_s=2, boxed=True).score(R + f"<answer>{answer}</answer>", Row("row", "?", gold))
    assert value in (None, 0.0, 1.0)
    assert json.dumps(value)
