"""A real Ray on this machine: a training as a Ray Train job of two workers, a sweep with Ray Tune, Ctrl-C in both.

`make test-ray` runs it; `make test` skips it where Ray is not installed.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from models import child_environment, small_recipe
from run_files import lines, send_when, steps
from toolkit import versions
from toolkit.rundir import RunDir
from toolkit.train.record import read_state

pytest_plugins = ("shared",)

if versions.build("ray") is None and os.environ.get("REQUIRE_RAY") != "1":
    pytest.skip("Ray is not installed: make test-ray", allow_module_level=True)

NOISE = re.compile(r"raylet|RayTrainWorker|TrainController|TrainTrainable|pid=|\(autoscaler")
STEPS = 80
LONG = (f"grpo.max_steps={STEPS}", "grpo.learning_rate=1e-5")
"""Long enough to be stopped in the middle: a step takes some hundredths of a second."""


@pytest.fixture
def recipe(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """Two steps of the tiny model, and a reward with spread."""
    rewards = [{"name": "length", "ideal": 3}]
    source = str(tiny_checkpoint)
    model = {"source": source, "fast_inference": False}
    small = small_recipe(source, model=model, eval={"rows": 4, "samples": 2})
    file = tmp_path / "tiny.yaml"
    file.write_text(json.dumps(small.model_dump(mode="json") | {"rewards": rewards}), encoding="utf-8")
    return file


def toolkit(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "toolkit", *words]
    environment = child_environment() | variables
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)


def begun(folder: Path, *words: str, **variables: str) -> subprocess.Popen[bytes]:
    """In a session of its own, as in a terminal of its own: Ctrl-C goes to all of its foreground."""
    with (folder / "output.txt").open("wb") as output:
        command = [sys.executable, "-m", "toolkit", *words]
        return subprocess.Popen(command, cwd=folder, stdout=output, stderr=output, env=child_environment() | variables)


def runs(folder: Path) -> list[RunDir]:
    return [RunDir(path) for path in sorted((folder / "runs").iterdir())]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


CLUSTER = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32),
    "RAY_memory_monitor_refresh_ms": "0",
}  # fmt: skip
"""What keeps a Ray on 127.0.0.1, those out who have no token, and workers alive where others fill the memory; `--ray local` sets it
itself."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A Ray that runs already, as an administrator starts one; the addresses of its two doors."""
    port, client = free_port(), free_port()
    scratch = tmp_path_factory.mktemp("r")
    command = [
        sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--node-ip-address=127.0.0.1",
        f"--port={port}", f"--ray-client-server-port={client}", "--num-cpus=2", "--include-dashboard=false",
        "--disable-usage-stats", f"--object-store-memory={100 * 2**20}", "--temp-dir=/tmp/ray-" + str(port),
    ]  # fmt: skip
    with (scratch / "ray.txt").open("wb") as output:
        ray = subprocess.Popen(
            command, stdout=output, stderr=output, env=child_environment() | CLUSTER, start_new_session=True
        )
    until = time.monotonic() + 90
    while "Ray runtime started" not in (scratch / "ray.txt").read_text() and time.monotonic() < until:
        assert ray.poll() is None, (scratch / "ray.txt").read_text()
        time.sleep(0.2)
    yield {"gcs": f"127.0.0.1:{port}", "client": f"ray://127.0.0.1:{client}"}
    for process in [*psutil.Process(ray.pid).children(recursive=True), ray]:  # asked to end, they take half a minute
        with suppress(psutil.NoSuchProcess):
            process.kill()
    ray.wait(timeout=60)
    shutil.rmtree(f"/tmp/ray-{port}", ignore_errors=True)


def rewards_of(run: RunDir) -> list[Any]:
    return [(line["step"], line["reward"], line["completion_length"]) for line in lines(run) if line["stage"] == "grpo"]


def test_a_job_of_two_workers_is_the_training_that_one_process_makes(recipe: Path, tmp_path: Path) -> None:
    done = toolkit(tmp_path, "train", recipe.name, "--ray", "local", "--processes", "2")
    assert done.returncode == 0, done.stderr
    (run,) = runs(tmp_path)
    assert read_state(run)["state"] == "done" and run.adapter.is_dir()
    assert steps(run) == [("warmup", 1), ("warmup", 2), ("grpo", 1), ("grpo", 2)]
    assert done.stdout.count("step 2/2") == 1 and "2 processes" in done.stdout
    assert not NOISE.search(done.stdout + done.stderr)
    assert {path.name for path in tmp_path.iterdir()} == {"tiny.yaml", "runs"}
    assert toolkit(tmp_path, "train", recipe.name).returncode == 0
    assert rewards_of(runs(tmp_path)[1]) == rewards_of(run)


def test_a_users_fault_comes_back_as_it_is_and_no_stage_follows(
    recipe: Path, tmp_path: Path, cluster: dict[str, str]
) -> None:
    """From a worker of a Ray that runs already; the driver is no part of it (ray://)."""
    words = ("--ray", cluster["client"], "--to", "eval", "grpo.max_prompt_length=1")
    failed = toolkit(tmp_path, "train", recipe.name, *words, **CLUSTER)
    assert failed.returncode == 2, failed.stderr
    assert "one step needs 2 rows, and there are 0" in failed.stderr, failed.stderr
    assert "Traceback" not in failed.stderr and "2/2 eval" not in failed.stdout
    assert not NOISE.search(failed.stdout + failed.stderr)
    assert [read_state(run)["state"] for run in runs(tmp_path)] == ["failed"]


def test_ctrl_c_saves_a_job_and_the_usual_command_goes_on(
    recipe: Path, tmp_path: Path, cluster: dict[str, str]
) -> None:
    words = ("--ray", cluster["gcs"], "--processes", "2")
    job = begun(tmp_path, "train", recipe.name, *words, *LONG, **CLUSTER)
    assert send_when(job, tmp_path / "output.txt", f"step 1/{STEPS}", signal.SIGINT) == 130
    said = (tmp_path / "output.txt").read_text()
    (run,) = runs(tmp_path)
    assert read_state(run)["state"] == "stopped" and not run.adapter.exists()
    assert f"toolkit train --resume runs/{run.path.name}" in said
    assert f"toolkit train --resume runs/{run.path.name} --ray {cluster['gcs']} --processes 2" in said
    again = toolkit(tmp_path, "train", "--resume", run.path.name)  # here it needs no Ray
    assert again.returncode == 0, again.stderr
    assert read_state(run)["state"] == "done" and [step for _, step in steps(run)][-1] == STEPS


def test_a_sweep_is_stopped_goes_on_and_repeats_nothing(recipe: Path, tmp_path: Path) -> None:
    words = ("sweep", recipe.name, "grpo.max_prompt_length=96,1,95", *LONG)
    stopped = begun(tmp_path, *words)
    assert send_when(stopped, tmp_path / "output.txt", f"[1/3] step 1/{STEPS}", signal.SIGINT) == 130
    said = (tmp_path / "output.txt").read_text()
    assert re.search(r"96 +stopped", said) and re.search(r"95 +not started", said)
    assert f"the same again: {' '.join(['toolkit', *words])}" in said
    (first,) = runs(tmp_path)
    assert read_state(first)["state"] == "stopped"

    ended = toolkit(tmp_path, *words)
    assert ended.returncode == 1, ended.stderr
    assert not NOISE.search(ended.stdout + ended.stderr)
    states = {
        json.loads(run.recipe.read_text())["grpo"]["max_prompt_length"]: read_state(run) for run in runs(tmp_path)
    }
    assert {length: state["state"] for length, state in states.items()} == {96: "done", 1: "failed", 95: "done"}
    assert re.search(r"grpo.max_prompt_length=1 failed: one step needs 2 rows, and there are 0", ended.stderr)
    assert "2 variants were measured on the same 4 held-out rows" in ended.stderr
    assert all(run.evaluation.is_file() for run in runs(tmp_path) if run.adapter.is_dir())
    assert "comparison: reports/sweep-tiny.html" in ended.stdout
    page = (tmp_path / "reports" / "sweep-tiny.html").read_text()
    assert all(run.path.name in page for run in runs(tmp_path) if run.adapter.is_dir())

    there = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*")}
    same = toolkit(tmp_path, "sweep", recipe.name, *LONG, "grpo.max_prompt_length=95,96")
    assert same.returncode == 0 and "2 of 2 variants are done already" in same.stderr
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*")} == there
