"""A run on a GPU from the base to the files: 4-bit load, GRPO, vLLM on and off, stop and resume, evaluation, merge, GGUF.

Each is a process of its own, as a user would start it. What was measured stands in `gpu.json` of TOOLKIT_GPU_RECORD.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from models import child_environment
from run_files import drawn, lines, send_when, start, weights
from tiny import need_llama_cpp
from toolkit.rundir import RunDir

LIMIT_S = 1800


def recipe(base: Path, device: str, *, fast: bool, steps: int = 3, **model: Any) -> dict[str, Any]:
    """Few short steps. Random weights earn nothing for answers, so length is paid: that differs in every group."""
    return {
        "model": {
            "source": str(base), "max_seq_length": 256, "load_in_4bit": device == "cuda", "fast_inference": fast,
            "gpu_memory_utilization": 0.4, "lora": {"r": 8, "lora_alpha": 16},
        } | model,
        "task": {
            "name": "reasoning_gym", "dataset": "chain_sum", "system_prompt": "", "train_rows": 16, "heldout_rows": 4,
            "parameters": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2},
        },
        "rewards": [{"name": "correctness"}, {"name": "length", "ideal": 40, "form": "distance"}],
        "warmup": {"max_steps": 2, "batch_size": 2},
        "grpo": {
            "num_generations": 4, "prompts_per_step": 2, "max_steps": steps, "learning_rate": 1e-3, "save_steps": 1,
            "max_prompt_length": 128, "max_completion_length": 24,
        },
        "eval": {"rows": 4, "samples": 2},
        "export": {"merged": True, "gguf": ["q8_0"]},
    }  # fmt: skip


def toolkit(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "toolkit", *words], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=LIMIT_S, env=child_environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


def written(folder: Path, values: dict[str, Any]) -> str:
    (folder / "gpu.yaml").write_text(json.dumps(values), encoding="utf-8")
    return "gpu.yaml"


def only(folder: Path) -> Path:
    (path,) = [path for path in folder.iterdir() if path.is_dir()]
    return path


def record(name: str, facts: dict[str, Any]) -> None:
    """Keep what was measured, where somebody asked for it."""
    if place := os.environ.get("TOOLKIT_GPU_RECORD"):
        with Path(place).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"name": name, **facts}) + "\n")


@pytest.fixture(scope="module", params=[True, False], ids=["vllm", "plain"])
def trained(
    request: pytest.FixtureRequest, base: Path, device: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[RunDir, bool]:
    """A finished and evaluated run, and whether vLLM was asked for."""
    need_llama_cpp()
    folder = tmp_path_factory.mktemp("run")
    toolkit(folder, "train", written(folder, recipe(base, device, fast=request.param)), "--to", "export")
    return RunDir(only(folder / "runs")), request.param


def test_it_learned_from_groups_that_differ(trained: tuple[RunDir, bool]) -> None:
    run, _ = trained
    steps = [line for line in lines(run) if line["stage"] == "grpo"]
    assert len(steps) == 3 and any(line["dead_groups"] < 1 for line in steps)
    before, after = weights(run.warmup_adapter), weights(run.adapter)
    assert any((before[name] != after[name]).any() for name in before)
    assert len({row["completion"] for row in drawn(run)}) > 3


def test_what_the_machine_made_of_the_recipe_is_recorded(trained: tuple[RunDir, bool], device: str) -> None:
    run, fast = trained
    manifest = json.loads(run.manifest.read_text())
    told = [change["key"] for change in manifest["changes"]]
    generator = manifest["setting"]["generator"]
    if device == "cuda":
        assert generator == ("unsloth" if fast else "transformers"), manifest["changes"]
        assert "grpo.optim" not in told
    else:
        assert generator == ("vllm" if fast and manifest["machine"]["vllm"] else "transformers")
        assert "grpo.optim" in told


def test_memory_is_about_what_was_estimated(trained: tuple[RunDir, bool], device: str) -> None:
    from toolkit.engine.machine import this_machine
    from toolkit.estimate import estimate, shape_of
    from toolkit.recipe import load_resolved

    run, fast = trained
    used, steps = load_resolved(run.recipe).recipe, [line for line in lines(run) if line["stage"] == "grpo"]
    expected = estimate(used, shape_of(used.model), this_machine()).gib
    peaks = json.loads(run.state.read_text())["peak_memory_gib"]
    assert 0 < max(peaks.values()) < json.loads(run.manifest.read_text())["machine"]["memory_gib"]
    if device == "cuda":  # the estimate's own tests hold it to its margin on a processor
        assert expected / 2 < max(peaks.values()) < expected * 1.5
    measured = {name: [line[name] for line in steps] for name in ("seconds", "tokens_per_second")}
    record("run", {"vllm": fast, "device": device, "peaks_gib": peaks, "estimate_gib": expected, **measured})


def test_base_and_tuned_are_evaluated(trained: tuple[RunDir, bool]) -> None:
    run, _ = trained
    found = json.loads(run.evaluation.read_text())
    assert set(found["models"]) == {"base", "warmup", "tuned"} and found["n"] == 4


def test_the_adapter_is_merged_into_the_16_bit_base_and_becomes_a_gguf(trained: tuple[RunDir, bool]) -> None:
    run, _ = trained
    export = only(run.path.parents[1] / "exports")
    config = json.loads((export / "merged" / "config.json").read_text())
    assert "quantization_config" not in config
    assert list(export.glob("*.gguf"))


def test_a_stopped_run_goes_on(base: Path, device: str, tmp_path: Path) -> None:
    name = written(tmp_path, recipe(base, device, fast=True, steps=4))
    process = start(tmp_path, name)
    code = send_when(process, tmp_path / "output.txt", "step 2", signal.SIGINT)
    assert code == 130
    run = RunDir(only(tmp_path / "runs"))
    toolkit(tmp_path, "train", "--resume", str(run.path))
    assert [line["step"] for line in lines(run) if line["stage"] == "grpo"] == [1, 2, 3, 4]
    assert json.loads(run.state.read_text())["state"] == "done"


@pytest.mark.parametrize(
    ("keys", "gpu_only"),
    [
        ({"standby": True}, "model.standby"),
        ({"load_in_4bit": False}, None),
        ({"load_in_4bit": False, "load_in_8bit": True}, "model.load_in_8bit"),
    ],
    ids=["standby", "16-bit", "8-bit"],
)
def test_the_other_ways_to_load_train(
    base: Path, device: str, tmp_path: Path, keys: dict[str, Any], gpu_only: str | None
) -> None:
    toolkit(tmp_path, "train", written(tmp_path, recipe(base, device, fast=True, steps=2, **keys)))
    manifest = json.loads(RunDir(only(tmp_path / "runs")).manifest.read_text())
    told = {change["key"]: change["used"] for change in manifest["changes"]}
    if device == "cpu":
        assert gpu_only is None or told[gpu_only] is False
    elif "standby" in keys:
        assert manifest["setting"]["standby"] is True and "model.gpu_memory_utilization" in told
    else:
        assert manifest["setting"]["generator"] == ("unsloth" if gpu_only is None else "transformers")
