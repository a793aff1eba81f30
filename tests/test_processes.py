"""Two processes train what one would: the same samples and rewards, and but for rounding the same adapter. One of them writes."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from models import small_recipe
from run_files import drawn, lines, send_when, start, steps, weights
from toolkit.rundir import RunDir, newest_run, newest_unfinished
from toolkit.train.record import last_checkpoint, read_state

pytest_plugins = ("shared",)

GRPO = {"prompts_per_step": 4, "max_steps": 5, "save_steps": 2, "learning_rate": 1e-2, "max_grad_norm": 1.0}
VARIANTS: dict[str, dict[str, Any]] = {
    "lean": {"per_device_train_batch_size": 4},
    "as TRL does it": {"beta": 0.04},
    "a mean over completions": {"loss_type": "dr_grpo", "per_device_train_batch_size": 8},
}
"""The trainer that leaves passes out, TRL's own, which torch's DDP averages, and a loss that is divided otherwise."""


def recipe_file(folder: Path, checkpoint: Path, **grpo: Any) -> str:
    recipe = small_recipe(
        str(checkpoint),
        model={"lora": {"r": 4}, "fast_inference": False},
        rewards=[{"name": "length", "unit": "words", "ideal": 3, "form": "distance"}],
        warmup={"max_steps": 3},
        grpo=GRPO | grpo,
        eval={"every": 2, "every_rows": 4},
    )
    file = folder / "tiny.yaml"
    file.write_text(yaml.safe_dump(recipe.model_dump(mode="json", exclude_unset=True)), encoding="utf-8")
    return str(file)


def trained(folder: Path, *words: str) -> RunDir:
    """The run of `toolkit train WORDS` in this folder."""
    process = start(folder, *words)
    assert process.wait(timeout=300) == 0, (folder / "output.txt").read_text(encoding="utf-8")[-3000:]
    return RunDir(newest(folder))


def newest(folder: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        found = newest_run(recipe=None) or newest_unfinished(recipe=None)
    assert found is not None
    return folder / found


@pytest.fixture(scope="module")
def alone(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    folder = tmp_path_factory.mktemp("alone")
    return trained(folder, recipe_file(folder, tiny_checkpoint, **VARIANTS["lean"]))


def assert_close(one: RunDir, other: RunDir) -> None:
    """Rewards and samples are equal; sums over completions were rounded in another order."""
    assert drawn(one) == drawn(other)
    assert steps(one) == steps(other) and [step for stage, step in steps(one) if stage == "eval"] == [0, 2, 4, 5]
    for ours, theirs in zip(lines(one), lines(other), strict=True):
        assert {"reward", "reward_std", "dead_groups", "completion_tokens"} <= ours.keys() or ours["stage"] != "grpo"
        for key in ours.keys() - {"seconds", "tokens_per_second", "energy_j"}:
            assert ours[key] == theirs[key] or ours[key] == pytest.approx(theirs[key], rel=1e-3, abs=1e-5), key
    for folder, same in ((one.warmup_adapter, other.warmup_adapter), (one.adapter, other.adapter)):
        ours, theirs = weights(folder), weights(same)
        assert ours.keys() == theirs.keys()
        assert max(abs(ours[name] - theirs[name]).max() for name in ours) < 1e-5
        assert max(abs(ours[name]).max() for name in ours if "lora_B" in name) > 5e-4


@pytest.mark.parametrize("variant", VARIANTS)
def test_two_processes_train_what_one_does(
    variant: str, tiny_checkpoint: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    file = recipe_file(tmp_path, tiny_checkpoint, **VARIANTS[variant])
    two = trained(tmp_path, file, "--processes", "2")
    if variant == "lean":
        one = request.getfixturevalue("alone")
    else:
        (tmp_path / "alone").mkdir()
        one = trained(tmp_path / "alone", file)
    assert_close(one, two)
    rows = drawn(two)
    assert len(rows) == 5 * 4 * 4 and len({row["completion"] for row in rows}) > 60
    assert any(line["dead_groups"] < 1 for line in lines(two) if line["stage"] == "grpo")
    manifest = json.loads(two.manifest.read_text(encoding="utf-8"))
    assert manifest["setting"]["processes"] == manifest["plan"]["processes"] == 2
    assert len(list((tmp_path / "runs").iterdir())) == 1, "one process writes"
    said = (tmp_path / "output.txt").read_text(encoding="utf-8")
    assert said.count("step 5/5") == 1 and said.count("\nrun: ") == 1 and "Traceback" not in said


def worker(process: subprocess.Popen[bytes], rank: int) -> psutil.Process:
    """The process of this rank that `process` started."""
    found = [child for child in psutil.Process(process.pid).children() if child.environ().get("RANK") == str(rank)]
    assert len(found) == 1
    return found[0]


def processes_of(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    whole = psutil.Process(process.pid)
    return [whole, *whole.children(recursive=True)]


def listening(process: psutil.Process) -> set[str]:
    return {place.laddr.ip for place in process.net_connections("inet") if place.status == psutil.CONN_LISTEN}


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_process_ends_the_run_which_can_be_resumed(
    rank: int, alone: RunDir, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    file = recipe_file(tmp_path, tiny_checkpoint, **VARIANTS["lean"])
    process = start(tmp_path, file, "--processes", "2")
    output = tmp_path / "output.txt"
    until = time.monotonic() + 200
    while "step 3/5" not in output.read_text(encoding="utf-8") and time.monotonic() < until:
        time.sleep(0.02)
    assert {address for process_ in processes_of(process) for address in listening(process_)} == {"127.0.0.1"}
    worker(process, rank).send_signal(signal.SIGKILL)
    assert process.wait(timeout=60) == 2
    said = output.read_text(encoding="utf-8")
    assert f"process {rank} of the training was killed (SIGKILL)" in said and "Traceback" not in said
    assert "toolkit train --resume" in said and "--processes 2" in said
    run = RunDir(newest(tmp_path))
    assert last_checkpoint(run) and read_state(run)["state"] in ("failed", "running") and not run.adapter.exists()
    resumed = trained(tmp_path, "--resume", str(run.path), "--processes", "2")
    assert resumed.path == run.path and read_state(run)["state"] == "done"
    assert_close(alone, resumed)


def test_ctrl_c_stops_all_after_the_same_step_and_one_process_can_go_on(
    alone: RunDir, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    file = recipe_file(tmp_path, tiny_checkpoint, **VARIANTS["lean"])
    process = start(tmp_path, file, "--processes", "2")
    assert send_when(process, tmp_path / "output.txt", "step 1/5", signal.SIGINT) == 130
    said = (tmp_path / "output.txt").read_text(encoding="utf-8")
    assert said.count("finishing this step") == 1 and "Traceback" not in said
    run = RunDir(newest(tmp_path))
    assert read_state(run)["state"] == "stopped" and last_checkpoint(run)
    assert_close(alone, trained(tmp_path, "--resume", str(run.path)))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_processes_that_a_cluster_started_find_each_other(
    alone: RunDir, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a PyTorchJob's two pods: each runs the plain command, with nothing but these variables."""
    file = recipe_file(tmp_path, tiny_checkpoint, **VARIANTS["lean"])
    pods, port = [], free_port()
    for rank, name in enumerate((".", "second")):
        job = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
        for variable, value in (job | {"MASTER_PORT": str(port)}).items():
            monkeypatch.setenv(variable, value)
        (tmp_path / name).mkdir(exist_ok=True)
        pods.append(start(tmp_path / name, file))
    assert [pod.wait(timeout=200) for pod in pods] == [0, 0]
    assert "step" not in (tmp_path / "second" / "output.txt").read_text(encoding="utf-8")
    assert_close(alone, RunDir(newest(tmp_path)))


def test_two_machines_train_together(alone: RunDir, tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Both are this one; the second writes no record."""
    file = recipe_file(tmp_path, tiny_checkpoint, **VARIANTS["lean"])
    (tmp_path / "second").mkdir()
    words = (file, "--machines", "2", "--address", f"127.0.0.1:{free_port()}")
    machines = [start(tmp_path, *words, "--rank", "0"), start(tmp_path / "second", *words, "--rank", "1")]
    assert [machine.wait(timeout=200) for machine in machines] == [0, 0]
    assert_close(alone, RunDir(newest(tmp_path)))
    assert not list((tmp_path / "second" / "runs").glob("*/metrics.jsonl"))


def test_a_fault_of_the_user_is_said_once(tiny_checkpoint: Path, tmp_path: Path) -> None:
    file = recipe_file(tmp_path, tiny_checkpoint, max_prompt_length=4)
    process = start(tmp_path, file, "--processes", "2")
    assert process.wait(timeout=200) == 2
    said = (tmp_path / "output.txt").read_text(encoding="utf-8")
    assert said.count("╭─ error") == 1 and "Traceback" not in said
