"""Facts about the command line: quick starts, exit codes, near names, nothing heavy loaded by light verbs."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from toolkit import console
from toolkit.cli import help_text, main
from toolkit.cli import pipeline as stages
from toolkit.cli.verbs import STAGES, VERBS
from toolkit.errors import Fault, RecipeError, Stopped, ToolkitError, nearest
from toolkit.recipe import load_recipe

ROOT = Path(__file__).resolve().parents[1]
HEAVY = ("torch", "unsloth", "trl", "transformers", "datasets")
_LIGHT = f"""
import sys
from toolkit.cli import main
code = main(sys.argv[1:])
print("LOADED", code, [name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)
"""


@pytest.fixture(autouse=True)
def in_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def python(*words: str, **kwargs: object) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment, **kwargs)  # type: ignore[call-overload]


@pytest.fixture
def bad_recipe(tmp_path: Path) -> Path:
    path = tmp_path / "bad.yaml"
    path.write_text("extends: smoke\ngrpo:\n  lerning_rate: 1\n")
    return path


@pytest.fixture
def completions(tmp_path: Path) -> Path:
    path = tmp_path / "completions.jsonl"
    text = "<reasoning>\n1 + 1 = 2\n</reasoning>\n<answer>\n2\n</answer>"
    path.write_text(json.dumps({"completion": text, "gold": "2"}) + "\n")
    return path


# Light start --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--help"], 0),
        (["train", "--help"], 0),
        (["recipes"], 0),
        (["recipes", "show", "gemma3-gsm8k"], 0),
        (["check", "{bad}"], 2),
        (["data", "{bad}"], 2),
        (["train", "{bad}"], 2),
        (["train", "{bad}", "--to", "verify"], 2),
        (["rewards", "list"], 0),
        (["rewards", "score", "gemma3-gsm8k", "{completions}"], 0),
        (["chat", "nowhere"], 2),
        (["push", "nowhere"], 2),
    ],
)
def test_light_verbs_load_nothing_heavy(words: list[str], code: int, bad_recipe: Path, completions: Path) -> None:
    given = [word.format(bad=bad_recipe, completions=completions) for word in words]
    done = python("-c", _LIGHT, *given)
    assert f"LOADED {code} []" in done.stderr, done.stderr


def test_help_and_a_faulty_recipe_answer_at_once(bad_recipe: Path) -> None:
    def seconds(*words: str) -> float:
        """Processor time of the child: a busy machine does not lengthen it."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        python("-m", "toolkit", *words)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(seconds("--help") for _ in range(3)) < 0.3
    assert min(seconds("check", str(bad_recipe)) for _ in range(3)) < 1.0


# Exit codes and words -----------------------------------------------------------------------------


def test_a_user_error_is_one_panel_on_stderr_and_exit_code_2(bad_recipe: Path) -> None:
    done = python("-m", "toolkit", "check", str(bad_recipe))
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{bad_recipe}:3:3" in done.stderr
    assert "did you mean learning_rate?" in done.stderr
    assert done.stderr.count("╭") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trian"], "did you mean toolkit train?"),
        (["recipes", "shw"], "did you mean toolkit recipes show?"),
        (["rewards", "scor"], "did you mean toolkit rewards score?"),
        (["check", "--jsn"], "did you mean --json?"),
        (["train", "--to", "moon"], "invalid choice"),
        (["train", "--resume"], "expected one argument"),
        (["train", "smoke", "--resume", "x"], "keeps the recipe"),
        (["train", "smokee"], "did you mean smoke?"),
        (["rewards", "score", "smoke"], "RECIPE FILE"),
        (["push", "--rep", "a/b"], "did you mean --repo?"),
        (["chat", "a", "b"], "unknown option b"),
    ],
)
def test_wrong_words_are_answered_with_the_way_out(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert said in capsys.readouterr().err


def test_the_help_names_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert capsys.readouterr().out == help_text() + "\n"
    assert all(f"  {name} " in help_text() for name in VERBS)


def test_an_interrupt_is_one_line_and_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("toolkit.cli.help_text", interrupted)
    assert main(["--help"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolkit.cli.help_text", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["--help"])


@pytest.mark.parametrize("words", ["recipes", "recipes show smoke", "--help", "rewards list"])
def test_a_closed_pipe_is_silent(words: str) -> None:
    command = f"{sys.executable} -m toolkit {words} | true; exit ${{PIPESTATUS[0]}}"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=environment)
    assert (done.stdout, done.stderr) == ("", "")
    assert done.returncode in (0, 141)


# The verbs ----------------------------------------------------------------------------------------


def test_recipes_show_prints_each_value_with_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "show", "smoke", "grpo.learning_rate=1e-5"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert "1e-05" in lines["grpo.learning_rate"] and "command line" in lines["grpo.learning_rate"]
    assert "recipe recipes/smoke.yaml:" in lines["grpo.max_steps"]
    assert "base recipe recipes/smollm2-arithmetic.yaml:" in lines["model.source"]
    assert "default" in lines["grpo.top_p"]


def test_options_may_stand_among_the_overrides(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "smoke", "--to", "eval", "grpo.lerning_rate=1"]) == 2
    assert "command line" in capsys.readouterr().err


def test_without_a_recipe_the_default_is_taken_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "show", "seed=5"]) == 0
    shown = capsys.readouterr()
    assert "smollm2-arithmetic (the default)" in shown.err
    assert "command line" in shown.out


def test_scores_are_json_lines_and_nothing_else(completions: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rewards", "score", "gemma3-gsm8k", str(completions)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    scores = json.loads(line)
    assert scores["total"] == 4.0
    assert set(scores["rewards"]) == {"xmlcount", "soft_format", "strict_format", "integer", "correctness"}


def test_check_reports_data_rewards_and_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "smoke", "--json"]) < 2
    report = json.loads(capsys.readouterr().out)
    assert report["passed"] is True
    found = {item["what"]: item for item in report["findings"]}
    assert found["training rows"]["value"] == 128
    assert found["held-out rows"]["value"] == 8
    assert found["training rows that are also held out"]["value"] == 0
    assert found["completions per step"]["value"] == 8
    assert {item["part"] for item in report["findings"]} >= {"recipe", "data", "rewards", "plan"}


def test_check_fails_where_a_step_needs_more_rows_than_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "smoke", "task.train_rows=1", "--json"]) == 2
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert "training rows" in [item["what"] for item in findings if item["status"] == "failed"]


# The pipeline -------------------------------------------------------------------------------------


class Stages:
    """Stands in for the processes of the pipeline: notes their words; `fails` maps a stage to its exit code."""

    def __init__(self, fails: dict[str, int]) -> None:
        self.fails = fails
        self.calls: list[list[str]] = []

    def __call__(self, words: list[str]) -> int:
        self.calls.append([word for word in words if not word.startswith("/")])
        if "--note-folder" in words and not self.fails.get(words[0]):
            Path(words[-1]).write_text({"train": "runs/a", "export": "exports/a"}[words[0]])
        return self.fails.get(words[0], 0)


@pytest.fixture
def pipeline(monkeypatch: pytest.MonkeyPatch) -> Stages:
    stand_in = Stages({})
    monkeypatch.setattr(stages, "_run_stage", stand_in)
    monkeypatch.setattr(
        stages, "show_summary", lambda run, export: stand_in.calls.append(["sum", str(run), str(export)])
    )
    return stand_in


def test_the_pipeline_hands_each_folder_on_and_ends_with_the_summary(pipeline: Stages) -> None:
    assert stages.run_stages(["smoke", "seed=1"], to="verify", stages=STAGES) == 0
    assert pipeline.calls == [
        ["train", "smoke", "seed=1", "--then", "verify", "--note-folder"],
        ["eval", "runs/a"],
        ["export", "runs/a", "--note-folder"],
        ["verify", "exports/a"],
        ["sum", "runs/a", "exports/a"],
    ]
    pipeline.calls.clear()
    assert stages.run_stages(["smoke"], to="eval", stages=STAGES) == 0
    assert [words[0] for words in pipeline.calls] == ["train", "eval"]


@pytest.mark.parametrize(
    ("stage", "code", "said"),
    [
        ("train", 130, False),  # the stage itself names the command
        ("eval", 130, True),
        ("export", 2, True),
        ("verify", 1, False),  # the files are what they are
    ],
)
def test_the_pipeline_stops_at_the_first_failure_and_says_how_to_go_on(
    pipeline: Stages, stage: str, code: int, said: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline.fails = {stage: code}
    assert stages.run_stages(["smoke"], to="verify", stages=STAGES) == code
    assert pipeline.calls[-1][0] == stage
    assert ("toolkit train --resume runs/a --to verify" in capsys.readouterr().err) is said


def test_an_export_goes_on_to_its_proof(pipeline: Stages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a run whose name looks like an option; the exit code is the proof's."""
    monkeypatch.chdir(tmp_path)
    run = Path("-a run")
    run.mkdir()
    resolved = load_recipe("smoke").recipe.model_dump_json()
    (run / "recipe.json").write_text(resolved, encoding="utf-8")
    assert main(["export", "--format", "gguf", "--to", "verify", "--", "-a run"]) == 0
    assert pipeline.calls == [
        ["export", "./-a run", "--format", "gguf", "--note-folder"],
        ["verify", "exports/a"],
    ]
    pipeline.fails = {"verify": 1}
    assert main(["export", "--to", "verify", "--", "-a run"]) == 1
    pipeline.calls.clear()
    pipeline.fails = {"export": 2}
    assert main(["export", "--to", "verify", "--", "-a run"]) == 2
    assert [words[0] for words in pipeline.calls] == ["export"]


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """In a folder with one trained run, runs/a: what the export step is asked for."""
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs" / "a"
    (run / "adapter").mkdir(parents=True)
    (run / "recipe.json").write_text(load_recipe("smoke").recipe.model_dump_json(), encoding="utf-8")
    asked: list[dict[str, Any]] = []

    def export_run(run: Path, **given: Any) -> Any:
        asked.append({"run": run, **given})
        return SimpleNamespace(folder=Path("exports/a"))

    monkeypatch.setattr("toolkit.export.export_run", export_run)
    return asked


@pytest.mark.parametrize("named", [[], ["a"], ["runs/a"]])
def test_an_export_takes_other_values_for_its_section_alone(named: list[str], trained: list[dict[str, Any]]) -> None:
    assert main(["export", *named, "export.merged_dtype=float32", "export.gguf=[f32]"]) == 0
    assert main(["export", *named]) == 0
    wide, own = (each["recipe"] for each in trained)
    assert wide.export.is_wide and wide.export.gguf == ("f32",) and list(trained[0]["quants"]) == ["f32"]
    assert own == load_recipe("smoke").recipe == wide.model_copy(update={"export": own.export})


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("grpo.max_steps=5", "only the export section"),
        ("export.merged_dtype=float16", "expected one of base, float32"),
        ("export.merged_type=float32", "did you mean merged_dtype"),
    ],
)
def test_what_an_export_cannot_change_is_said(
    word: str, said: str, trained: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "a", word]) == 2
    assert said in " ".join(capsys.readouterr().err.split()) and trained == []


def test_overrides_of_an_export_go_on_to_its_stages(
    pipeline: Stages, trained: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "--format", "gguf", "--to", "verify", "export.merged_dtype=float32"]) == 0
    assert pipeline.calls[0] == ["export", "runs/a", "export.merged_dtype=float32", "--format", "gguf", "--note-folder"]


@pytest.mark.parametrize(("words", "hint"), [([], ""), (["--then", "verify"], " --to verify")])
def test_an_interrupted_training_names_the_command_for_all_its_stages(
    words: list[str], hint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(loaded: object, *, resume: object, then: str) -> Path:
        raise Stopped("stopped; the last step is saved", hint="toolkit train --resume runs/a")

    monkeypatch.setattr("toolkit.train.train", stopped)
    assert main(["train", "smoke", *words]) == 130
    assert f"→ toolkit train --resume runs/a{hint} " in capsys.readouterr().err


@pytest.mark.parametrize(("folder", "given", "word"), [("runs/a", "a", "runs/a"), ("-a run", "-a run", "./-a run")])
def test_a_resumed_pipeline_trains_on_or_begins_after_the_training(
    folder: str, given: str, word: str, pipeline: Stages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = tmp_path / folder
    run.mkdir(parents=True)
    (run / "recipe.json").touch()
    assert main(["train", f"--resume={given}", "--to", "eval"]) == 0
    (run / "adapter").mkdir()
    assert main(["train", f"--resume={given}", "--to", "eval"]) == 0
    first, _, last = pipeline.calls
    assert first == ["train", "--resume", word, "--then", "eval", "--note-folder"]
    assert last == ["eval", word]


# Errors and console -------------------------------------------------------------------------------


def test_foreign_text_cannot_paint_the_terminal() -> None:
    assert console.untrusted("a\x1b[31mb\rc\u202ed\ud800") == "a[31mbcd"
    assert console.untrusted("[red]x") == "\\[red]x"
    assert console.untrusted("line\n\ttab") == "line\n\ttab"


def test_a_panel_holds_every_fault(capsys: pytest.CaptureFixture[str]) -> None:
    console.fail(
        RecipeError([Fault("a.yaml", 1, 2, "x", "wrong", "y?"), Fault("command line", None, None, "z", "bad")])
    )
    text = capsys.readouterr().err
    assert "a.yaml:1:2 x" in text and "wrong → y?" in text and "command line z" in text


def test_an_error_survives_pickling() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(ToolkitError("a", where="b", hint="c")))
    assert (error.message, error.where, error.hint, str(error)) == ("a", "b", "c", "b: a (c)")


def test_the_nearest_name_ignores_case_and_dashes() -> None:
    assert nearest("Learning-Rate", ["learning_rate", "beta"]) == "learning_rate"
    assert nearest("zzzz", ["learning_rate", "beta"]) is None
    assert nearest("x", []) is None
