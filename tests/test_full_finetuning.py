"""Full fine-tuning: every weight is trained, saved and resumed; base and tuned answer in one process; what leaves is proven."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import evaluation_side
import full_side
import unsloth_side
from effects import CPU
from models import byte_tokenizer, small_recipe, tiny_llama
from run_files import drawn, lines, without_times
from tiny import exported, need_llama_cpp, write_base, write_tokenizer
from toolkit.errors import RecipeError
from toolkit.estimate import shape_of
from toolkit.estimate.terms import estimate
from toolkit.health.movement import movement
from toolkit.recipe import load_recipe
from toolkit.rundir import RunDir, is_whole
from toolkit.train.record import last_checkpoint
from toolkit.verify import table as verify_table
from toolkit.verify import verify_export
from verdicts import failed_checks

pytest_plugins = ("shared",)

WHOLE = {"load_in_4bit": False, "full_finetuning": True, "lora": {"r": 16}}
KEYS = ["model.load_in_4bit=false", "model.full_finetuning=true", "model.lora.lora_alpha=16"]


def recipe_of(source: Path, *, fast: bool = False) -> Any:
    grpo = {"max_steps": 4, "save_steps": 2, "learning_rate": 3e-3, "per_device_train_batch_size": 4}
    evaluation = {"rows": 4, "samples": 1, "every": 2, "every_rows": 2, "keep_best": True}
    return small_recipe(
        str(source),
        model=WHOLE | {"source": str(source), "fast_inference": fast},
        grpo=grpo,
        eval=evaluation,
    )


def whole(folder: Path) -> dict[str, Any]:
    from safetensors.numpy import load_file

    assert is_whole(folder)
    return load_file(folder / "model.safetensors")


@pytest.fixture(scope="module")
def run(unsloth_process: Any, tiny_checkpoint: Path) -> RunDir:
    found = unsloth_process(unsloth_side.train_tiny, recipe_of(tiny_checkpoint))
    assert found["raised"] is None, found
    return RunDir(Path(found["run"]))


def test_every_weight_is_trained_and_the_run_holds_a_model_and_no_adapter(run: RunDir, tiny_checkpoint: Path) -> None:
    before, warm, after = whole(tiny_checkpoint), whole(run.warmup_adapter), whole(run.adapter)
    assert before.keys() == after.keys() == warm.keys()
    assert all((after[name] != warm[name]).any() and (warm[name] != before[name]).any() for name in before)
    assert run.adapter == run.whole and not (run.path / "adapter").exists() and not run.best.exists()


def test_the_doctor_knows_how_far_all_weights_moved(run: RunDir) -> None:
    before, after = whole(run.warmup_adapter), whole(run.adapter)
    changed, there = (
        sum(float((w**2).sum()) for w in each) for each in ([after[n] - before[n] for n in before], before.values())
    )
    assert movement(run) == pytest.approx((changed / there) ** 0.5, rel=1e-4)


def test_the_lean_trainers_gradients_of_all_weights_are_trls(unsloth_process: Any, tiny_checkpoint: Path) -> None:
    """Of the embedding both parts: it is the output head, too."""
    for case, found in unsloth_process(unsloth_side.loss_gradients, recipe_of(tiny_checkpoint)).items():
        assert found["apart"] <= 1e-5 * max(1.0, found["size"]) and found["losses apart"] < 1e-5, (case, found)


def test_a_resumed_run_is_the_uninterrupted_one(run: RunDir, unsloth_process: Any, tiny_checkpoint: Path) -> None:
    stopped = unsloth_process(unsloth_side.train_tiny, recipe_of(tiny_checkpoint), None, ("grpo", 3))
    resumed = RunDir(Path(stopped["run"]))
    assert stopped["raised"] == "Stopped" and last_checkpoint(resumed) and not resumed.adapter.exists()
    assert unsloth_process(unsloth_side.train_tiny, recipe_of(tiny_checkpoint), stopped["run"])["raised"] is None
    assert without_times(resumed) == without_times(run) and drawn(resumed) == drawn(run)
    ours, theirs = whole(resumed.adapter), whole(run.adapter)
    assert all((ours[name] == theirs[name]).all() for name in theirs)


def test_base_and_trained_answer_from_one_loaded_model_whose_weights_come_back(
    run: RunDir, unsloth_process: Any, tiny_checkpoint: Path
) -> None:
    folders = {"base": tiny_checkpoint, "warmup": run.warmup_adapter, "tuned": run.adapter}
    found = unsloth_process(full_side.answers, recipe_of(tiny_checkpoint), folders)
    assert found["unchanged"] and {name: found["texts"][name] for name in folders} == found["plain"]
    assert found["texts"]["again"] == found["texts"]["base"] and len({str(t) for t in found["plain"].values()}) == 3


def test_the_evaluation_compares_base_checkpoint_and_tuned(run: RunDir, unsloth_process: Any) -> None:
    record = unsloth_process(evaluation_side.evaluated, str(run.path), (2,))["record"]
    assert set(record["models"]) == {"base", "warmup", "step2", "tuned"}


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
def test_vllm_beside_draws_with_the_weights_of_every_step(unsloth_process: Any, tmp_path: Path) -> None:
    source = tmp_path / "checkpoint"
    tiny_llama(num_attention_heads=2, num_key_value_heads=1).save_pretrained(source)  # as wide as its kernel needs
    byte_tokenizer().save_pretrained(source)
    found = unsloth_process(unsloth_side.train_tiny, recipe_of(source, fast=True))
    run = RunDir(Path(found["run"]))
    assert json.loads(run.manifest.read_text())["setting"]["generator"] == "vllm"
    apart = [line["logp_difference_max"] for line in lines(run) if line["stage"] == "grpo"]
    assert len(apart) == 4 and max(apart) < 1e-3
    folders = {"base": source, "warmup": run.warmup_adapter, "tuned": run.adapter}
    asked = unsloth_process(full_side.answers, recipe_of(source, fast=True), folders)
    assert asked["generator"] == "vllm" and asked["unchanged"]
    assert {name: asked["texts"][name] for name in folders} == asked["plain"]
    assert asked["texts"]["again"] == asked["texts"]["base"]


# --- what leaves


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run whose weights all moved, as a short training moves them; its base lies beside it."""
    import torch
    from safetensors.torch import load_file, save_file

    need_llama_cpp()
    base = write_base(tmp_path_factory.mktemp("whole") / "base", hidden_size=64, intermediate_size=64)
    write_tokenizer(base)
    run = RunDir(base.parent / "runs" / "tiny")
    run.whole.mkdir(parents=True)
    loaded = load_recipe("smoke", [f"model.source={json.dumps(str(base))}", *KEYS, "export.gguf=[f16]"])
    run.recipe.write_text(loaded.recipe.model_dump_json(), encoding="utf-8")
    torch.manual_seed(1)
    tensors = {name: w.float() for name, w in load_file(base / "model.safetensors").items()}
    moved = {
        name: w + w.std().nan_to_num(1.0).clamp_min(0.01) * 0.1 * torch.randn_like(w) for name, w in tensors.items()
    }
    save_file(moved, run.whole / "model.safetensors", metadata={"format": "pt"})
    shutil.copyfile(base / "config.json", run.whole / "config.json")
    return run.path


def test_an_export_is_the_trained_weights_rounded_once_and_proven(trained: Path, tmp_path: Path) -> None:
    record = exported(trained, trained.parents[1] / "exports" / "tiny")
    assert not (record.folder / "adapter").exists() and record.adapter["full_finetuning"] is True
    assert len(record.merged["changed"]) == len(whole(trained / "model"))
    verified = verify_export(record.folder, problems=2)
    assert [failed_checks(result) for result in (verified.merged, *verified.files)] == [set(), set()]
    assert verified.passed and verified.merged.value("share of the training") == pytest.approx(1, abs=0.02)
    assert "full fine-tuning" in (record.folder / "CERTIFICATE.md").read_text()


def test_a_tensor_that_is_not_the_trained_one_is_named(trained: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    record = exported(trained, trained.parents[1] / "exports" / "other", quants=[])
    path, name = record.folder / "merged" / "model.safetensors", "model.layers.1.self_attn.q_proj.weight"
    weights, before = load_file(path), load_file(trained.parents[1] / "base" / "model.safetensors")[name]
    weights[name] = ((weights[name].float() + before.float()) / 2).to(before.dtype)
    save_file(weights, path, metadata={"format": "pt"})
    merged = verify_export(record.folder, problems=1).merged
    assert {"unchanged since export", "the trained weights"} <= failed_checks(merged)
    assert merged.value("the trained weights") == [name]


def test_without_the_trained_weights_nothing_is_proven(trained: Path, tmp_path: Path) -> None:
    record = exported(trained, tmp_path / "far" / "off" / "export", quants=[])
    verified = verify_export(record.folder, problems=1)
    assert not verified.passed and "verify where the run is" in str(verified.merged.checks)


LOW = 1e-6
"""A learning rate far below half a step of bfloat16 for weights of 0.01."""


@pytest.fixture(scope="module")
def low(unsloth_process: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run, short and at a low rate, from a base in bfloat16."""
    need_llama_cpp()
    base = write_base(tmp_path_factory.mktemp("low") / "base", hidden_size=64, intermediate_size=64)
    write_tokenizer(base)
    steps = {"max_steps": 3, "learning_rate": LOW}
    recipe = small_recipe(
        str(base),
        model=WHOLE | {"fast_inference": False},
        grpo=steps,
        warmup=steps,
        export={"gguf": ["f32", "q8_0"]},
    )
    found = unsloth_process(unsloth_side.train_tiny, recipe)
    assert found["raised"] is None, found
    return Path(found["run"])


def test_what_16_bits_would_round_away_fails_loudly_with_a_way_out_that_works(low: Path) -> None:
    exports = low.parents[1] / "exports"
    record = exported(low, exports / "narrow", quants=["f16"])
    merged = verify_export(record.folder, problems=1).merged
    (lost,) = [check for check in merged.checks if not check.passed]
    assert lost.name in ("share of the training", "share in the weights") and lost.value < 0.5
    (way_out,) = re.findall(r"toolkit export RUN (\S+) keeps it", lost.why)
    recipe = load_recipe(RunDir(low).recipe, [way_out]).recipe
    wide = verify_export(exported(low, exports / "wide", recipe=recipe).folder, problems=1)
    assert [failed_checks(result) for result in (wide.merged, *wide.files)] == [set(), set(), set()]
    assert wide.passed and wide.merged.value("share in the weights") == pytest.approx(1, abs=1e-4)
    exact, narrower = (result.value("training in the weights") for result in wide.files)
    assert exact == pytest.approx(1, abs=1e-4) and narrower != 1
    assert json.loads((exports / "wide" / "merged" / "config.json").read_text())["dtype"] == "float32"


def test_no_check_of_a_whole_model_speaks_of_an_adapter_that_is_there(low: Path) -> None:
    record = exported(low, low.parents[1] / "exports" / "worded")
    verified = verify_export(record.folder, problems=1)
    words = [f"{check.name}: {check.why}" for result in (verified.merged, *verified.files) for check in result.checks]
    assert [word for word in words if "adapter" in word and not word.startswith("no adapter")] == []
    assert not (record.folder / "adapter").exists() and "adapter" not in " ".join(verify_table.COLUMNS)


# --- the recipe


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model.load_in_4bit", "true"), ("model.load_in_8bit", "true"), ("grpo.beta", "0.04"), ("export.lora_gguf", "true"),
        ("hub.adapter_repo", "me/lora"), ("model.lora.r", "8"), ("model.lora.target_modules", "[q_proj]"),
    ],
)  # fmt: skip
def test_what_needs_an_adapter_or_the_base_is_a_fault_with_its_place(key: str, value: str) -> None:
    assert load_recipe("smoke", KEYS).recipe.model.full_finetuning
    with pytest.raises(RecipeError) as raised:
        load_recipe("smoke", [*KEYS, f"{key}={value}"])
    assert any(fault.key == key and "full fine-tuning" in fault.message and fault.hint for fault in raised.value.faults)


def test_the_estimate_counts_gradients_and_moments_of_all_weights_and_no_adapter(tiny_checkpoint: Path) -> None:
    recipe = recipe_of(tiny_checkpoint)
    shape = shape_of(recipe.model)
    terms = {term.name: term.gib * 2**30 / shape.weights for term in estimate(recipe, shape, CPU).terms}
    assert (terms["weights"], terms["gradients"], terms["optimiser (adamw_torch_fused)"]) == pytest.approx((4, 4, 8))
    assert not {"adapter", "a copy of adapted weights"} & set(terms)


def test_the_base_cannot_judge_its_own_training() -> None:
    rewards = "rewards=[{name: judge, criteria: It is true.}]"
    with pytest.raises(RecipeError, match="the base itself is trained"):
        load_recipe("smoke", [*KEYS, rewards])
