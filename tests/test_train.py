"""A run's records say what happened, and an interrupted run goes on as if it had never been interrupted."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import unsloth_side
from models import child_environment, small_recipe
from toolkit.errors import DataError
from toolkit.rundir import RunDir, newest_run, write_json
from toolkit.tasks.base import Row
from toolkit.train import _examples, _short_enough
from toolkit.train.display import LOSS_NOTE, Display
from toolkit.train.record import Recorder, last_checkpoint, read_state, write_state
from toolkit.train.signals import stop_on_signals

pytest_plugins = ("shared",)

SMOKE = Path(__file__).resolve().parents[1] / "recipes" / "smoke.yaml"
LOGS: dict[str, Any] = {
    "loss": 0.0, "reward": 1.5, "reward_std": 0.5, "frac_reward_zero_std": 0.25, "completions/mean_length": 6.0,
    "completions/clipped_ratio": 0.5, "entropy": 0.3, "kl": float("nan"), "clip_ratio/region_mean": 0.0, "grad_norm": 0.1,
    "learning_rate": 1e-5, "rewards/correctness/mean": 1.0, "rewards/xmlcount/mean": float("inf"), "rewards/xmlcount/std": 1.0,
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    folder = RunDir(tmp_path / "run")
    folder.path.mkdir()
    return folder


def lines(run: RunDir) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.metrics.read_text(encoding="utf-8").splitlines()]


def completions_table(text: str = "text", reward: float | None = 1.0) -> list[dict[str, Any]]:
    return [
        {"row_id": "a", "completion": text, "tokens": 3, "gold": "1", "reward/correctness": reward, "reward": 2.0}
    ] * 2


def recorded(run: RunDir, *, warmup: int = 2, grpo: int = 3) -> None:
    first = Recorder(run, "warmup")
    first.rewind(None)
    for step in range(1, warmup + 1):
        first.warmup_step(step, {"loss": 1.0 / step})
    second = Recorder(run, "grpo")
    second.rewind(None)
    for step in range(1, grpo + 1):
        second.grpo_step(step, LOGS, completions_table())


def checkpoint(run: RunDir, step: int, *, whole: bool = True) -> Path:
    path = run.checkpoints / f"checkpoint-{step}"
    path.mkdir(parents=True)
    (path / "adapter_model.safetensors").touch()
    if whole:
        (path / "trainer_state.json").write_text("{}")
    return path


def steps(run: RunDir) -> list[tuple[str, int]]:
    return [(line["stage"], line["step"]) for line in lines(run)]


def completion_files(run: RunDir) -> list[str]:
    return sorted(path.name for path in run.completions.iterdir())


def test_a_step_becomes_one_line_and_one_file(run: RunDir) -> None:
    from pyarrow import parquet

    recorded(run)
    assert steps(run) == [("warmup", 1), ("warmup", 2), ("grpo", 1), ("grpo", 2), ("grpo", 3)]
    line = lines(run)[2]
    assert (line["reward"], line["reward_std"], line["dead_groups"], line["cut_off"]) == (1.5, 0.5, 0.25, 0.5)
    assert line["rewards"]["correctness"] == 1.0 and line["completion_tokens"] == 6
    assert line["seconds"] >= 0 and line["tokens_per_second"] > 0
    assert completion_files(run) == ["000001.parquet", "000002.parquet", "000003.parquet"]
    (first, _) = parquet.read_table(run.completions / "000002.parquet").to_pylist()
    assert first == {"step": 2} | completions_table()[0]


def test_what_is_no_number_never_reaches_json(run: RunDir) -> None:
    recorded(run, grpo=1)
    assert "NaN" not in run.metrics.read_text() and "Infinity" not in run.metrics.read_text()
    line = lines(run)[-1]
    assert line["kl"] is None and line["rewards"]["xmlcount"] is None


def test_a_metric_that_was_not_logged_is_null(run: RunDir) -> None:
    recorder = Recorder(run, "grpo")
    recorder.rewind(None)
    shown = recorder.grpo_step(1, {"loss": 0.0}, completions_table())
    assert shown["entropy"] is None and shown["reward"] is None


def test_a_reward_that_cannot_judge_is_null_in_the_table(run: RunDir) -> None:
    from pyarrow import parquet

    recorder = Recorder(run, "grpo")
    recorder.rewind(None)
    recorder.grpo_step(1, LOGS, completions_table(reward=None))
    assert parquet.read_table(run.completions / "000001.parquet")["reward/correctness"].to_pylist() == [None, None]


def test_rewinding_forgets_what_came_after_the_checkpoint(run: RunDir) -> None:
    recorded(run, grpo=4)
    Recorder(run, "grpo").rewind(checkpoint(run, 2))
    assert steps(run) == [("warmup", 1), ("warmup", 2), ("grpo", 1), ("grpo", 2)]
    assert completion_files(run) == ["000001.parquet", "000002.parquet"]
    assert run.checkpoints.is_dir()


def test_rewinding_to_the_start_keeps_the_warm_up_and_drops_half_checkpoints(run: RunDir) -> None:
    recorded(run)
    checkpoint(run, 2, whole=False)
    assert last_checkpoint(run) is None
    Recorder(run, "grpo").rewind(None)
    assert steps(run) == [("warmup", 1), ("warmup", 2)]
    assert completion_files(run) == [] and not run.checkpoints.exists()


def test_a_warm_up_that_starts_again_forgets_its_first_try(run: RunDir) -> None:
    recorded(run, warmup=2, grpo=0)
    Recorder(run, "warmup").rewind(None)
    assert lines(run) == []


def test_a_half_written_line_is_dropped(run: RunDir) -> None:
    recorded(run)
    with run.metrics.open("a") as file:
        file.write('{"stage": "grpo", "step": 4, "rew')
    Recorder(run, "grpo").rewind(checkpoint(run, 3))
    assert steps(run)[-1] == ("grpo", 3)
    assert run.metrics.read_text().endswith("}\n")


def test_the_last_checkpoint_is_the_newest_whole_one(run: RunDir) -> None:
    assert last_checkpoint(run) is None
    for step in (2, 10, 9):
        checkpoint(run, step)
    checkpoint(run, 12, whole=False)
    assert last_checkpoint(run) == run.checkpoints / "checkpoint-10"


def test_the_state_names_its_schema_and_time(run: RunDir) -> None:
    write_state(run, "running")
    state = read_state(run)
    assert (state["state"], state["schema"]) == ("running", 1) and state["time"][:2] == "20"


def test_the_first_signal_asks_and_the_second_stops() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), stop_on_signals() as request:
        assert not request.asked
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0)
        assert request.asked
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def rows(*lengths: int, solution: str | None = "1 = 1") -> list[Row]:
    return [Row(str(at), "x" * length, "1", solution) for at, length in enumerate(lengths)]


POLICY: Any = SimpleNamespace(prompt_ids=lambda messages: list(messages[-1]["content"]))


def test_rows_with_long_prompts_are_left_out_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = small_recipe("org/model")
    kept = _short_enough(POLICY, recipe, rows(10, 96, 97, 200))
    assert [len(row.question) for row in kept] == [10, 96]
    assert "2 of 4 rows have prompts over 96 tokens" in capsys.readouterr().err
    assert len(_short_enough(POLICY, recipe, rows(1, 2))) == 2
    assert capsys.readouterr().err == ""


def test_too_few_rows_for_a_step_is_an_error_with_the_way_out() -> None:
    with pytest.raises(DataError, match="one step needs 2 rows, and there are 1") as caught:
        _short_enough(POLICY, small_recipe("org/model"), rows(10, 200, 200))
    assert "grpo.max_prompt_length" in str(caught.value.hint)


def test_a_warm_up_without_worked_solutions_is_an_error_with_the_way_out() -> None:
    recipe = small_recipe("org/model")
    assert [row.id for row, _ in _examples(recipe, rows(1, 1, 1, 1, 1))] == ["0", "1", "2", "3"]
    with pytest.raises(DataError, match="the task has 0") as caught:
        _examples(recipe, rows(1, 1, 1, solution=None))
    assert "warmup" in str(caught.value.hint)


def test_without_a_terminal_each_step_is_one_plain_line(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = small_recipe("org/model")
    step = {
        "reward": 1.25, "reward_std": 0.5, "dead_groups": 0.5, "completion_length": 11.6, "cut_off": 0.25, "seconds": 2.0,
        "tokens_per_second": 41.7,
    }  # fmt: skip
    with Display(recipe) as display:
        display.warmup({"step": 2, "loss": 0.5})
        display.step(step | {"step": 1})
        display.step(step | {"step": 2, "reward": None, "reward_std": None})
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("warm-up 2/2") and shown[1] == LOSS_NOTE and len(shown) == 4
    assert shown[2].split("  ")[0] == "step 1/2" and "reward 1.25 ± 0.50" in shown[2] and "no spread 50%" in shown[2]
    assert "left 0:00:02" in shown[2] and "left 0:00:00" in shown[3]


# Interruptions, on the tiny model in one process: Ctrl-C at every kind of moment.

Ask = Callable[..., Any]


def without_times(run: RunDir) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k not in ("seconds", "tokens_per_second")} for line in lines(run)]


def drawn(run: RunDir) -> list[dict[str, Any]]:
    from pyarrow import parquet

    return [row for file in sorted(run.completions.iterdir()) for row in parquet.read_table(file).to_pylist()]


def weights(folder: Path) -> dict[str, Any]:
    from safetensors.numpy import load_file

    return load_file(folder / "adapter_model.safetensors")


def assert_same_run(one: RunDir, other: RunDir) -> None:
    """Metrics, completions and both adapters, to the bit; only the clock may differ."""
    assert without_times(one) == without_times(other)
    assert drawn(one) == drawn(other)
    for folder, theirs in ((one.adapter, other.adapter), (one.warmup_adapter, other.warmup_adapter)):
        ours, expected = weights(folder), weights(theirs)
        assert ours.keys() == expected.keys()
        assert all((ours[name] == expected[name]).all() for name in expected)


@pytest.fixture(scope="module")
def tiny(tiny_checkpoint: Path) -> Any:
    """Five steps with a checkpoint after the second and fourth, momentum, a schedule, weight decay and dropout."""
    grpo = {
        "max_steps": 5,
        "save_steps": 2,
        "learning_rate": 1e-2,
        "max_grad_norm": 1.0,
        "per_device_train_batch_size": 4,
    }
    model = {"source": str(tiny_checkpoint), "lora": {"r": 4, "lora_dropout": 0.1}}
    return small_recipe(str(tiny_checkpoint), model=model, grpo=grpo, warmup={"max_steps": 3})


@pytest.fixture(scope="module")
def uninterrupted(unsloth_process: Ask, tiny: Any) -> RunDir:
    found = unsloth_process(unsloth_side.train_tiny, tiny)
    assert found["raised"] is None
    return RunDir(Path(found["run"]))


def test_a_run_leaves_its_records(uninterrupted: RunDir, tiny: Any) -> None:
    run = uninterrupted
    assert read_state(run)["state"] == "done"
    assert json.loads(run.recipe.read_text()) == tiny.model_dump(mode="json")
    assert steps(run) == [("warmup", step) for step in (1, 2, 3)] + [("grpo", step) for step in (1, 2, 3, 4, 5)]
    manifest = json.loads(run.manifest.read_text())
    assert {"schema", "versions", "git_commit", "machine", "seed", "base", "data", "changes", "setting"} <= set(
        manifest
    )
    assert [change["key"] for change in manifest["changes"]] == ["grpo.optim"]
    assert {"torch", "unsloth", "trl", "transformers", "peft"} <= set(manifest["versions"])
    assert manifest["data"]["train"]["rows"] == 16 and len(manifest["base"]["sha256"]) == 64
    rows = drawn(run)
    assert len(rows) == 5 * 8 and len({row["completion"] for row in rows}) > 30
    assert {"step", "prompt", "completion", "gold", "reward/correctness", "reward/xmlcount", "reward"} <= set(rows[0])


def test_the_two_adapters_differ_and_are_named_as_the_recipe_names_the_base(uninterrupted: RunDir, tiny: Any) -> None:
    before, after = weights(uninterrupted.warmup_adapter), weights(uninterrupted.adapter)
    assert before.keys() == after.keys()
    assert all(math.isfinite(float(abs(weight).max())) for weight in after.values())
    assert any((before[name] != after[name]).any() for name in before)
    config = json.loads((uninterrupted.adapter / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == tiny.model.source


def test_the_same_recipe_gives_the_same_run(uninterrupted: RunDir, unsloth_process: Ask, tiny: Any) -> None:
    assert_same_run(RunDir(Path(unsloth_process(unsloth_side.train_tiny, tiny)["run"])), uninterrupted)


@pytest.mark.parametrize(
    ("moment", "saved"),
    [(("warmup", 1), None), (("warmup", 3), None), (("grpo", 1), 1), (("grpo", 3), 3), (("grpo", 4), 4)],
    ids=lambda value: str(value),
)
def test_an_interrupted_run_goes_on_to_the_same_end(
    moment: tuple[str, int], saved: int | None, uninterrupted: RunDir, unsloth_process: Ask, tiny: Any
) -> None:
    found = unsloth_process(unsloth_side.interrupted, tiny, moment)
    run = RunDir(Path(found["run"]))
    assert (found["raised"], found["exit_code"]) == ("Stopped", 130)
    assert f"--resume {run.path.parent.name}/{run.path.name}" in found["hint"]
    assert read_state(run)["state"] == "stopped"
    assert not run.adapter.exists() and run.warmup_adapter.exists() == (moment[0] == "grpo")
    reached = last_checkpoint(run)
    assert (reached and reached.name) == (saved and f"checkpoint-{saved}")
    assert unsloth_process(unsloth_side.train_tiny, tiny, str(run.path))["raised"] is None
    assert read_state(run)["state"] == "done"
    assert_same_run(run, uninterrupted)


def test_ctrl_c_in_the_last_step_still_ends_the_run(uninterrupted: RunDir, unsloth_process: Ask, tiny: Any) -> None:
    found = unsloth_process(unsloth_side.interrupted, tiny, ("grpo", 5))
    assert found["raised"] is None
    assert_same_run(RunDir(Path(found["run"])), uninterrupted)


def test_a_run_killed_after_its_last_step_only_saves_its_adapter(
    uninterrupted: RunDir, unsloth_process: Ask, tiny: Any, tmp_path: Path
) -> None:
    import shutil

    run = RunDir(Path(shutil.copytree(uninterrupted.path, tmp_path / "run")))
    shutil.rmtree(run.adapter)
    write_json(run.state, {"schema": 1, "state": "running"})
    assert unsloth_process(unsloth_side.train_tiny, tiny, str(run.path))["raised"] is None
    assert_same_run(run, uninterrupted)


def test_a_finished_run_is_not_trained_again(uninterrupted: RunDir, unsloth_process: Ask, tiny: Any) -> None:
    before = {path: path.stat().st_mtime_ns for path in uninterrupted.path.rglob("*")}
    found = unsloth_process(unsloth_side.train_tiny, tiny, str(uninterrupted.path))
    assert (found["raised"], found["exit_code"]) == ("EngineError", 2) and "toolkit eval" in found["hint"]
    assert {path: path.stat().st_mtime_ns for path in uninterrupted.path.rglob("*")} == before


def test_a_run_that_learned_nothing_is_an_error_and_has_no_adapter(unsloth_process: Ask, tiny: Any) -> None:
    """The recipe's own rewards: random text never hits them, all groups are without spread."""
    found = unsloth_process(unsloth_side.train_tiny, tiny, None, None, False)
    assert (found["raised"], found["exit_code"]) == ("EngineError", 2)
    assert read_state(RunDir(Path(found["run"])))["state"] == "failed"
    assert not RunDir(Path(found["run"])).adapter.exists()


# The real model in processes of its own, as a user runs and stops them.

OVERRIDES = (
    "warmup.max_steps=4", "warmup.batch_size=2", "warmup.learning_rate=2e-3", "grpo.max_completion_length=20",
    "grpo.warmup_steps=0", "grpo.save_steps=2", "task.train_rows=32", "rewards=[{name: xmlcount, legacy: true}]",
)  # fmt: skip
"""Less work than the smoke recipe, and a reward that differs among the beginnings of answers."""


def start(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "toolkit", "train", *words]
    with (folder / "output.txt").open("wb") as output:
        return subprocess.Popen(command, cwd=folder, stdout=output, stderr=output, env=child_environment())


def send_when(process: subprocess.Popen[bytes], output: Path, text: str, number: int) -> int:
    """Send the signal when the text has been shown; the exit code."""
    until = time.monotonic() + 900
    while text not in output.read_text(encoding="utf-8", errors="replace"):
        assert process.poll() is None and time.monotonic() < until, output.read_text(encoding="utf-8")[-3000:]
        time.sleep(0.05)
    process.send_signal(number)
    return process.wait(timeout=900)


def test_a_run_that_was_killed_and_then_stopped_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    """SIGKILL after the first step, resumed; Ctrl-C after its first step, resumed: the same run to the bit."""
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    straight.mkdir()
    broken.mkdir()
    at_once = start(straight, str(SMOKE), *OVERRIDES)
    try:
        killed = start(broken, str(SMOKE), *OVERRIDES)
        assert send_when(killed, broken / "output.txt", "step 1/3", signal.SIGKILL) == -signal.SIGKILL
        (path,) = (broken / "runs").iterdir()
        run = RunDir(path)
        assert read_state(run)["state"] == "running" and not run.adapter.exists()
        assert newest_run(broken / "runs") is None
        stopped = start(broken, "--resume", str(run.path))
        assert send_when(stopped, broken / "output.txt", "step 1/3", signal.SIGINT) == 130
        assert read_state(run)["state"] == "stopped" and not run.adapter.exists()
        assert last_checkpoint(run) is not None
        assert "--resume" in (broken / "output.txt").read_text()
        assert start(broken, "--resume", str(run.path)).wait(timeout=900) == 0, (broken / "output.txt").read_text()
        assert at_once.wait(timeout=900) == 0, (straight / "output.txt").read_text()
    finally:
        at_once.kill()
    assert read_state(run)["state"] == "done" and newest_run(broken / "runs") == run.path
    (path,) = (straight / "runs").iterdir()
    assert sum(line["reward_std"] > 0 for line in lines(RunDir(path)) if line["stage"] == "grpo") >= 2
    assert_same_run(run, RunDir(path))
