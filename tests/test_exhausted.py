"""Out of memory in a training: terms, measured peaks, the key to turn, exit code 2, nothing lost. With real refused requests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from models import child_environment, small_recipe
from toolkit.atomic import read_json, write_json
from toolkit.doctor import show_run
from toolkit.errors import DataError, ToolkitError
from toolkit.estimate.exhausted import OutOfMemory, explained, is_exhaustion
from toolkit.preflight import ANYWAY
from toolkit.rundir import RunDir

pytest_plugins = ("shared",)

HUGE = 10**9
"""Tokens of a completion: the cache of eight takes a terabyte in each layer."""


def refused() -> BaseException:
    """What PyTorch really raises."""
    torch = pytest.importorskip("torch")
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 50, dtype=torch.uint8)
    return caught.value


def test_what_allocators_say_is_known() -> None:
    assert is_exhaustion(refused()) and is_exhaustion(MemoryError())
    assert is_exhaustion(RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"))
    assert not is_exhaustion(RuntimeError("shapes do not match"))


def test_a_gpus_own_exception_is_one_of_them() -> None:
    torch = pytest.importorskip("torch")
    assert issubclass(torch.OutOfMemoryError, RuntimeError)


def test_the_terms_stand_beside_what_was_measured(tiny_checkpoint: Path) -> None:
    recipe = small_recipe(str(tiny_checkpoint))
    with pytest.raises(OutOfMemory) as caught, explained(recipe, go_on="toolkit train --resume RUN"):
        raise refused()
    said = str(caught.value)
    assert caught.value.exit_code == 2 and caught.value.__suppress_context__
    assert "out of memory" in said and "estimated peak" in said and "weights" in said and "when it ran out" in said
    assert "toolkit train --resume RUN" in str(caught.value.hint)


def test_other_errors_pass_through(tiny_checkpoint: Path) -> None:
    recipe = small_recipe(str(tiny_checkpoint))
    with pytest.raises(DataError), explained(recipe, go_on=""):
        raise DataError("a row is wrong")
    with pytest.raises(RuntimeError, match="shapes"), explained(recipe, go_on=""):
        raise RuntimeError("shapes do not match")


def test_a_model_without_known_shape_still_has_its_message() -> None:
    with pytest.raises(ToolkitError, match="not estimated"), explained(small_recipe("org/nowhere"), go_on="again"):
        raise MemoryError


@pytest.mark.parametrize(("state", "warned"), [("running", True), ("failed", False)])
def test_a_run_whose_process_was_killed_is_said_to_be_one(
    state: str, warned: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDir(tmp_path)
    run.lock.touch()
    write_json(run.state, {"state": state})
    write_json(run.manifest, {"preflight": {"memory": {"peak_gib": 7.25, "memory_gib": 8.0}}})
    show_run(tmp_path, [])
    said = capsys.readouterr().err
    assert ("was killed" in said and "estimated 7.2 of 8 GiB" in said and "--resume" in said) == warned


def train(folder: Path, checkpoint: Path, tokens: int, **environment: str) -> Any:
    """`toolkit train` of a recipe whose completions have so many tokens."""
    model = {"max_seq_length": tokens + 100, "fast_inference": False}
    recipe = small_recipe(str(checkpoint), model=model, grpo={"max_completion_length": tokens})
    (folder / "huge.yaml").write_text(json.dumps(recipe.model_dump(mode="json")), encoding="utf-8")
    command = [sys.executable, "-m", "toolkit", "train", "huge.yaml"]
    variables = child_environment() | environment
    return subprocess.run(command, capture_output=True, text=True, env=variables, cwd=folder, timeout=600, check=False)


def test_what_surely_does_not_fit_is_refused_before_the_model_is_loaded(tiny_checkpoint: Path, tmp_path: Path) -> None:
    done = train(tmp_path, tiny_checkpoint, 10**6)
    assert done.returncode == 2 and "peak of the training, estimated" in done.stderr and ANYWAY in done.stderr
    assert "grpo.max_completion_length" in done.stderr and not (tmp_path / "runs").exists()


def test_a_training_that_runs_out_says_why_and_loses_nothing(tiny_checkpoint: Path, tmp_path: Path) -> None:
    done = train(tmp_path, tiny_checkpoint, HUGE, **{ANYWAY: "1"})
    assert done.returncode == 2, done.stderr[-3000:]
    assert "out of memory" in done.stderr and "measured peaks" in done.stderr and "KV cache" in done.stderr
    (path,) = (tmp_path / "runs").iterdir()
    run = RunDir(path)
    assert read_json(run.state)["state"] == "failed" and run.warmup_adapter.is_dir()
    assert f"toolkit train --resume {os.path.join('runs', path.name)}" in done.stderr
