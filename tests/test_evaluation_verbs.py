"""`toolkit eval` and `toolkit ask` as words: what reaches the steps, what docs/evaluation.md promises, and the harness."""

from __future__ import annotations

import json
import re
import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import test_compare
from models import small_recipe
from test_evaluate import recorded
from tiny import write_adapter
from toolkit import cli
from toolkit.atomic import write_json
from toolkit.cli.parsing import Parser
from toolkit.cli.verbs import VERBS
from toolkit.evaluate import harness
from toolkit.evaluate.harness import INSTALL, harness_words, run_harness
from toolkit.rundir import RunDir

pytest_plugins = ("shared",)

PAGE = (Path(__file__).parent.parent / "docs" / "evaluation.md").read_text(encoding="utf-8")
DEFAULTS = {
    "on": None, "first": None, "max_tokens": None, "few_shot": None, "samples": None, "checkpoints": [],
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    monkeypatch.chdir(tmp_path)
    found = RunDir(Path("runs") / "one")
    found.adapter.mkdir(parents=True)
    write_json(found.recipe, small_recipe("org/model").model_dump(mode="json"))
    return found


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        ([], {}),
        (["--checkpoint", "all"], {"checkpoints": "all"}),
        (["--checkpoint", "20", "--checkpoint", "4"], {"checkpoints": [4, 20]}),
        (["--on", "gsm8k", "--first", "9", "--max-tokens", "99"], {"on": "gsm8k", "first": 9, "max_tokens": 99}),
        (["--few-shot", "3", "--samples", "8"], {"few_shot": 3, "samples": 8}),
    ],
)
def test_the_words_reach_the_step(
    words: list[str], changed: dict[str, Any], run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[Any] = []
    monkeypatch.setattr("toolkit.evaluate.evaluate_run", lambda path, **options: heard.append((path, options)))
    assert cli.main(["eval", "one", *words]) == 0
    assert heard == [(run.path, DEFAULTS | changed)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--checkpoint", "last"], "the number of a step, or all"),
        (["--first", "0"], "a number from 1 on"),
        (["--harness", "gsm8k", "--on", "gsm8k"], "takes no --on"),
    ],
)
def test_words_that_mean_nothing_are_errors(
    words: list[str], said: str, run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["eval", "one", *words]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


# The page.


def test_every_command_on_the_page_can_be_given() -> None:
    commands = re.findall(r"toolkit ((?:eval|ask) RUN[^`#\n]*)", PAGE)
    assert len(commands) >= 6
    for command in commands:
        verb, *words = shlex.split(command)
        parser = Parser(prog=verb, allow_abbrev=False)
        VERBS[verb].add_arguments(parser)
        parser.parse(words)
    assert {"--samples", "--gold", "--file", "--json"} <= set(re.findall(r"--[a-z-]+", PAGE))


def test_every_name_on_the_page_is_in_the_record() -> None:
    models = [("base", test_compare.BASE), ("tuned", test_compare.TUNED)]
    given = [e for name, pairs in models for at in (-1, 0, 1) for e in test_compare.said(name, pairs, at)]
    written = json.dumps(recorded(given))
    for name in ("accuracy", "pass_at_k", "maj_at_k", "mcnemar", "flips", "gain"):
        assert f"`{name}`" in PAGE and f'"{name}"' in written
    quoted = next(line.removeprefix("> ") for line in PAGE.splitlines() if line.startswith("> "))
    assert quoted == recorded(given)["gain"]["sentence"]


def test_the_installation_of_the_harness_is_as_the_page_and_the_error_say(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(harness, "find_spec", lambda _: None)
    assert cli.main(["eval", "one", "--harness", "gsm8k"]) == 2
    assert INSTALL in PAGE and INSTALL in " ".join(capsys.readouterr().err.split())
    assert (Path(__file__).parent.parent / INSTALL.split()[-1]).is_file()


# The harness itself.


def test_the_harness_is_told_base_adapter_task_and_protocol() -> None:
    base = harness_words(Path("/b"), None, "gsm8k", Path("o"))
    assert base[:7] == ["run", "--model", "hf", "--model_args", "pretrained=/b", "--tasks", "gsm8k"]
    assert "--limit" not in base and "--num_fewshot" not in base
    tuned = harness_words(Path("/b"), Path("/a"), "gsm8k", Path("o"), first=5, few_shot=8, chat=True)
    assert "pretrained=/b,peft=/a" in tuned and "--apply_chat_template" in tuned
    assert tuned[-4:] == ["--limit", "5", "--num_fewshot", "8"]


SUMS = """\
task: sums
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
output_type: generate_until
doc_to_text: "Q: {{{{question}}}}\\nA:"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["Q:"], max_gen_toks: 8, do_sample: false}}
metric_list:
  - {{metric: exact_match, aggregation: mean, higher_is_better: true}}
"""


@pytest.mark.skipif(find_spec("lm_eval") is None, reason="the extra `harness` is not installed")
def test_the_real_harness_measures_base_and_tuned(tmp_path: Path, tiny_checkpoint: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(json.dumps({"question": f"{n} + 1?", "answer": str(n + 1)}) for n in range(6)))
    task = tmp_path / "sums.yaml"
    task.write_text(SUMS.format(rows=rows))
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    write_json(run.recipe, small_recipe(str(tiny_checkpoint)).model_dump(mode="json"))
    write_adapter(tiny_checkpoint, run.adapter)
    found = run_harness(run.path, str(task), first=4)
    assert list(found) == ["base", "tuned"]
    assert all(0 <= results["exact_match,none"] <= 1 for results in found.values())
    assert (run.harnesses / "sums" / "tuned").is_dir()
