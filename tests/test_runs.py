"""`toolkit runs` tells a living run from a killed one, and `runs clean` removes what it named, when told to, and no more."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from models import child_environment
from report_runs import bare_run
from toolkit.atomic import write_json
from toolkit.cli import main
from toolkit.errors import ToolkitError
from toolkit.report.runs import Removal, clean, list_runs, removable, state_of
from toolkit.rundir import RunDir, holding, is_held

HOLD = """
import sys
from pathlib import Path
from toolkit.rundir import RunDir, holding
with holding(RunDir(Path(sys.argv[1]))):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def held_elsewhere(run: RunDir) -> Iterator[subprocess.Popen[str]]:
    """Another process holds the run until the block ends."""
    command = [sys.executable, "-c", HOLD, str(run.path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, text=True, env=child_environment(), stdin=pipe, stdout=pipe) as process:
        assert process.stdin and process.stdout and process.stdout.readline() == "held\n"
        yield process
        process.stdin.close()


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def a_run(name: str, state: str, *, adapter: bool = False, checkpoint: bool = False) -> RunDir:
    run = bare_run(Path("runs") / name, state)
    if adapter:
        run.adapter.mkdir()
        (run.adapter / "adapter_model.safetensors").write_bytes(b"x" * 100)
    if checkpoint:
        folder = run.checkpoints / "checkpoint-2"
        folder.mkdir(parents=True)
        (folder / "trainer_state.json").write_text("{}")
        (folder / "optimizer.pt").write_bytes(b"x" * 5_000_000)
    return run


# --- who works on a run


def test_a_run_is_running_while_its_process_lives_and_killed_afterwards() -> None:
    run = a_run("sums-20261130-120000", "running")
    assert state_of(run) == "killed"
    with held_elsewhere(run) as process:
        assert is_held(run) and state_of(run) == "running"
        process.kill()
        process.wait()
        assert not is_held(run) and state_of(run) == "killed"


def test_two_processes_cannot_work_on_one_run() -> None:
    run = a_run("sums-20261130-120000", "running")
    with held_elsewhere(run), pytest.raises(ToolkitError, match="another process"), holding(run):
        pass
    with holding(run):
        assert is_held(run)
    assert not is_held(run)


@pytest.mark.parametrize("state", ["done", "stopped", "failed"])
def test_other_states_are_as_recorded(state: str) -> None:
    assert state_of(a_run("sums-20261130-120000", state)) == state


@pytest.mark.parametrize("text", ["", "[]", "{}", "{half"])
def test_a_spoiled_state_hides_no_run(text: str) -> None:
    run = a_run("sums-20261130-120000", "done")
    run.state.write_text(text)
    run.evaluation.write_text(text)
    a_run("other-20261130-120000", "done")
    assert {line.run: line.state for line in list_runs()} == {
        "sums-20261130-120000": "unknown", "other-20261130-120000": "done",
    }  # fmt: skip


# --- the list


def test_a_line_says_recipe_steps_reward_accuracy_and_size() -> None:
    run = a_run("my-sums-20261130-120000-2", "done", checkpoint=True)
    lines = [{"stage": "grpo", "step": step, "reward": float(step)} for step in range(1, 13)]
    run.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    write_json(run.evaluation, {"models": {"tuned": {"accuracy": 0.5}}})
    (line,) = list_runs()
    assert (line.recipe, line.state, line.steps, line.of) == ("my-sums", "done", 12, 2)
    assert (line.reward, line.accuracy) == (7.5, 0.5), "the mean of the last ten steps"
    assert 5_000_000 < line.size_bytes < 5_100_000


def test_what_is_no_run_is_not_listed() -> None:
    Path("runs/notes").mkdir(parents=True)
    Path("runs/.gitkeep").touch()
    assert list_runs() == []


def test_the_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    a_run("sums-20261130-120000", "failed")
    assert main(["runs", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema_version"] == 1 and found["runs"][0]["state"] == "failed"


def test_without_runs_it_says_what_makes_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs"]) == 0
    assert "toolkit train" in capsys.readouterr().out


def test_foreign_names_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    a_run("[red]sums-20261130-120000", "done")
    assert main(["runs"]) == 0
    assert "[red]sums-" in capsys.readouterr().out


# --- clean


def everything() -> list[Path]:
    return sorted(path for path in Path().rglob("*") if path.name != ".lock")


def test_clean_removes_nothing_until_it_is_told_to(capsys: pytest.CaptureFixture[str]) -> None:
    a_run("sums-20261130-120000", "done", adapter=True, checkpoint=True)
    a_run("bad-20261130-120000", "failed")
    before = everything()
    assert main(["runs", "clean"]) == 0
    shown = capsys.readouterr().out
    assert "runs/sums-20261130-120000/checkpoints" in shown and "runs/bad-20261130-120000" in shown
    assert "5.0 MB" in shown and "toolkit runs clean --yes" in shown
    assert everything() == before


def test_clean_removes_what_it_named(capsys: pytest.CaptureFixture[str]) -> None:
    done = a_run("sums-20261130-120000", "done", adapter=True, checkpoint=True)
    failed = a_run("bad-20261130-120000", "failed")
    export = Path("exports/bad-20261130-120000/merged")
    export.mkdir(parents=True)
    assert main(["runs", "clean", "--yes"]) == 0
    assert done.adapter.is_dir() and done.recipe.is_file() and not done.checkpoints.exists()
    assert not failed.path.exists() and export.is_dir()
    assert "freed" in capsys.readouterr().out
    assert main(["runs", "clean"]) == 0
    assert "nothing to remove" in capsys.readouterr().out


def test_what_can_be_continued_stays_unless_it_failed_and_that_is_asked_for() -> None:
    a_run("stopped-20261130-120000", "stopped", checkpoint=True)
    failed = a_run("failed-20261130-120000", "failed", checkpoint=True)
    killed = a_run("killed-20261130-120000", "running", checkpoint=True)
    a_run("adapter-20261130-120000", "failed", adapter=True, checkpoint=True)
    assert removable() == []
    assert {removal.path for removal in removable(failed=True)} == {failed.path, killed.path}


def test_a_living_run_is_left_alone() -> None:
    run = a_run("sums-20261130-120000", "running")
    (removal,) = removable()
    with held_elsewhere(run):
        assert removable(failed=True) == []
        with pytest.raises(ToolkitError, match="in use"):
            clean([removal])
    assert run.recipe.is_file()


def test_links_are_not_followed(work: Path) -> None:
    precious = work / "precious"
    precious.mkdir()
    (precious / "data").write_text("keep")
    run = a_run("sums-20261130-120000", "done", adapter=True)
    run.checkpoints.symlink_to(precious)
    elsewhere = bare_run(work / "elsewhere", "failed")
    Path("runs/link-20261130-120000").symlink_to(elsewhere.path)
    assert removable() == []
    assert list_runs()[0].size_bytes < 10_000


def test_clean_counts_what_it_frees() -> None:
    run = a_run("sums-20261130-120000", "done", adapter=True, checkpoint=True)
    assert clean(removable()) == 5_000_002
    with pytest.raises(ToolkitError, match="cannot be removed"):
        clean([Removal(run.checkpoints, "gone", 0)])


@pytest.mark.parametrize("words", [["runs", "claen"], ["runs", "--yes"], ["runs", "list", "--failed"]])
def test_wrong_words_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert "toolkit runs clean" in capsys.readouterr().err
