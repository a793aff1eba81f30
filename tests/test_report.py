"""The report says what the records say, no more; its file holds all it needs, and nothing in it can become markup."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from report_runs import HOSTILE, bare_run, made_run, report_recipe
from toolkit.atomic import read_json, write_json
from toolkit.cli import main
from toolkit.errors import ToolkitError
from toolkit.evaluate.record import write_answers
from toolkit.report import report_data, write_report
from toolkit.report.comparison import _chance, comparison_data, write_comparison
from toolkit.report.completions import CUT, FORMED, LENIENT, RIGHT, UNUSED, stride, training_table
from toolkit.report.document import document, embedded
from toolkit.report.figures import evaluation_figures
from toolkit.report.records import flat, read_run
from toolkit.report.summary import cost, verdict
from toolkit.rundir import RunDir


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return made_run(tmp_path_factory.mktemp("work") / "runs" / "sums-20261130-120000")


@pytest.fixture(scope="module")
def data(run: RunDir) -> dict[str, Any]:
    return report_data(read_run(run.path))


class Page(HTMLParser):
    """What a parser finds: tags, and the text of each script and style by its order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_data(self, data: str) -> None:
        if self._inside in ("script", "style"):
            self.texts.append((self._inside, data))

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""


# --- one file, and nothing can break out of it


@given(
    st.recursive(
        st.text() | st.none() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_embedded_data_is_ascii_without_markup_and_comes_back(value: Any) -> None:
    text = embedded(value)
    assert text.isascii() and not set(text) & set("<>&\u2028\u2029")
    assert json.loads(text) == value


def test_the_file_holds_the_data_whole_and_no_more_tags_than_its_template(data: dict[str, Any]) -> None:
    page = Page(document(data))
    scripts = [text for tag, text in page.texts if tag == "script"]
    assert json.loads(scripts[0]) == data
    empty = Page(document(data | {"training": None, "answers": None}))
    assert page.tags == empty.tags
    shown = data["training"]["text"] + data["answers"]["text"]
    assert {text for text in HOSTILE if text in shown} == set(HOSTILE)


def test_the_policy_lets_nothing_in_or_out_but_the_two_blocks_by_their_hash(data: dict[str, Any]) -> None:
    page = Page(document(data))
    (policy,) = [attributes["content"] for _, attributes in page.tags if attributes.get("http-equiv")]
    assert policy and policy.startswith("default-src 'none'; ")
    blocks = {tag: text for tag, text in page.texts if not (tag == "script" and text.startswith("{"))}
    for tag, text in blocks.items():
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy and "http" not in policy


def test_nothing_in_the_file_names_another_place_to_load_from(data: dict[str, Any]) -> None:
    page = Page(document(data | {"training": None, "answers": None}))
    assert not [attributes for _, attributes in page.tags if {"src", "href", "srcset"} & set(attributes)]
    style = next(text for tag, text in page.texts if tag == "style")
    assert "@import" not in style and "url(" not in style


def test_a_page_never_makes_markup_of_text() -> None:
    folder = Path(__file__).parent.parent / "toolkit" / "report" / "page"
    for name in ("page.js", "charts.js", "browser.js"):
        code = (folder / name).read_text(encoding="utf-8")
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|Function\(", code), name


# --- what it says


def test_the_verdict_says_the_gain_with_its_interval_and_what_it_is_made_of(run: RunDir, data: dict[str, Any]) -> None:
    evaluation = read_json(run.evaluation)
    first, second = data["verdict"]["sentences"]
    assert data["verdict"]["tone"] == "good"
    assert first.startswith(
        "GRPO raised the share of right sampled answers from the warm-up's 50.0 % to 100.0 % (+50.0 points"
    )
    assert second == evaluation["gain"]["sentence"]


@pytest.mark.parametrize(
    ("interval", "tone", "words"),
    [
        ([0.1, 0.3], "good", "raised"),
        ([-0.3, -0.1], "bad", "lowered"),
        ([-0.1, 0.3], "open", "no difference that can be shown"),
    ],
)
def test_a_verdict_claims_no_more_than_its_interval(
    interval: list[float], tone: str, words: str, run: RunDir, tmp_path: Path
) -> None:
    other = bare_run(tmp_path / "run", "done")
    record = read_json(run.evaluation)
    record["differences"]["tuned-warmup"]["ci95"] = interval
    write_json(other.evaluation, record)
    found = verdict(read_run(other.path))
    assert found["tone"] == tone and words in found["sentences"][0]


def test_without_golds_the_verdict_is_about_rewards(tmp_path: Path) -> None:
    other = bare_run(tmp_path / "run", "done")
    change = {"reward": {"delta": 1.5, "ci95": [1.0, 2.0]}}
    models = {
        name: {"reward": {"mean": mean, "ci95": [mean, mean]}, "mean_tokens": 9.0, "truncated": 0.0}
        for name, mean in (("base", 1.0), ("tuned", 2.5))
    }
    record = {"n": 4, "samples": 2, "graded": False, "models": models, "differences": {"tuned-base": change}}
    write_json(other.evaluation, record)
    found = report_data(read_run(other.path))
    assert found["verdict"]["sentences"][0] == (
        "GRPO raised the mean reward of sampled answers from the base model's 1 to 2.5 (+1.5, 95 % interval +1 to +2) "
        "on 4 prompts that were not in the training."
    )
    assert [(model["name"], model["value"]) for model in found["stages"]["models"]] == [
        ("base model", 1.0),
        ("after GRPO", 2.5),
    ]
    assert not found["graded"]


@pytest.mark.parametrize(
    ("state", "words"),
    [("running", "is at step 0 of 2"), ("failed", "ended at step 0"), ("done", "has not been evaluated")],
)
def test_a_run_that_has_only_begun_has_a_report(state: str, words: str, tmp_path: Path) -> None:
    run = bare_run(tmp_path / "run", state)
    found = report_data(read_run(run.path))
    assert words in found["verdict"]["sentences"][0]
    assert (
        found["figures"] == []
        and found["training"] is found["answers"] is found["stages"] is found["certificate"] is None
    )
    assert write_report(run.path) == run.report


def test_a_half_written_line_of_metrics_is_skipped(tmp_path: Path) -> None:
    run = bare_run(tmp_path / "run", "running")
    run.metrics.write_text('{"stage": "grpo", "step": 1, "reward": 1.5, "seconds": 2}\n{"stage": "gr', encoding="utf-8")
    assert [line["step"] for line in read_run(run.path).steps] == [1]
    assert write_report(run.path).is_file()


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match="no run"):
        read_run(tmp_path)


def test_cost_is_what_the_steps_took(run: RunDir) -> None:
    records = read_run(run.path)
    rows = {name: value for name, value, _ in cost(records)}
    assert rows["tokens"] == f"{sum(line['completion_tokens'] for line in records.steps):,}"
    assert "energy" not in rows
    records.metrics[0]["energy_j"] = 7200.0
    assert {name: value for name, value, _ in cost(records)}["energy"] == "2 Wh"


def test_the_findings_are_the_doctors(run: RunDir, data: dict[str, Any]) -> None:
    from toolkit.health import diagnose

    assert [finding["title"] for finding in data["findings"]] == [finding.rule for finding in diagnose(run)]


def test_the_certificate_of_the_export_is_shown(run: RunDir) -> None:
    export = run.path.parent.parent / "exports" / run.path.name
    (export / "merged").mkdir(parents=True)
    write_json(export / "manifest.json", {"files": []})
    assert report_data(read_run(run.path))["certificate"] == {"passed": None, "export": run.path.name, "files": []}
    checks = [{"name": "mean KL", "value": 0.001, "passed": True}, {"name": "eos", "value": 3, "passed": False}]
    file = {"file": "x-q8_0.gguf", "type": "q8_0", "size_bytes": 2_000_000, "passed": False, "checks": checks}
    write_json(export / "verify.json", {"passed": False, "merged": file, "files": [file]})
    found = report_data(read_run(run.path))["certificate"]
    assert found["passed"] is False and found["files"][1] == {
        "file": "x-q8_0.gguf", "type": "q8_0", "megabytes": 2.0, "passed": False, "kl": 0.001, "top1": None, "failed": ["eos"],
    }  # fmt: skip


# --- plots and the browser's data


def test_there_is_a_plot_of_everything_the_issue_names(data: dict[str, Any]) -> None:
    ids = [figure["id"] for figure in data["figures"]]
    assert ids == [
        "reward", "heldout", "reward-correctness", "reward-xmlcount", "dead_groups", "length", "cut_off", "entropy", "kl",
        "grad_norm", "clip_ratio", "learning_rate", "loss", "tokens_per_second", "difficulty", "lengths",
    ]  # fmt: skip
    for figure in data["figures"]:
        for line in figure["series"]:
            assert len(line["y"]) == len(figure["x"])
            assert line["band"] is None or [len(edge) for edge in line["band"]] == [len(figure["x"])] * 2


def test_accuracy_by_difficulty_takes_the_tasks_levels_where_it_has_some(run: RunDir, tmp_path: Path) -> None:
    records = read_run(run.path)
    table = report_data(records)["answers"]
    for number, prompt in enumerate(table["prompts"]):
        prompt[3] = ["2 terms", "10 terms"][number % 2]
    figure = evaluation_figures(records, table)[0]
    assert figure["categories"] == ["10 terms", "2 terms"] and figure["counts"] == [2, 2]
    assert [line["name"] for line in figure["series"]] == ["base model", "after warm-up", "after GRPO"]
    assert figure["series"][1]["y"] == [0.5, 0.5]


def test_training_completions_carry_what_was_recorded(run: RunDir, data: dict[str, Any]) -> None:
    drawn = [row for file in sorted(run.completions.iterdir()) for row in parquet.read_table(file).to_pylist()]
    table = data["training"]
    assert table["text"] == [row["completion"] for row in drawn]
    assert table["left_out"] == 0
    assert [table["prompts"][at][0] for at in table["prompt"]] == [row["row_id"] for row in drawn]
    assert table["rewards"]["correctness"] == [row["reward/correctness"] for row in drawn]
    kinds = [bits & (RIGHT | LENIENT | FORMED) for bits in table["flags"]]
    assert kinds[:3] == [RIGHT | LENIENT | FORMED, FORMED, LENIENT]
    assert [bool(bits & CUT) for bits in table["flags"]] == [row["cut_off"] for row in drawn]


def test_columns_that_older_runs_lack_are_no_fault(run: RunDir, tmp_path: Path) -> None:
    import pyarrow

    old = bare_run(tmp_path / "run", "done")
    old.completions.mkdir()
    rows = parquet.read_table(next(iter(sorted(run.completions.iterdir())))).to_pylist()
    for row in rows:
        del row["used"], row["cut_off"]
    rows[0]["reward/correctness"] = rows[0]["reward"] = None
    parquet.write_table(pyarrow.Table.from_pylist(rows), old.completions / "000001.parquet")
    table = training_table(read_run(old.path))
    assert table and not any(bits & (CUT | UNUSED) for bits in table["flags"])
    assert table["reward"][0] is None


def test_what_does_not_fit_is_left_out_in_whole_steps_and_counted(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolkit.report.completions.MOST_ROWS", 30)
    data = report_data(read_run(run.path))
    table = data["training"]
    assert sorted(set(table["when"])) == [1, 4, 7, 9], "every third step, and the last"
    assert table["left_out"] == 5 * 8
    assert len(data["answers"]["prompts"]) == 2 and data["answers"]["left_out"] == 18


@pytest.mark.parametrize(("rows", "size", "step"), [(1, 1, 1), (24_000, 1, 1), (24_001, 1, 2), (1, 64_000_001, 3)])
def test_stride(rows: int, size: int, step: int) -> None:
    assert stride(rows, size) == step


def test_answers_stand_under_their_models(data: dict[str, Any]) -> None:
    table = data["answers"]
    assert table["groups"] == ["base", "warmup", "tuned"]
    tuned = [bits for bits, group in zip(table["flags"], table["when"], strict=True) if group == 2]
    assert all(bits & RIGHT for bits in tuned) and len(tuned) == 4 * 3
    assert sorted(set(table["sample"])) == [-1, 0, 1]


def test_values_of_a_recipe_by_key() -> None:
    record = {"a": 1, "b": {"c": [1, 2]}, "rewards": [{"name": "x", "weight": 2.0}]}
    assert flat(record) == {"a": 1, "b.c": [1, 2], "rewards.x.name": "x", "rewards.x.weight": 2.0}


# --- several runs


@pytest.fixture(scope="module")
def pair(run: RunDir, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDir, RunDir]:
    """The run, and one whose tuned model answers half as well, with another learning rate."""
    other = made_run(
        tmp_path_factory.mktemp("other") / "slow-20261130-130000", report_recipe(grpo={"learning_rate": 1e-5})
    )
    answers = parquet.read_table(other.eval_completions).to_pylist()
    for answer in answers:
        if answer["model"] == "tuned" and answer["row_id"].endswith(("/0", "/1")):
            answer["strict"] = False
    write_answers(other.eval_completions, answers)
    return run, other


def test_a_comparison_pairs_runs_by_problem_and_shows_the_keys_that_differ(pair: tuple[RunDir, RunDir]) -> None:
    data = comparison_data([read_run(run.path) for run in pair])
    assert [line[0] for line in data["recipe"]] == ["grpo.learning_rate"]
    (found,) = data["pairs"]
    assert found["change"] == "-50.0 points" and found["n"] == "4" and found["p"] == "0.5"
    assert all(len(figure["series"]) == 2 for figure in data["figures"])
    assert {"reward", "heldout", "kl", "grad_norm"} <= {figure["id"] for figure in data["figures"]}


def test_runs_that_were_asked_other_problems_are_not_paired(pair: tuple[RunDir, RunDir], tmp_path: Path) -> None:
    third = made_run(tmp_path / "third-20261130-140000", report_recipe(task={"heldout_seed": 77}))
    data = comparison_data([read_run(run.path) for run in (pair[0], third)])
    assert data["pairs"] == [] and any("not paired" in note for note in data["notes"])


def test_one_run_is_nothing_to_compare(run: RunDir) -> None:
    with pytest.raises(ToolkitError, match="two runs or more"):
        write_comparison([run.path, run.path])


def test_the_exact_test_counts_only_what_changed() -> None:
    assert _chance([(True, True)] * 50) == 1.0
    assert _chance([(False, True)] * 6 + [(True, True)] * 9) == pytest.approx(2 * 0.5**6)


# --- the verbs


def test_the_verb_writes_into_the_run(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run.path)]) == 0
    assert run.report.is_file() and "report.html" in capsys.readouterr().out


def test_compare_writes_where_it_is_told(pair: tuple[RunDir, RunDir], tmp_path: Path) -> None:
    assert main(["compare", *(str(run.path) for run in pair), "--to", str(tmp_path / "deep" / "c.html")]) == 0
    assert (tmp_path / "deep" / "c.html").is_file()
