"""A chat with an exported file: the model's greedy answer to the prompt of its training, in plain characters."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tiny import edit_gguf, smollm2_file
from toolkit import console
from toolkit.cli import main
from toolkit.errors import ExportError, ToolkitError
from toolkit.llamacpp import open_chat, open_model
from toolkit.prompts import messages
from toolkit.recipe import Recipe, load_recipe, load_resolved

FILES = {"f16": "a-f16.gguf", "q8_0": "a-q8_0.gguf"}


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export whose two files are the default's base model: nothing is converted, and answers fit the question."""
    folder = tmp_path_factory.mktemp("chat") / "a"
    (folder / "merged").mkdir(parents=True)
    for name in FILES.values():
        (folder / name).symlink_to(smollm2_file())
    recipe = load_recipe("smoke", ["grpo.max_completion_length=16"]).recipe
    (folder / "recipe.json").write_text(recipe.model_dump_json())
    (folder / "manifest.json").write_text(json.dumps({"files": [{"file": f, "type": t} for t, f in FILES.items()]}))
    return folder


@pytest.fixture(scope="module")
def recipe(export: Path) -> Recipe:
    return load_resolved(export / "recipe.json").recipe


def greedy_text(file: Path, recipe: Recipe, question: str) -> str:
    """The answer that `verify` would grade: its prompt ids, its greedy decoding, its way back to text."""
    with open_model(file, context=recipe.model.max_seq_length) as model:
        prompt = model.chat_ids(messages(question, recipe.task.system_text))
        (ids,) = model.greedy([prompt], max_new=recipe.grpo.max_completion_length)
        return model.text(ids)


def say(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def test_the_answer_is_the_one_that_verification_grades(
    export: Path, recipe: Recipe, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["chat", str(export), "--question", "What is 17 + 25?"]) == 0
    shown = capsys.readouterr()
    expected = greedy_text(export / "a-q8_0.gguf", recipe, "What is 17 + 25?")
    assert shown.out == expected + "\n" and "17" in expected
    assert "a-q8_0.gguf" in shown.err and "greedy" in shown.err and "nothing is remembered" in shown.err
    assert "toolkit verify" in shown.err  # there is no certificate yet


@pytest.mark.parametrize("name", ["a-f16.gguf", "f16"])
def test_a_file_is_chosen_by_name_or_type(export: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", str(export), "--file", name, "--question", "2"]) == 0
    assert "a-f16.gguf" in capsys.readouterr().err


def test_each_line_of_stdin_is_a_chat_of_its_own(
    export: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = []
    for asked in ("Add 1 and 2\n", "Name a colour\n", "Add 1 and 2\n\nName a colour\nAdd 1 and 2"):
        say(monkeypatch, asked)
        assert main(["chat", str(export)]) == 0
        answers.append(capsys.readouterr().out)
    one, other, all_of_them = answers
    assert one != other
    assert all_of_them == one + other + one


@pytest.mark.parametrize("end", [None, ""])
def test_at_a_terminal_an_empty_line_or_ctrl_d_ends(
    export: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], end: str | None
) -> None:
    typed: Iterator[str | None] = iter(["Add 1 and 2", end, "never asked"])
    say(monkeypatch, "")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(console, "ask", lambda prompt: next(typed))
    assert main(["chat", str(export)]) == 0
    assert "Ctrl-D ends" in capsys.readouterr().err
    assert next(typed) == "never asked"


def test_what_a_model_writes_cannot_paint_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    for piece in ("a\x1b", "[31m", "[red]", "\r\u202eb\n"):
        console.stream(piece)
    assert capsys.readouterr().out == "a[31m[red]b\n"


def test_a_question_longer_than_the_context_is_an_error(export: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", str(export), "--question", "one " * 2000]) == 2
    assert "exceed context window" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "said"), [("a-q8.gguf", "did you mean a-q8_0.gguf?"), ("Q8_0", "mean q8_0?")])
def test_a_wrong_file_name_is_answered_with_the_nearest(
    export: Path, name: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["chat", str(export), "--file", name]) == 2
    assert said in capsys.readouterr().err


def test_a_file_cut_short_or_gone_is_an_error_and_no_crash(export: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes((export / "a-q8_0.gguf").read_bytes()[:-5000])
    for path in (cut, tmp_path / "gone.gguf"):
        with pytest.raises(ExportError), open_chat(path, context=64):
            pass


def test_a_chat_that_the_template_refuses_is_an_error(export: Path, tmp_path: Path) -> None:
    file = tmp_path / "refuses.gguf"
    shutil.copyfile(export / "a-q8_0.gguf", file)
    edit_gguf(file, tokenizer__chat_template="{{ raise_exception('no system role') }}")
    with open_chat(file, context=64) as model, pytest.raises(ToolkitError, match="no system role"):
        list(model.answer(messages("a", "b"), max_new=1))


def test_a_system_text_reaches_a_template_without_that_role(export: Path, tmp_path: Path) -> None:
    file = tmp_path / "no_system.gguf"
    shutil.copyfile(export / "a-q8_0.gguf", file)
    refuses = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    turn = "<|im_start|>user\n{{ messages[0].content }}<|im_end|>\n<|im_start|>assistant\n"
    edit_gguf(file, tokenizer__chat_template=refuses + turn)
    with open_chat(file, context=64) as model:
        folded = "".join(model.answer(messages("Name a colour.", "Be brief."), max_new=4))
        assert folded == "".join(model.answer(messages("Be brief.\n\nName a colour.", ""), max_new=4))


def test_an_export_without_gguf_files_names_the_command_that_makes_them(
    export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "bare"
    (folder / "merged").mkdir(parents=True)
    shutil.copyfile(export / "recipe.json", folder / "recipe.json")
    (folder / "manifest.json").write_text('{"files": []}')
    assert main(["chat", str(folder)]) == 2
    assert "toolkit export bare --format gguf" in capsys.readouterr().err
