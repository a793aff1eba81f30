"""What a newcomer reads at the end of the pipeline: the numbers of the records, and commands that work."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from toolkit import console
from toolkit.cli.summary import gain, show_summary
from toolkit.rundir import ExportDir, chosen_gguf


def model(accuracy: float, *, greedy: bool = True) -> dict[str, Any]:
    share = {"accuracy": accuracy, "ci95": [accuracy - 0.05, accuracy + 0.05], "format_rate": 0.875}
    return share | ({"greedy": share | {"accuracy": accuracy + 0.01}} if greedy else {})


def evaluation(*, warmup: bool = True, greedy: bool = True) -> dict[str, Any]:
    shares = {"base": 0.05, "tuned": 0.65} | ({"warmup": 0.405} if warmup else {})
    before = "warmup" if warmup else "base"
    return {
        "n": 300,
        "samples": 4,
        "models": {name: model(share, greedy=greedy) for name, share in shares.items()},
        "differences": {f"tuned-{before}": {"delta": 0.245, "ci95": [0.2, 0.29]}},
        "decoding": {"temperature": 1.0},
    }


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A run and its export, with files of the types f16 and q8_0."""
    monkeypatch.chdir(tmp_path)
    run, export = Path("runs/a b"), Path("exports/a b")
    run.mkdir(parents=True)
    export.mkdir(parents=True)
    files = [{"file": f"a b-{kind}.gguf", "type": kind} for kind in ("f16", "q8_0")]
    results = [{"file": name, "size_bytes": 145_000_000, "passed": True} for name in ("merged", "a b-f16.gguf")]
    (export / "manifest.json").write_text(json.dumps({"files": files}))
    (export / "verify.json").write_text(json.dumps({"merged": results[0], "files": results[1:]}))
    (run / "eval.json").write_text(json.dumps(evaluation()))
    return run, export


def test_the_summary_says_what_was_learned_what_was_made_and_what_to_do(
    folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    show_summary(*folders)
    text = capsys.readouterr().out
    lines = {" ".join(line.split()) for line in text.splitlines()}
    assert "base model 5.0% (0.0% to 10.0%) 6.0% (0.0% to 10.0%) 87.5%" in lines
    assert text.index("base model") < text.index("after warm-up") < text.index("after GRPO")
    assert "300 problems" in text and "4 answers" in text and "temperature 1," in text
    assert "GRPO added 24.5 points" in text
    assert "exports/a b/a b-f16.gguf 145 MB verified" in lines
    assert "llama.cpp llama-cli -m 'exports/a b/a b-q8_0.gguf'" in lines
    (command,) = [line for line in text.splitlines() if "toolkit chat" in line]
    assert shlex.split(command)[1:] == ["-m", "toolkit", "chat", "exports/a b"]


def test_rows_that_were_trained_on_are_not_called_new(
    folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    seen = {"overlap": {"exact": 2, "folded": 1, "row_ids": ["a", "b", "c"]}}
    sentence = "Of +31.0 points from base to tuned, 22.0 are format and 9.0 are answers."
    (folders[0] / "eval.json").write_text(json.dumps(evaluation() | seen | {"gain": {"sentence": sentence}}))
    show_summary(*folders)
    text = capsys.readouterr().out
    assert "300 problems (3 of them stand in the training data, too)" in text and "not in the training" not in text
    assert sentence in text and "toolkit ask 'runs/a b'" in text


def test_a_file_that_was_not_verified_is_not_called_so(
    folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    certificate = json.loads((folders[1] / "verify.json").read_text())
    certificate["files"][0]["passed"] = False
    (folders[1] / "verify.json").write_text(json.dumps(certificate))
    show_summary(*folders)
    assert "NOT VERIFIED" in capsys.readouterr().out


def test_the_file_that_the_certificate_recommends_is_named_and_used(
    folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    certificate = json.loads((folders[1] / "verify.json").read_text()) | {"recommended": "a b-f16.gguf"}
    (folders[1] / "verify.json").write_text(json.dumps(certificate))
    show_summary(*folders)
    text = capsys.readouterr().out
    lines = {" ".join(line.split()) for line in text.splitlines()}
    assert "exports/a b/a b-f16.gguf 145 MB verified, recommended" in lines and text.count("recommended") == 1
    assert "llama.cpp llama-cli -m 'exports/a b/a b-f16.gguf'" in lines
    assert chosen_gguf(ExportDir(folders[1]), None) == "a b-f16.gguf"
    assert chosen_gguf(ExportDir(folders[1]), "q8_0") == "a b-q8_0.gguf"
    (folders[1] / "verify.json").write_text(json.dumps(certificate | {"recommended": "gone.gguf"}))
    assert chosen_gguf(ExportDir(folders[1]), None) == "a b-q8_0.gguf"


def test_without_warm_up_and_greedy_answers_the_rest_remains(
    folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run, export = folders
    (run / "eval.json").write_text(json.dumps(evaluation(warmup=False, greedy=False)))
    (export / "manifest.json").write_text(json.dumps({"files": []}))
    show_summary(run, export)
    text = capsys.readouterr().out
    assert "after warm-up" not in text and "against the base model" in text and "–" in text
    assert "transformers opens exports/a b/merged" in text and "llama-cli" not in text


@pytest.mark.parametrize(
    ("delta", "interval", "said"),
    [
        (0.05, [0.01, 0.09], "added [bold]5.0 points[/]"),
        (-0.05, [-0.09, -0.01], "took [bold]5.0 points[/]"),
        (0.05, [0.0, 0.1], "made no difference that can be shown: +5.0 points"),
        (0.0, [0.0, 0.0], "made no difference that can be shown"),
    ],
)
def test_a_gain_is_claimed_only_where_the_interval_excludes_zero(
    delta: float, interval: list[float], said: str
) -> None:
    record = evaluation() | {"differences": {"tuned-warmup": {"delta": delta, "ci95": interval}}}
    assert said in gain(record)
    console.say(gain(record))


def goldless(delta: float = 1.3, *, greedy: bool = True) -> dict[str, Any]:
    def reward(mean: float) -> dict[str, Any]:
        return {"reward": {"mean": mean, "ci95": [mean - 0.1, mean + 0.1]}}

    beside = {"greedy": reward(0.25)} if greedy else {}
    models = {
        "base": {**reward(-2.0), **beside, "mean_tokens": 40.0},
        "tuned": {**reward(-0.7), **beside, "mean_tokens": 20.2},
    }
    change = {"reward": {"delta": delta, "ci95": [delta - 0.2, delta + 0.2]}}
    return evaluation(warmup=False) | {"graded": False, "models": models, "differences": {"tuned-base": change}}


def test_without_golds_the_mean_reward_is_what_was_learned(
    folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    (folders[0] / "eval.json").write_text(json.dumps(goldless()))
    show_summary(*folders)
    text = capsys.readouterr().out
    lines = {" ".join(line.split()) for line in text.splitlines()}
    assert "base model -2 (-2.1 to -1.9) 0.25 (0.15 to 0.35) 40" in lines
    assert (
        "300 prompts" in text and "GRPO added 1.3 to the mean reward of sampled answers against the base model" in text
    )
    assert "right" not in text and "problems" not in text and "%" not in text.replace("95 %", "")


@pytest.mark.parametrize(
    ("delta", "said"),
    [
        (1.3, "GRPO added [bold]1.3[/] to the mean reward"),
        (-1.3, "GRPO took [bold]1.3[/] from the mean reward"),
        (0.1, "no difference that can be shown: +0.1 in the mean reward"),
    ],
)
def test_a_gain_in_reward_is_claimed_only_where_the_interval_excludes_zero(delta: float, said: str) -> None:
    assert said in gain(goldless(delta)) and "the same prompts compared" in gain(goldless(delta))


def test_where_no_answer_could_be_judged_no_gain_is_claimed() -> None:
    record = goldless() | {"differences": {"tuned-base": {"reward": None}}}
    record["models"]["base"]["reward"] = None
    assert "nothing can be said against the base model" in gain(record)
