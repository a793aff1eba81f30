"""`report_to` is off unless asked for; a tracker that is not installed is refused before anything is loaded; trackio works here.

The training with trackio is skipped where trackio is absent (`pip install --no-deps --requirement requirements/track.txt`);
REQUIRE_TRACKIO=1 makes that a failure.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from models import child_environment, small_recipe
from run_files import lines
from toolkit.engine.trackers import NEEDS, PROJECT, prepare_tracker, require_tracker, tracker_arguments
from toolkit.errors import ToolkitError
from toolkit.preflight.tools import tracker_findings
from toolkit.rundir import RunDir

pytest_plugins = ("shared",)
HERE = importlib.util.find_spec("trackio") is not None


def test_nothing_is_reported_unless_asked_for() -> None:
    assert small_recipe("org/base").report_to == "none"
    assert tracker_arguments("none", "run") == {"report_to": "none"}


@pytest.mark.parametrize("tracker", NEEDS)
def test_an_absent_tracker_is_refused_with_the_command(tracker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NEEDS, tracker, ("no_such_package",))
    with pytest.raises(ToolkitError, match="is not installed") as caught:
        require_tracker(tracker)
    assert caught.value.hint and "pip install" in caught.value.hint


@pytest.mark.parametrize("tracker", NEEDS)
def test_one_package_is_enough(tracker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NEEDS, tracker, ("no_such_package", "json"))
    require_tracker(tracker)
    require_tracker("none")


def test_check_says_so_before_a_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NEEDS, "wandb", ("no_such_package",))
    (found,) = tracker_findings(small_recipe("org/base", report_to="wandb"))
    assert found.status == "failed" and found.hint and "pip install wandb" in found.hint
    assert list(tracker_findings(small_recipe("org/base"))) == []


@pytest.mark.skipif(importlib.util.find_spec("wandb") is not None, reason="wandb is installed here")
def test_training_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("extends: smoke\nreport_to: wandb\n", encoding="utf-8")
    code = (
        "import sys; from toolkit.cli import main; code = main(['train', sys.argv[1]]); "
        "print(code, [name for name in ('torch', 'unsloth', 'trl') if name in sys.modules])"
    )
    command = [sys.executable, "-c", code, str(recipe)]
    done = subprocess.run(command, cwd=tmp_path, env=child_environment(), capture_output=True, text=True)
    assert done.stdout.strip() == "2 []" and "pip install wandb" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_what_users_set_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TENSORBOARD_LOGGING_DIR", raising=False)
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    prepare_tracker("tensorboard", tmp_path)
    prepare_tracker("wandb", tmp_path)
    assert os.environ["TENSORBOARD_LOGGING_DIR"] == str(tmp_path / "tensorboard")
    assert os.environ["WANDB_PROJECT"] == "mine"


@pytest.mark.skipif(not HERE and not os.environ.get("REQUIRE_TRACKIO"), reason="trackio is not installed")
def test_a_training_reports_to_trackio_on_this_machine(tmp_path: Path, tiny_checkpoint: Path) -> None:
    """Every step's metrics lie in trackio's database, under the run's name; child processes reach no other machine."""
    recipe = small_recipe(
        str(tiny_checkpoint), report_to="trackio", warmup=None, rewards=[{"name": "length", "ideal": 8}]
    )
    (tmp_path / "tracked.yaml").write_text(json.dumps(recipe.model_dump(mode="json")), encoding="utf-8")
    environment = child_environment() | {"TRACKIO_DIR": str(tmp_path / "trackio")}
    command = [sys.executable, "-m", "toolkit", "train", "tracked.yaml"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (folder,) = (tmp_path / "runs").iterdir()
    logged = read_back(folder.name, environment)
    steps = [line for line in lines(RunDir(folder)) if line["stage"] == "grpo"]
    assert [entry["train/reward"] for entry in logged] == pytest.approx([line["reward"] for line in steps])
    assert {"train/grad_norm", "train/entropy", "train/completions/mean_length"} <= set(logged[0])


def read_back(run: str, environment: dict[str, str]) -> list[dict[str, Any]]:
    """Through trackio's own storage, in a process of its own: the entries that a training step logged."""
    code = (
        "import json, sys; from trackio.sqlite_storage import SQLiteStorage; "
        "print(json.dumps(SQLiteStorage.get_logs(sys.argv[1], sys.argv[2]), default=str))"
    )
    command = [sys.executable, "-c", code, PROJECT, run]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return [entry for entry in json.loads(done.stdout.splitlines()[-1]) if "train/reward" in entry]


def test_the_pins_are_no_others_than_those_they_are_installed_over() -> None:
    folder = Path(__file__).parent.parent / "requirements"

    def pins(name: str) -> dict[str, str]:
        found = [
            line.split("#")[0].strip().split("==") for line in (folder / name).read_text().splitlines() if "==" in line
        ]
        return {line[0]: line[1] for line in found}

    assert not set(pins("track.txt")) & set(pins("cpu.txt"))
