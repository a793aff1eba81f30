"""`toolkit ask`: the same questions to base, warm-up and tuned model, and their answers side by side."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import evaluation_side
import unsloth_side
from models import small_recipe
from toolkit import ask as step
from toolkit import cli, console
from toolkit.ask import show

pytest_plugins = ("shared",)

Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def run(unsloth_process: Ask, tiny_checkpoint: Path) -> str:
    found = unsloth_process(unsloth_side.train_tiny, small_recipe(str(tiny_checkpoint), grpo={"learning_rate": 1e-2}))
    assert found["raised"] is None
    return found["run"]


def test_every_model_answers_greedily_with_its_adapter(unsloth_process: Ask, run: str) -> None:
    asked = unsloth_process(evaluation_side.asked, run, ["How much is 2 + 2?", "Calculate pi."])
    assert [item["question"] for item in asked] == ["How much is 2 + 2?", "Calculate pi."]
    for item in asked:
        assert list(item["answers"]) == ["base", "warmup", "tuned"] and item["gold"] is None
        (base,), (warm,), (tuned,) = item["answers"].values()
        assert len({base["text"], warm["text"], tuned["text"]}) > 1
        assert tuned["rewards"] == {} and tuned["reward"] is None and "strict" not in tuned  # they would need a gold
        assert 0 < tuned["tokens"] <= 12
    assert asked == unsloth_process(evaluation_side.asked, run, ["How much is 2 + 2?", "Calculate pi."])


def test_with_a_gold_there_is_a_grade_and_every_reward(unsloth_process: Ask, run: str) -> None:
    (item,) = unsloth_process(evaluation_side.asked, run, ["How much is 2 + 2?"], ["4"], 3)
    assert item["gold"] == "4"
    for replies in item["answers"].values():
        assert len(replies) == 3 and len({reply["text"] for reply in replies}) == 3
        for reply in replies:
            assert {"strict", "lenient", "well_formed"} <= set(reply)
            paid = reply["rewards"]
            assert reply["reward"] == pytest.approx(paid["correctness"] + paid["xmlcount"])


# The words and the picture, without a model.


def reply(text: str, **changes: Any) -> dict[str, Any]:
    graded = {"strict": False, "lenient": True, "well_formed": False}
    paid = {"rewards": {"correctness": 0.0, "xmlcount": 0.5, "judge": None}, "reward": 0.5}
    return {"text": text, "tokens": 12, "truncated": False, **graded, **paid, **changes}


ANSWERS = {
    "base": [reply("The sum of forty-two and thirty is [red]72[/red], as you can see.\x1b[2J", truncated=True)],
    "warmup": [reply("<reasoning>\n42 + 30 = 71\n</reasoning>\n<answer>\n71\n</answer>", lenient=False)],
    "tuned": [reply("<reasoning>\n42 + 30 = 72\n</reasoning>\n<answer>\n72\n</answer>", strict=True)],
}  # fmt: skip
ITEM = {"question": "What is 42 + 30?", "gold": "72", "answers": ANSWERS}


@pytest.mark.parametrize("width", [80, 160, 4000])
def test_it_looks_good_at_every_width(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    out = Console(file=io.StringIO(), width=width, force_terminal=False, highlight=False, emoji=False)
    monkeypatch.setattr(console, "out", out)
    show([ITEM])
    shown = out.file.getvalue()  # type: ignore[attr-defined]
    lines = shown.splitlines()
    assert max(map(len, lines)) <= width
    assert "[red]72[/red]" in shown and "\x1b" not in shown
    assert "right, but not in the format, 12 tokens, cut off" in " ".join(shown.split())
    assert "reward 0.5: correctness 0, xmlcount 0.5" in " ".join(shown.split())
    beside = [line for line in lines if "base model" in line and "after GRPO" in line]
    assert bool(beside) == (width == 160)


@pytest.fixture
def heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the step is asked for by the command line; the run lies in runs/one."""
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs" / "one"
    (run / "adapter").mkdir(parents=True)
    (run / "recipe.json").write_text(json.dumps(small_recipe("org/model").model_dump(mode="json")))
    calls: list[Any] = []

    def recorded(path: Path, questions: Any, **options: Any) -> list[Any]:
        calls.append((path.name, list(questions), options))
        return [ITEM]

    monkeypatch.setattr(step, "ask", recorded)
    return calls


NO_MORE = {"golds": [], "samples": 0}


def test_questions_come_from_the_words_a_file_or_standard_input(
    heard: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("questions.txt").write_text("Three plus four?\n\nFive plus six?\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("From a pipe.\nAnd again.\n"))
    assert cli.main(["ask", "one", "Calculate pi.", "Calculate e."]) == 0
    assert cli.main(["ask", "Calculate pi."]) == 0
    assert cli.main(["ask", "--file", "questions.txt"]) == 0
    assert cli.main(["ask", "one"]) == 0
    assert heard == [
        ("one", ["Calculate pi.", "Calculate e."], NO_MORE),
        ("one", ["Calculate pi."], NO_MORE),
        ("one", ["Three plus four?", "Five plus six?"], NO_MORE),
        ("one", ["From a pipe.", "And again."], NO_MORE),
    ]
    capsys.readouterr()
    assert cli.main(["ask", "one", "What is 42 + 30?", "--gold", "72", "--samples", "2", "--json"]) == 0
    assert heard[-1][2] == {"golds": ["72"], "samples": 2}
    assert json.loads(capsys.readouterr().out) == {"schema": 1, "asked": [ITEM]}


@pytest.mark.parametrize(
    ("questions", "golds", "said"),
    [([], [], "there is no question"), (["1?", "2?"], ["1"], "2 questions and 1 golds"), (["1?"], ["1"], "no golds")],
)
def test_what_cannot_be_asked_is_an_error(questions: list[str], golds: list[str], said: str, tmp_path: Path) -> None:
    from toolkit.atomic import write_json
    from toolkit.errors import ToolkitError
    from toolkit.recipe import Recipe

    plain = small_recipe("org/model").model_dump(mode="json")
    if said == "no golds":
        plain |= {"task": {"name": "prompts", "prompts": ["a", "b", "c"]}, "rewards": [{"name": "xmlcount"}]}
        plain["warmup"] = None
    write_json(tmp_path / "recipe.json", Recipe.model_validate(plain).model_dump(mode="json"))
    with pytest.raises(ToolkitError, match=said):
        step.ask(tmp_path, questions, golds=golds)
