"""A check says beforehand what would fail: disk, permissions, path lengths, memory, tools, time; and a training stops on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from models import small_recipe
from toolkit.cli import main
from toolkit.engine.machine import Machine
from toolkit.errors import ToolkitError
from toolkit.estimate import shape_of
from toolkit.estimate.disk import Need, export_needs, run_needs
from toolkit.estimate.pace import evaluation_seconds, files_seconds, recorded_pace, training_seconds
from toolkit.preflight import ANYWAY, Finding, Report, disk, require_ready
from toolkit.preflight.disk import disk_findings, path_findings, writable_findings
from toolkit.preflight.machine import machine_findings, memory_findings
from toolkit.preflight.tools import llama_cpp, serve_port
from toolkit.recipe import load_recipe

CPU = Machine("cpu", True, "a CPU", 2, 16.0)
T4 = Machine("cuda", False, "Tesla T4", 8, 14.6, capability=(7, 5))


def statuses(findings: Any) -> dict[str, str]:
    return {finding.what: finding.status for finding in findings}


# Exit codes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("worst", "code"), [("ok", 0), ("warning", 1), ("failed", 2)])
def test_the_exit_code_is_the_worst_status(worst: Any, code: int) -> None:
    report = Report("mine", (Finding("a", "b", 1), Finding("a", "c", 2, worst)))
    assert report.exit_code == code == report.as_json()["exit_code"] and report.passed == (code < 2)


def test_check_says_everything_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["check", "smoke", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert code == report["exit_code"] < 2
    assert {finding["part"] for finding in report["findings"]} >= {"machine", "memory", "disk", "ports", "time"}
    memory = report["memory"]
    always = sum(term["gib"] for term in memory["terms"] if term["phase"] == "always")
    assert always < memory["peak_gib"] and memory["range_gib"][0] < memory["peak_gib"] < memory["range_gib"][1]
    assert {card["machine"] for card in memory["cards"]} >= {"T4", "RTX 4090", "H100 80 GB"}
    assert set(report["time"]["stages_s"]) >= {"export", "verify"}


@pytest.mark.parametrize(("device", "lines"), [(CPU, 1), (T4, 0)])
def test_a_check_says_of_a_processor_whether_it_has_vllm(
    device: Machine, lines: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("toolkit.engine.machine.this_machine", lambda: device)
    monkeypatch.setattr("toolkit.preflight.machine.free_gib", lambda machine: None)
    main(["check", "smoke", "--json"])
    found = [each for each in json.loads(capsys.readouterr().out)["findings"] if each["what"] == "vLLM"]
    assert len(found) == lines and all(each["status"] == "ok" for each in found)


# Machine and memory -------------------------------------------------------------------------------------------


def test_an_old_card_computes_in_float16_and_gemma_stays_wide() -> None:
    recipe = load_recipe("gemma3-gsm8k", ["model.fast_inference=false"]).recipe
    found = {finding.what: finding for finding in machine_findings(recipe, T4)}
    assert "compute capability 7.5" in found["device"].value and "float16" in found["arithmetic"].value
    assert "float32" in found["Gemma without bfloat16"].value


def test_a_wish_that_this_machine_cannot_fulfil_is_a_warning() -> None:
    recipe = load_recipe("gemma3-gsm8k").recipe
    assert statuses(machine_findings(recipe, CPU))["model.fast_inference"] == "warning"


def test_what_does_not_fit_stops_with_the_key_to_turn() -> None:
    recipe = load_recipe("smollm2-gsm8k", ["grpo.per_device_train_batch_size=32"]).recipe
    small = Machine("cpu", True, "small", 2, 3.0)
    (peak, _), figures = memory_findings(recipe, shape_of(recipe.model), small, cards=False)
    assert peak.status == "failed" and "grpo.per_device_train_batch_size" in str(peak.hint)
    assert figures["change_first"][0]["saves_gib"] > 1 and "cards" not in figures


# Disk ---------------------------------------------------------------------------------------------------------


def test_every_step_has_its_share_of_the_disk() -> None:
    recipe = load_recipe("smoke", ["export.gguf=[q8_0]"]).recipe
    shape = shape_of(recipe.model)
    names = [need.what for need in [*run_needs(recipe, shape), *export_needs(recipe, shape)]]
    assert names == [
        "checkpoints (adapter and optimiser)", "adapters", "completions, at most", "merged folder", "GGUF q8_0", "GGUF f16",
    ]  # fmt: skip


def test_an_estimate_of_files_is_above_what_real_exports_take() -> None:
    """SmolLM2 135M exported on 2026-11-30: f16 270.9 MB, q8_0 144.8 MB, q4_k_m 105.5 MB, merged 271 MB."""
    recipe = load_recipe("smoke", ["export.gguf=[f16, q8_0, q4_k_m]"]).recipe
    sizes = {need.what: need.size / 1e6 for need in export_needs(recipe, shape_of(recipe.model))}
    for name, real in {"GGUF f16": 270.9, "GGUF q8_0": 144.8, "GGUF q4_k_m": 105.5, "merged folder": 268.0}.items():
        assert real < sizes[name] < 1.7 * real, name


def test_wide_weights_take_twice_the_disk_and_are_converted_at_their_width() -> None:
    recipe = load_recipe("smoke", ["export.gguf=[q8_0]", "export.merged_dtype=float32"]).recipe
    shape = shape_of(recipe.model)
    sizes = {need.what: need.size for need in export_needs(recipe, shape)}
    assert sizes["merged folder"] > 4 * shape.weights and set(sizes) == {"merged folder", "GGUF q8_0", "GGUF f32"}


def test_needs_on_one_file_system_add_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 100}))
    needs = [Need("a", 60, "runs"), Need("b", 60, "exports")]
    now = disk_findings(needs, now=frozenset({"runs"}))
    *_, together = now
    assert together.status == "warning" and together.hint  # training fits, the export will not
    *_, together = disk_findings(needs, now=frozenset({"runs", "exports"}))
    assert together.status == "failed"
    *_, together = disk_findings([Need("a", 60, "runs")], now=frozenset({"runs"}))
    assert together.status == "ok"


def test_a_folder_that_cannot_be_written_to_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert [finding.status for finding in writable_findings(["runs", "exports"])] == ["ok"]
    (tmp_path / "exports").write_text("")
    (bad,) = writable_findings(["runs", "exports"])
    assert (bad.what, bad.value, bad.status) == ("writing to exports", f"{tmp_path / 'exports'} is a file", "failed")
    monkeypatch.setenv("TOOLKIT_CACHE", "/proc/self/cache")
    (bad,) = writable_findings(["runs", "cache"])
    assert bad.status == "failed" and bad.what == "writing to /proc/self/cache" and "TOOLKIT_CACHE" in str(bad.hint)


def test_names_and_paths_that_are_too_long_are_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert [finding.status for finding in path_findings("smoke")] == ["ok"]
    (name,) = path_findings("r" * 240)
    assert name.status == "failed" and "bytes" in name.value
    monkeypatch.setattr(disk.os, "pathconf", lambda _, what: 60 if what == "PC_PATH_MAX" else 255)
    (path,) = path_findings("smoke")
    assert path.status == "failed" and "60 are allowed" in path.value


# Programs ------------------------------------------------------------------------------------------------------


def test_a_missing_converter_stops_only_what_needs_it_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    monkeypatch.setenv("TOOLKIT_LLAMA_CPP_DIR", str(tmp_path))
    recipe = load_recipe("smoke").recipe
    assert [finding.status for finding in llama_cpp(recipe, soon=False)] == ["warning"]
    assert [finding.status for finding in llama_cpp(recipe, soon=True)] == ["failed"]
    assert list(llama_cpp(load_recipe("smoke", ["export.gguf=[]"]).recipe, soon=True)) == []


def test_the_port_of_the_server_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    from toolkit.preflight import tools

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr(tools, "USUAL_PORT", taken.getsockname()[1])
        (found,) = serve_port()
        assert found.value == "in use" and "--port" in str(found.hint)
    assert next(serve_port()).value == "free"


# Time -----------------------------------------------------------------------------------------------------------


def recorded(runs: Path, recipe: Any, *, seconds: tuple[float, ...], tokens: int = 100) -> None:
    run = runs / "mine-20260101-000000"
    run.mkdir(parents=True)
    machine = {"device": CPU.device, "name": CPU.name, "threads": CPU.threads}
    (run / "manifest.json").write_text(json.dumps({"machine": machine}))
    (run / "recipe.json").write_text(recipe.model_dump_json())
    lines = [
        {"stage": "grpo", "step": step, "seconds": second, "completion_tokens": tokens, "completion_length": 5.0}
        for step, second in enumerate(seconds, start=1)
    ]
    (run / "metrics.jsonl").write_text("\n".join(json.dumps(line) for line in lines) + "\n{half")


def test_time_comes_from_earlier_runs_here_with_its_range(tmp_path: Path) -> None:
    recipe = small_recipe("org/model")  # 2 steps of 8 completions, at most 12 tokens
    recorded(tmp_path, recipe, seconds=(99.0, 10.0, 10.0, 10.0, 20.0))
    pace = recorded_pace(recipe, CPU, tmp_path)
    assert pace is not None and len(pace.seconds_per_token) == 4 and pace.completion_length == 5.0
    found = training_seconds(recipe, pace)
    assert found.likely == pytest.approx(2 * 8 * 5 * 0.1) and found.low == pytest.approx(found.likely)
    assert found.high == pytest.approx(2 * 8 * 12 * 0.17)  # the slowest tenth, completions as long as they may be
    answers = evaluation_seconds(recipe, pace, 60)
    assert answers.low < answers.likely < answers.high


def test_other_machines_models_and_short_runs_say_nothing(tmp_path: Path) -> None:
    recipe = small_recipe("org/model")
    recorded(tmp_path / "short", recipe, seconds=(1.0, 1.0))
    recorded(tmp_path / "other", small_recipe("org/other"), seconds=(1.0,) * 9)
    recorded(tmp_path / "here", recipe, seconds=(1.0,) * 9)
    assert recorded_pace(recipe, CPU, tmp_path / "short") is None
    assert recorded_pace(recipe, CPU, tmp_path / "other") is None
    assert recorded_pace(recipe, T4, tmp_path / "here") is None
    assert recorded_pace(recipe, CPU, tmp_path / "nowhere") is None


def test_files_take_time_by_their_size() -> None:
    small, large = files_seconds(10**9), files_seconds(2 * 10**9)
    assert large["verify"].likely == 2 * small["verify"].likely
    assert small["export"].low < small["export"].likely < small["export"].high


# The start of a training ------------------------------------------------------------------------------------------


def test_a_training_stops_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "exports").write_text("")
    with pytest.raises(ToolkitError, match="exports is a file") as caught:
        require_ready(load_recipe("smoke"))
    assert ANYWAY in str(caught.value.hint) and caught.value.exit_code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["exports"]
    assert main(["train", "smoke"]) == 2 and not (tmp_path / "runs").exists()
