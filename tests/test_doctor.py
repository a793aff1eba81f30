"""The run doctor: each rule fires on a run that has its fault, none on runs that are well, and every knob is one that exists."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from faulty_runs import FAULTY, FORMAT, STEPS, group, late, line_of, recipe_of, records_of, well
from toolkit.cli import main
from toolkit.errors import ToolkitError
from toolkit.health import RULES, Finding, Records, Watch, diagnose, examine
from toolkit.health.docs import rewrite
from toolkit.health.movement import movement
from toolkit.health.records import step_facts
from toolkit.recipe import load_recipe
from toolkit.rundir import RunDir
from toolkit.train.display import Display

ROOT = Path(__file__).parent.parent
RECORDED = ROOT / "tests" / "data" / "healthy_run"
"""The default recipe, seed 3407, two cores, 2026-11-30: 0 % right answers before, 18 % after the warm-up, 49 % after GRPO."""


def rules(findings: Sequence[Finding]) -> list[str]:
    return [finding.rule for finding in findings if finding.is_alarm]


# The rules --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "faulty", "knob"), FAULTY, ids=[f"{number}-{case[0]}" for number, case in enumerate(FAULTY)]
)
def test_a_run_with_a_fault_is_found_to_have_it_and_nothing_else(
    rule: str, faulty: Callable[[], Records], knob: str | None
) -> None:
    records = faulty()
    if knob and knob.startswith("warmup."):
        records.recipe = recipe_of(warmup=None)
    findings = [finding for finding in examine(records) if finding.is_alarm]
    assert rules(findings) == [rule]
    (finding,) = findings
    if knob is not None:
        assert finding.knob == knob
    assert finding.message and finding.signal and finding.read_more and finding.means


def test_every_rule_has_such_a_run() -> None:
    assert {rule for rule, _, _ in FAULTY} == {rule.name for rule in RULES} - {"loss-near-zero"}


def test_every_knob_is_a_key_that_changes_the_recipe(tmp_path: Path) -> None:
    for _, faulty, _ in FAULTY:
        records = faulty()
        path = tmp_path / "recipe.yaml"
        path.write_text(json.dumps(records.recipe.model_dump(mode="json")), encoding="utf-8")
        for finding in examine(records):
            if finding.knob:
                changed = load_recipe(str(path), finding.knob.split()).recipe
                assert changed != load_recipe(str(path)).recipe, finding.knob


def test_a_loss_near_zero_is_a_note_and_no_alarm() -> None:
    (finding,) = examine(records_of(loss=1e-9))
    assert finding.rule == "loss-near-zero" and not finding.is_alarm and "by construction" in finding.message


def test_too_few_steps_say_nothing() -> None:
    broken = records_of(steps=4, dead_groups=1.0, cut_off=1.0, entropy=0.0, clip_ratio=1.0, grad_norm=0.0)
    assert examine(broken) == []


def test_a_nan_is_found_in_the_step_it_comes() -> None:
    assert rules(examine(records_of(steps=1, grad_norm=None))) == ["gradient-not-finite"]


# What is no fault -------------------------------------------------------------------------------------


def solved(step: int) -> list[dict[str, Any]]:
    right = 4 if step > STEPS / 2 else 2
    return group(step, [2.0] * right + [0.0] * (4 - right), [0.5] * right + [0.0] * (4 - right), ["right"] * 4)


def test_a_solved_task_may_have_no_entropy_left_and_one_answer() -> None:
    assert examine(records_of(table=solved, entropy=late(1.0, 0.01))) == []


def test_a_solved_task_without_spread_is_told_to_stop() -> None:
    (finding,) = examine(records_of(table=solved, dead_groups=late(0.0, 1.0)))
    assert finding.knob == f"grpo.max_steps={STEPS}" and "learned" in finding.message


@pytest.mark.parametrize("length", [300, 20])
def test_longer_or_shorter_and_better_is_no_fault(length: float) -> None:
    assert examine(records_of(completion_length=late(100, length))) == []


def test_a_penalty_that_never_came_is_none() -> None:
    def table(step: int) -> list[dict[str, Any]]:
        return [{**entry, "reward/repetition": 0.0} for entry in well(step)]

    recipe = recipe_of(rewards=[{"name": "correctness"}, FORMAT, {"name": "repetition"}])
    assert examine(records_of(recipe, table=table)) == []


def test_a_penalty_that_always_comes_is_found() -> None:
    def table(step: int) -> list[dict[str, Any]]:
        return [{**entry, "reward/repetition": -1.0} for entry in well(step)]

    recipe = recipe_of(rewards=[{"name": "correctness"}, FORMAT, {"name": "repetition"}])
    (finding,) = examine(records_of(recipe, table=table))
    assert (finding.rule, finding.signal) == ("reward-always-fires", "a reward's values: repetition")


def test_a_reward_that_is_earned_rarely_is_not_drowned_for_that() -> None:
    def table(step: int) -> list[dict[str, Any]]:
        return group(step, [2.0, 0.0, 0.0, 0.0], [0.5, 0.0, 0.0, 0.0] if step % 12 == 0 else [0.0] * 4)

    assert examine(records_of(table=table)) == []


def test_a_reward_that_could_judge_nothing_is_found() -> None:
    records = records_of()
    records.facts = [step_facts([{**entry, "reward/soft_format": None} for entry in well(1)]) for _ in range(STEPS)]
    assert rules(examine(records)) == ["reward-never-fired"]


def test_sequence_ratios_may_be_clipped_more_often() -> None:
    assert examine(records_of(recipe_of(grpo={"importance_sampling_level": "sequence"}), clip_ratio=0.2)) == []


def test_longer_completions_explain_fewer_tokens_per_second() -> None:
    slower = records_of(tokens_per_second=late(100, 30), completion_length=late(100, 190))
    assert examine(slower) == []


def test_clip_higher_is_advised_only_where_a_batch_serves_several_steps() -> None:
    (finding,) = examine(records_of(recipe_of(grpo={"num_iterations": 2}), entropy=late(1.0, 0.01)))
    assert finding.knob == "grpo.epsilon_high=0.28"


def test_a_fall_of_held_out_accuracy_within_its_noise_is_no_finding() -> None:
    records = records_of(evaluations=[(0, 0.3), (10, 0.60), (24, 0.53)])
    assert rules(examine(records)) == ["reward-hacking"]
    records.evaluations = [{**line, "rows": 32} for line in records.evaluations]
    assert examine(records) == []


def test_a_batch_that_is_too_large_for_the_memory_is_named() -> None:
    records = records_of(tokens_per_second=late(100, 30))
    records.batch_rows = 8
    assert examine(records)[0].knob == "grpo.per_device_train_batch_size=4"


# Recorded runs ----------------------------------------------------------------------------------------


@pytest.fixture
def recorded(tmp_path: Path) -> RunDir:
    """The recorded run as it lay in runs/, without its weights."""
    import pyarrow
    from pyarrow import parquet

    run = RunDir(tmp_path / "healthy-20261130-050211")
    run.completions.mkdir(parents=True)
    for name in ("recipe.json", "metrics.jsonl"):
        (run.path / name).write_bytes((RECORDED / name).read_bytes())
    table = parquet.read_table(RECORDED / "completions.parquet")
    for step in sorted(set(table["step"].to_pylist())):
        part = table.filter(pyarrow.array([other == step for other in table["step"].to_pylist()]))
        parquet.write_table(part, run.completions / f"{step:06d}.parquet")
    return run


def test_a_recorded_run_that_learned_has_no_findings(recorded: RunDir) -> None:
    assert rules(diagnose(recorded)) == []


def test_it_has_none_in_any_of_its_steps(recorded: RunDir) -> None:
    from pyarrow import parquet

    empty = RunDir(recorded.path.parent / "live")
    empty.path.mkdir()
    empty.recipe.write_bytes(recorded.recipe.read_bytes())
    watch = Watch(empty)
    for text in recorded.metrics.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        if line["stage"] == "grpo":
            table = parquet.read_table(recorded.completions / f"{line['step']:06d}.parquet").to_pylist()
            assert watch.step(line, table) == []


def test_a_half_written_line_and_missing_files_are_left_out(recorded: RunDir) -> None:
    with recorded.metrics.open("a", encoding="utf-8") as file:
        file.write('{"stage": "grpo", "st')
    for file in recorded.completions.iterdir():
        file.unlink()
    assert rules(diagnose(recorded)) == []


@pytest.mark.parametrize(("graded", "found"), [(True, ["reward-hacking"]), (False, [])])
def test_an_evaluation_with_fewer_right_answers_is_found(recorded: RunDir, graded: bool, found: list[str]) -> None:
    difference = {"delta": -0.2, "ci95": [-0.25, -0.15]}
    record = {
        "graded": graded,
        "differences": {"tuned-base": {"delta": 0.3, "ci95": [0.2, 0.4]}, "tuned-warmup": difference},
    }
    recorded.evaluation.write_text(json.dumps(record), encoding="utf-8")
    assert rules(diagnose(recorded)) == found


def test_the_change_of_an_adapter_is_that_of_its_weights(tmp_path: Path) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    run = RunDir(tmp_path)
    a, b = np.full((2, 3), 3.0, dtype=np.float32), np.full((3, 2), 4.0, dtype=np.float32)
    for folder, weights in (
        (run.warmup_adapter, {"lora_A": a, "lora_B": b}),
        (run.adapter, {"lora_A": a, "lora_B": b * 2}),
    ):
        folder.mkdir()
        save_file(weights, folder / "adapter_model.safetensors")
    assert movement(run) == pytest.approx(4 / 5)
    (run.warmup_adapter / "adapter_model.safetensors").unlink()
    assert movement(run) == pytest.approx(8 / 3)  # lora_B began at zero
    (run.adapter / "adapter_model.safetensors").unlink()
    assert movement(run) is None


def whole_run(folder: Path, base: Any, change: float, *, warmup: bool) -> RunDir:
    """After full fine-tuning: every weight in float32, each off its beginning by this share."""
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(2)
    run, base = RunDir(folder), base.float()
    tuned = base * (1 + change * torch.randn_like(base).sign())
    for there, weights in ((run.whole, tuned), *([(run.warmup_adapter, base)] if warmup else [])):
        there.mkdir(parents=True)
        half = len(weights) // 2  # of a checkpoint they may lie in several files
        save_file({"model.a": weights[:half].clone()}, there / "model-00001-of-00002.safetensors")
        save_file({"model.b": weights[half:].clone()}, there / "model-00002-of-00002.safetensors")
    return run


@pytest.mark.parametrize("change", [0.0, 3e-6, 2e-2])
def test_the_change_of_a_whole_model_is_that_since_its_warm_up(change: float, tmp_path: Path) -> None:
    import torch

    run = whole_run(tmp_path, torch.randn(64, 48), change, warmup=True)
    assert movement(run) == pytest.approx(change, rel=0.02, abs=1e-8)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("change", "told"), [(0.0, True), (3e-6, True), (2e-5, True), (1e-3, False), (2e-2, False)])
def test_without_a_warm_up_a_whole_models_change_is_told_by_the_steps_of_its_bases_numbers(
    dtype: str, change: float, told: bool, tmp_path: Path
) -> None:
    """As long as it is smaller than they are; larger is no finding."""
    import torch

    base = torch.randn(64, 4096).to(getattr(torch, dtype))
    found = movement(whole_run(tmp_path, base, change, warmup=False))
    assert found == (pytest.approx(change, rel=0.05, abs=1e-8) if told else None)


def test_of_a_base_in_float32_without_a_warm_up_nothing_is_told(tmp_path: Path) -> None:
    import torch

    assert movement(whole_run(tmp_path, torch.randn(64, 4096), 0.0, warmup=False)) is None


def test_a_whole_model_that_was_hardly_trained_is_found_and_one_that_moved_a_little_is_not(recorded: RunDir) -> None:
    import torch

    recipe = json.loads(recorded.recipe.read_text())
    recipe["model"] |= {"full_finetuning": True, "load_in_4bit": False, "lora": {}}
    recorded.recipe.write_text(json.dumps(recipe))
    base = torch.randn(64, 4096).to(torch.bfloat16)
    whole_run(recorded.path, base, 2e-6, warmup=False)
    (found,) = [each for each in diagnose(recorded) if each.is_alarm]
    assert found.rule == "learning-rate-too-small" and "the model's weights by 2.0e-06" in found.message
    shutil.rmtree(recorded.whole)
    whole_run(recorded.path, base, 2e-5, warmup=False)
    assert rules(diagnose(recorded)) == []


def test_a_checkpoint_that_is_being_written_is_not_read(tmp_path: Path) -> None:
    """Its state file is written last."""
    run = RunDir(tmp_path)
    folder = run.checkpoints / "checkpoint-2"
    folder.mkdir(parents=True)
    (folder / "adapter_model.safetensors").write_bytes(b"half")
    assert movement(run) is None


def test_weights_in_bfloat16_are_read(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    run = RunDir(tmp_path)
    run.adapter.mkdir()
    weights = {"lora_A": torch.full((2, 2), 2.0, dtype=torch.bfloat16), "lora_B": torch.full((2, 2), -1.0)}
    save_file(weights, run.adapter / "adapter_model.safetensors")
    assert movement(run) == pytest.approx(0.5)


# During training --------------------------------------------------------------------------------------


def test_a_finding_is_shown_once_in_a_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunDir(tmp_path)
    run.recipe.write_text(json.dumps(recipe_of().model_dump(mode="json")), encoding="utf-8")
    watch = Watch(run)
    with Display(recipe_of()) as display:
        for step in range(1, 11):
            line = {"stage": "grpo", "step": step, **line_of(step, well(step), cut_off=0.9)}
            display.findings(watch.step(line, well(step)))
    shown = capsys.readouterr().err
    assert shown.count("warning:") == 1 and "grpo.max_completion_length=24" in " ".join(shown.split())


def test_a_resumed_training_does_not_say_it_again(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.recipe.write_text(json.dumps(recipe_of().model_dump(mode="json")), encoding="utf-8")
    lines = [{"stage": "grpo", "step": step, **line_of(step, well(step), cut_off=0.9)} for step in range(1, 11)]
    run.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines[:-1]), encoding="utf-8")
    assert Watch(run).step(lines[-1], well(10)) == []


def test_held_out_accuracy_is_watched(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.recipe.write_text(json.dumps(recipe_of().model_dump(mode="json")), encoding="utf-8")
    watch, found = Watch(run), []
    held_out = [{"stage": "eval", "step": step, "accuracy": share} for step, share in ((0, 0.3), (8, 0.6), (20, 0.2))]
    for step in range(1, STEPS + 1):
        so_far = [line for line in held_out if line["step"] < step]
        found += watch.step({"stage": "grpo", "step": step, **line_of(step, well(step))}, well(step), so_far)
    assert rules(found) == ["reward-hacking"]


# The verb ---------------------------------------------------------------------------------------------


def test_the_verb_says_that_nothing_is_wrong_and_writes_it_down(
    recorded: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", str(recorded.path)]) == 0
    assert "nothing wrong was found" in capsys.readouterr().out
    assert json.loads(recorded.doctor.read_text(encoding="utf-8"))["alarms"] == 0


def test_findings_are_exit_code_1_and_json(recorded: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [json.loads(line) for line in recorded.metrics.read_text(encoding="utf-8").splitlines()]
    changed = [json.dumps(line | {"cut_off": 1.0}) + "\n" for line in lines]
    recorded.metrics.write_text("".join(changed), encoding="utf-8")
    assert main(["doctor", str(recorded.path), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    found = {finding["rule"]: finding for finding in report["findings"]}
    assert report["alarms"] == 1 and found["cut-off"]["value"] == 1.0 and found["cut-off"]["threshold"] == 0.5
    assert main(["doctor", str(recorded.path)]) == 1
    assert "try: grpo.max_completion_length=128" in capsys.readouterr().out


def test_no_run_is_the_users_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", "nowhere"]) == 2
    with pytest.raises(ToolkitError):
        diagnose(RunDir(tmp_path))


def test_a_recipe_means_the_run_that_began_last(
    recorded: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(recorded.path.parent)
    (Path("runs") / "mine-20260101-000000").mkdir(parents=True)
    recorded.path.rename("runs/mine-20260102-000000")
    assert main(["doctor", "mine"]) == 0
    assert "mine-20260102-000000" in capsys.readouterr().out


# The document -----------------------------------------------------------------------------------------


def test_the_table_in_the_document_is_that_of_the_code() -> None:
    text = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
    assert rewrite(text) == text, "python -m toolkit.health.docs"


def test_where_to_read_more_is_there() -> None:
    local = [rule.read_more for rule in RULES if not rule.read_more.startswith("https://")]
    assert all((ROOT / path).is_file() for path in local)
