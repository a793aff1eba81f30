"""The machine doctor: what is here is said as it is, what deviates is named with both versions, no secret and no network."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from toolkit.cli import main
from toolkit.doctor import MachineReport, abilities, examine_machine, hardware, versions
from toolkit.doctor.abilities import memory_estimate
from toolkit.doctor.hardware import Gpu, Hardware, parsed
from toolkit.preflight import Finding
from toolkit.recipe import list_recipes, load_recipe

ROOT = Path(__file__).parent.parent
SMALL = Hardware(gpus=(), threads=2, bf16=True, memory_gib=16.0, free_gib=8.0, disk_gib=50.0)
H100 = Gpu("NVIDIA H100", 80.0, "570.1")
BIG = Hardware(gpus=(H100,), threads=32, bf16=True, memory_gib=256.0, free_gib=200.0, disk_gib=500.0)
TOKEN = "hf_" + "x" * 34


@pytest.fixture(autouse=True)
def in_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)


def named(report: MachineReport, part: str, what: str) -> Finding:
    (finding,) = [finding for finding in report.findings if (finding.part, finding.what) == (part, what)]
    return finding


# What is here -----------------------------------------------------------------------------------------


def test_this_machine_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert code == (0 if report["well"] else 1)
    parts = {finding["part"] for finding in report["findings"]}
    assert {"machine", "versions", "hub", "llama.cpp"} <= parts
    assert {recipe["recipe"] for recipe in report["recipes"]} == {entry.name for entry in list_recipes()}
    assert main(["doctor"]) == code
    assert "what it can run" in capsys.readouterr().out


def test_a_gpu_is_read_from_its_driver() -> None:
    assert list(parsed("NVIDIA H200, 143771, 570.172.08\nGrid, A, [N/A], 1.2\n")) == [
        Gpu("NVIDIA H200", 140.4, "570.172.08"),
        Gpu("Grid, A", 0.0, "1.2"),
    ]


def test_a_gpu_that_is_not_used_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNSLOTH_FORCE_CPU", "1")
    (gpu,) = [finding for finding in hardware.findings(BIG) if finding.what == H100.name]
    assert gpu.status == "warning" and "UNSLOTH_FORCE_CPU" in str(gpu.hint)


def test_a_torch_without_cuda_beside_a_gpu_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "build", lambda package: "2.13.0+cpu")
    (gpu,) = [finding for finding in hardware.findings(BIG) if finding.what == H100.name]
    assert gpu.status == "warning"


def test_little_memory_and_a_full_disk_are_warnings() -> None:
    tight = Hardware(gpus=(), threads=1, bf16=False, memory_gib=2.0, free_gib=None, disk_gib=0.5)
    status = {finding.what: finding.status for finding in hardware.findings(tight)}
    assert status["memory, GiB"] == status["free disk here, GiB"] == "warning"


# Versions ---------------------------------------------------------------------------------------------


def test_a_version_outside_the_tested_set_is_named_with_both(tmp_path: Path) -> None:
    file = tmp_path / "set.txt"
    here = importlib.metadata.version("pydantic")
    file.write_text(
        f"# a set\npydantic==0.0.1  # old\nrich=={importlib.metadata.version('rich')}\nnowhere-at-all==1.0\n"
    )
    found = {finding.what: finding for finding in versions.findings(file)}
    assert found["pydantic"].value == f"{here}, tested with 0.0.1" and found["pydantic"].status == "warning"
    assert found["nowhere-at-all"].value == "not installed, tested with 1.0"
    assert found["as in requirements/set.txt"].value == "1 of 3 packages" and "rich" not in found


def test_without_the_requirements_it_says_so(tmp_path: Path) -> None:
    assert [finding.value for finding in versions.findings(tmp_path / "cpu.txt")][1:] == ["not here"]


def test_the_set_is_that_of_the_environment_else_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "made_for", lambda: None)
    assert versions.tested_set(gpu=True).name == "gpu.txt" and versions.tested_set(gpu=False).name == "cpu.txt"
    monkeypatch.setattr(versions, "made_for", lambda: "cpu")
    assert versions.tested_set(gpu=True).name == "cpu.txt"


def test_an_environment_for_processors_beside_a_gpu_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(versions, "made_for", lambda: "cpu")
    found = [
        finding for finding in versions.findings(tmp_path / "none", gpu=True) if finding.what == "this environment"
    ]
    assert [(finding.status, finding.hint) for finding in found] == [("warning", "make setup EXTRA=gpu")]
    assert all(finding.what != "this environment" for finding in versions.findings(tmp_path / "none"))


def test_what_set_up_wrote_down_says_which_set_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(versions.sys, "prefix", str(tmp_path))
    for text, extra in ((None, None), ("{", None), ("[]", None), ("{}", None), ('{"extra": "gpu"}', "gpu")):
        if text is not None:
            (tmp_path / "setup.json").write_text(text)
        assert versions.made_for() == extra


# The Hub ----------------------------------------------------------------------------------------------


def test_a_token_is_said_to_be_there_and_never_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert named(examine_machine(), "hub", "login").value == "a token is here"
    main(["doctor"])
    main(["doctor", "--json"])
    shown = capsys.readouterr()
    assert TOKEN not in shown.out + shown.err


def test_without_a_token_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
    login = named(examine_machine(), "hub", "login")
    assert login.value == "no token" and "hf auth login" in str(login.hint)


def test_the_hub_is_asked_only_on_request_and_its_absence_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert all(finding.what != "account" for finding in examine_machine().findings)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    account = named(examine_machine(ask_hub=True), "hub", "account")
    assert account.status == "warning" and TOKEN not in str(account)
    assert main(["doctor", "smoke", "--hub"]) == 2


# What can run -----------------------------------------------------------------------------------------


def can_run(machine: Hardware) -> dict[str, str]:
    return {ability.recipe: ability.can_run for ability in abilities.what_runs(machine)}


def why(machine: Hardware) -> dict[str, str]:
    return {ability.recipe: ability.why for ability in abilities.what_runs(machine)}


@pytest.fixture
def all_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abilities, "installed", lambda package: "1.0")
    monkeypatch.setattr(abilities, "_absent_package", lambda source: None)


@pytest.mark.usefixtures("all_installed")
def test_recipes_for_a_gpu_run_where_there_is_one() -> None:
    small = can_run(SMALL)
    assert small["smollm2-arithmetic"] == small["minimal"] == "yes"
    assert small["gemma3-gsm8k"] == "no" and "GPU" in why(SMALL)["gemma3-gsm8k"]
    assert set(can_run(BIG).values()) == {"yes"}


@pytest.mark.usefixtures("all_installed")
def test_too_little_memory_is_said_in_figures() -> None:
    weak = Hardware(gpus=(Gpu("small", 2.0, "1"),), threads=4, bf16=True, memory_gib=32.0, free_gib=None, disk_gib=50.0)
    reason = why(weak)["llama32-gsm8k"]
    assert can_run(weak)["llama32-gsm8k"] == "no" and re.search(
        r"needs about \d\.\d GiB of memory, there are 2.0", reason
    )


@pytest.mark.usefixtures("all_installed")
def test_what_must_come_from_the_hub_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.delenv("TOOLKIT_GSM8K_DIR", raising=False)
    assert why(BIG)["gemma3-gsm8k"] == "fetches from the Hub: unsloth/gemma-3-1b-it, openai/gsm8k"
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert can_run(BIG)["gemma3-gsm8k"] == "no" and "HF_HUB_OFFLINE" in why(BIG)["gemma3-gsm8k"]
    (tmp_path / "models--unsloth--gemma-3-1b-it" / "snapshots" / "abc").mkdir(parents=True)
    monkeypatch.setenv("TOOLKIT_GSM8K_DIR", str(tmp_path))
    assert can_run(BIG)["gemma3-gsm8k"] == "yes"


def test_four_bits_take_less_than_sixteen() -> None:
    four, sixteen = (
        memory_estimate(load_recipe("gemma3-gsm8k", [f"model.load_in_4bit={word}"]).recipe, BIG)
        for word in ("true", "false")
    )
    assert four and sixteen and four.gib < sixteen.gib


def test_a_model_whose_shape_is_not_known_is_not_guessed() -> None:
    assert memory_estimate(load_recipe("gemma3-gsm8k", ["model.source=org/model-1b"]).recipe, BIG) is None


# Quick, and without torch -----------------------------------------------------------------------------

_WITHOUT = """
import sys
from toolkit.cli import main
code = main(["doctor", "--json"])
heavy = [name for name in ("torch", "unsloth", "trl", "transformers", "datasets") if name in sys.modules]
print("LOADED", code, heavy, file=sys.stderr)
"""


def _base_packages(folder: Path) -> None:
    """Links to the packages that pyproject's base dependencies need, and to no other."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    wanted = re.findall(
        r'"([A-Za-z0-9.-]+)', text[text.index("\ndependencies") : text.index("\n]", text.index("\ndependencies"))]
    )
    done: set[str] = set()
    while wanted:
        name = wanted.pop().lower()
        if name in done:
            continue
        done.add(name)
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        plain = [line for line in found.requires or [] if "extra ==" not in line]
        wanted += [re.split(r"[^A-Za-z0-9._-]", line)[0] for line in plain]
        for top in {Path(str(file)).parts[0] for file in found.files or []} - {"..", "__pycache__"}:
            target = Path(str(found.locate_file(top)))
            if target.exists() and not (folder / top).exists():
                (folder / top).symlink_to(target)


def test_it_works_and_loads_nothing_where_torch_is_absent(tmp_path: Path) -> None:
    _base_packages(tmp_path)
    assert not (tmp_path / "torch").exists()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-S", "-c", _WITHOUT], capture_output=True, text=True, env=environment, cwd=ROOT
    )
    assert "LOADED 1 []" in done.stderr, done.stderr
    report = json.loads(done.stdout)
    values = {(finding["part"], finding["what"]): finding["value"] for finding in report["findings"]}
    assert values["training", "torch"] == "not installed"
    assert "not installed, tested with" in values["versions", "torch"]
    assert {recipe["can_run"] for recipe in report["recipes"]} == {"no"}


def test_it_loads_nothing_heavy_where_torch_is_there() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([os.environ["PYTHONPATH"], str(ROOT)])}
    done = subprocess.run([sys.executable, "-c", _WITHOUT], capture_output=True, text=True, env=environment, cwd=ROOT)
    assert re.search(r"LOADED [01] \[\]", done.stderr), done.stderr
