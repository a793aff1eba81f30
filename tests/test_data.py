"""`toolkit data`: rows as the model will read them, measured with its real tokenizer."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tables import write
from toolkit.cli import main
from toolkit.data import BINS, look, show
from toolkit.engine.tokenizer import load_tokenizer
from toolkit.recipe import Loaded, load_recipe

pytest_plugins = ("shared",)
ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
ROWS: list[dict[str, Any]] = [{"prompt": "a" * length, "gold": length, "completions": "c"} for length in range(1, 101)]


def recipe_file(folder: Path, source: str, rows: Any = ROWS, **task: Any) -> Path:
    data = write(folder / "rows.jsonl", rows)
    recipe = {
        "extends": str(ROOT / "recipes" / "smoke.yaml"),
        "model": {"source": source},
        "task": {"name": "table", "train_file": str(data), "gold": "gold", "system_prompt": "", **task},
        "warmup": None,
        "grpo": {"max_prompt_length": 72, "max_completion_length": 20},
    }
    path = folder / "mine.yaml"
    path.write_text(json.dumps(recipe), encoding="utf-8")
    return path


@pytest.fixture
def loaded(tmp_path: Path, tiny_checkpoint: Path) -> Loaded:
    return load_recipe(str(recipe_file(tmp_path, str(tiny_checkpoint), heldout_rows=10)))


def test_rows_are_shown_as_training_will_render_them(loaded: Loaded) -> None:
    report = look(loaded, rows=2)
    task, tokenizer = loaded.recipe.task, load_tokenizer(loaded.recipe.model)
    for shown, row in zip(report.shown, task.rows("train"), strict=False):
        ids = tokenizer.apply_chat_template(task.messages(row), add_generation_prompt=True, return_dict=False)
        assert shown.text == tokenizer.decode(ids) == f"<|user|>{row.question}<|end|><|bot|>"
        assert (shown.tokens, shown.gold, shown.id) == (len(ids), row.gold, row.id)
        assert shown.columns == ["gold", "data_completions"]
    assert len(report.shown) == 2 and report.system_role is True


def test_lengths_are_of_all_prompts_and_long_rows_are_left_out_and_counted(loaded: Loaded) -> None:
    report = look(loaded, rows=0)
    assert report.lengths is not None and report.left_out is not None
    train, task = report.lengths["train"], loaded.recipe.task
    lengths = sorted(len(row.question) + 3 for row in task.rows("train"))
    assert (train.rows, train.min, train.max) == (90, lengths[0], lengths[-1])
    assert train.median == (lengths[44] + lengths[45]) / 2
    assert train.p95 == lengths[85]  # 86 of 90 rows are not longer: the first share of at least 95 %
    assert sum(count for *_, count in train.histogram) == 90 and len(train.histogram) <= BINS
    assert all(count == sum(low <= length <= high for length in lengths) for low, high, count in train.histogram)
    long = [row.id for row in task.rows("train") if len(row.question) + 3 > 72]
    (part,) = report.left_out
    assert (part.rows, part.ids) == (len(long), long[:5]) and "72 tokens" in part.why
    assert report.kept == 90 - len(long) and report.lengths["heldout"].rows == 10
    assert any("'completions' is called 'data_completions'" in notice for notice in report.notices)


def test_the_report_is_one_json_object(
    tmp_path: Path, tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = recipe_file(tmp_path, str(tiny_checkpoint), rows=[*ROWS, {"prompt": "AA", "gold": 1}], heldout_rows=10)
    assert main(["data", str(path), "--rows", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["task"], report["train_rows"], report["repeats"]) == ("table", 91, 1)
    assert report["overlap"] == {"exact": 0, "folded": 0} and len(report["shown"]) == 1
    assert report["schema_version"] == 1 and report["no_tokens"] is None


def test_data_that_are_too_few_are_an_exit_code(
    tmp_path: Path, tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = recipe_file(tmp_path, str(tiny_checkpoint), rows=[ROWS[5], *ROWS[80:85]], heldout_rows=1)
    assert main(["data", str(path)]) == 1
    assert "one step needs 2 rows (grpo.prompts_per_step), and there are" in capsys.readouterr().out


def test_check_counts_the_rows_that_training_would_leave_out(
    tmp_path: Path, tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def findings(rows: Any, code: int) -> dict[str, dict[str, Any]]:
        path = recipe_file(tmp_path, str(tiny_checkpoint), rows=rows, heldout_rows=1)
        assert main(["check", str(path), "--json"]) == code
        return {item["what"]: item for item in json.loads(capsys.readouterr().out)["findings"]}

    what = "rows left out: over 72 tokens (grpo.max_prompt_length)"
    some = findings([*ROWS[:20], *ROWS[80:85]], 1)
    assert some[what]["status"] == "warning" and 4 <= some[what]["value"] <= 5
    assert "is called 'data_completions'" in some["notice"]["value"]
    none = findings([ROWS[5], *ROWS[80:85]], 2)
    assert none[what]["status"] == "failed" and "one step needs 2" in none[what]["hint"]


def test_check_says_where_no_tokens_can_be_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = recipe_file(tmp_path, "org/nowhere", heldout_rows=1)
    assert main(["check", str(path), "--json"]) == 2  # neither its tokenizer nor its weights are to be had
    report = json.loads(capsys.readouterr().out)["findings"]
    (found,) = [item for item in report if item["what"] == "tokens of the prompts"]
    assert (found["value"], found["status"]) == ("not counted", "warning") and "org/nowhere" in found["hint"]


def test_rows_in_both_halves_are_counted(tmp_path: Path, tiny_checkpoint: Path) -> None:
    other = write(tmp_path / "other.csv", [{"prompt": "aaa", "gold": 3}, {"prompt": " A ", "gold": 1}])
    path = recipe_file(tmp_path, str(tiny_checkpoint), heldout_file=str(other))
    report = look(load_recipe(str(path)), rows=0)
    assert (report.overlap.exact, report.overlap.folded) == (1, 1)


def test_without_a_tokenizer_the_messages_are_shown_and_it_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = recipe_file(tmp_path, "org/not-here")
    assert main(["data", str(path), "--rows", "1"]) == 0
    shown = capsys.readouterr()
    assert "user: a" in shown.out and "no tokens are counted: org/not-here" in shown.err
    assert main(["data", str(path), "--rows", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["lengths"] is report["left_out"] is report["kept"] is report["shown"][0]["text"] is None
    assert "org/not-here" in report["no_tokens"]


def test_data_cannot_paint_the_terminal(
    tmp_path: Path, tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = "\x1b[31m[red]x\u202e"
    rows = [{"prompt": f"{evil}{n}", "gold": evil, evil: 1, "completions": 2} for n in range(4)]
    path = recipe_file(tmp_path, str(tiny_checkpoint), rows=rows, grading="text")
    show(look(load_recipe(str(path)), rows=3))
    out = capsys.readouterr().out
    assert "\x1b" not in out and "\u202e" not in out and out.count("[31m[red]x") >= 6


def test_a_row_that_the_template_refuses_is_named(tmp_path: Path, tiny_checkpoint: Path) -> None:
    folder = tmp_path / "strict"
    tokenizer = load_tokenizer(load_recipe(str(recipe_file(tmp_path, str(tiny_checkpoint)))).recipe.model)
    tokenizer.chat_template = (
        "{% if messages|length > 1 %}{{ raise_exception('one turn only') }}{% endif %}{{ messages[0].content }}"
    )
    tokenizer.save_pretrained(folder)
    (folder / "model.safetensors").touch()
    talk = [{"role": role, "content": "Hi"} for role in ("user", "assistant", "user")]
    path = recipe_file(tmp_path, str(folder), rows=[{"prompt": talk, "gold": 1}, {"prompt": "b", "gold": 1}])
    from toolkit.errors import DataError

    with pytest.raises(DataError, match="one turn only") as error:
        look(load_recipe(str(path)), rows=1)
    assert error.value.where == "table/1"
