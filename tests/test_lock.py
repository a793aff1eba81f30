"""requirements/gpu.txt holds what its inputs ask for, complete and by hashes; on request the package index is asked, too."""

from __future__ import annotations

import importlib.metadata
import importlib.util
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
from packaging.version import Version

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "requirements"
TEXT = (FOLDER / "gpu.txt").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ASK = os.environ.get("CI") == "true" or os.environ.get("REQUIRE_INDEX") == "1"


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lock_under_test", ROOT / "scripts" / "lock.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look their module up
    spec.loader.exec_module(module)
    return module


lock = _script()
LOCKED = lock.parsed(TEXT)
MARKERS = [{"python_version": python, "python_full_version": f"{python}.1", "platform_system": "Linux", "extra": "",
            "sys_platform": "linux", "platform_machine": "x86_64", "implementation_name": "cpython",
            "platform_python_implementation": "CPython"} for python in ("3.11", "3.12")]  # fmt: skip


def versions(python: str) -> dict[str, str]:
    """What is installed for this Python."""
    return {
        name: each.version for (name, marker), each in LOCKED.items() if marker in ("", f'python_version == "{python}"')
    }


def inputs() -> list[Requirement]:
    lines = (FOLDER / "gpu.in").read_text(encoding="utf-8").splitlines()
    own = [line.partition("#")[0].strip() for line in lines]
    extras = PROJECT["optional-dependencies"]
    return [
        Requirement(line) for line in [*filter(None, own), *PROJECT["dependencies"], *extras["gpu"], *extras["serve"]]
    ]


# Offline ----------------------------------------------------------------------------------------------


def test_every_line_is_read() -> None:
    assert lock.text(LOCKED) == TEXT
    assert len(LOCKED) > 200


@pytest.mark.parametrize("python", ["3.11", "3.12"])
def test_the_lock_holds_what_its_inputs_ask_for(python: str) -> None:
    held = versions(python)
    for need in inputs():
        version = held.get(canonicalize_name(need.name))
        assert version and need.specifier.contains(version, prereleases=True), f"{need}: {version} (make lock)"


def test_every_file_has_its_hash_and_no_version_is_local() -> None:
    for (name, _), each in LOCKED.items():
        assert each.hashes and all(re.fullmatch(r"[0-9a-f]{64}", digest) for digest in each.hashes), name
        assert Version(each.version).local is None, name
    assert {marker for _, marker in LOCKED} <= {"", 'python_version == "3.11"', 'python_version == "3.12"'}


def test_it_names_no_index_and_no_folder() -> None:
    lines = [line for line in TEXT.splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==\S+( ; .*)? \\|    --hash=sha256:\w+( \\)?", line) for line in lines)
    assert "/" not in re.sub("requirements/|scripts/", "", "".join(set(TEXT.splitlines()) - set(lines)))


@pytest.mark.parametrize("environment", MARKERS, ids=lambda each: each["python_version"])
def test_what_the_locked_packages_need_is_locked(environment: dict[str, str]) -> None:
    """As far as the same versions are installed here, whose metadata says what they need."""
    held, seen = versions(environment["python_version"]), 0
    for name, version in held.items():
        try:
            here = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if here.version.partition("+")[0] != version:
            continue
        seen += 1
        for need in map(Requirement, here.requires or []):
            if need.name in lock.LEFT_OUT or (need.marker and not need.marker.evaluate(environment)):
                continue
            found = held.get(canonicalize_name(need.name))
            assert found and need.specifier.contains(found, prereleases=True), f"{name} needs {need}, locked is {found}"
    assert seen > 90


def test_a_version_unlike_the_cpu_sets_stands_with_its_reason_in_the_inputs() -> None:
    of_cpu = dict(re.findall(r"^([\w.-]+)==(\S+)", (FOLDER / "cpu.txt").read_text(encoding="utf-8"), re.MULTILINE))
    reasons = re.findall(r"^([\w.-]+)==(\S+) # \S+ ", (FOLDER / "gpu.in").read_text(encoding="utf-8"), re.MULTILINE)
    for python in ("3.11", "3.12"):
        held = versions(python)
        different = {(name, held[name]) for name, version in of_cpu.items() if name in held and held[name] != version}
        assert different == set(reasons)
        assert set(of_cpu) - set(held) == set(), "the toolkit's own packages belong to both sets"


# With the index ---------------------------------------------------------------------------------------


@pytest.mark.skipif(not ASK, reason="asks the package index for metadata: set REQUIRE_INDEX=1 (CI does it as CI=true)")
def test_the_index_resolves_the_inputs_to_the_lock() -> None:
    """It downloads no wheel. Without an index it is skipped, unless REQUIRE_INDEX=1."""
    command = [sys.executable, str(ROOT / "scripts" / "lock.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if done.returncode == lock.UNREACHABLE and os.environ.get("REQUIRE_INDEX") != "1":
        pytest.skip("the package index cannot be reached")
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_index_that_does_not_answer_is_told_from_a_set_that_does_not_exist() -> None:
    environment = os.environ | {
        "UV_DEFAULT_INDEX": "http://127.0.0.1:9/simple",
        "UV_NO_CACHE": "1",
        "UV_HTTP_RETRIES": "0",
    }
    command = [sys.executable, str(ROOT / "scripts" / "lock.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == lock.UNREACHABLE and "cannot be reached" in done.stderr


# How a lock is made -----------------------------------------------------------------------------------


def locked(version: str, *hashes: str) -> object:
    return lock.Locked(version, frozenset(hashes))


def test_what_serves_both_pythons_is_one_line_and_the_rest_one_each() -> None:
    found = {
        "3.12": {"same": locked("1", "a", "b"), "other": locked("2", "c")},
        "3.11": {"same": locked("1", "a", "d"), "other": locked("3", "e"), "old": locked("4", "f")},
    }
    made = lock.together(found)
    assert made == {
        ("old", 'python_version == "3.11"'): locked("4", "f"),
        ("other", 'python_version == "3.11"'): locked("3", "e"),
        ("other", 'python_version == "3.12"'): locked("2", "c"),
        ("same", ""): locked("1", "a", "b", "d"),
    }
    assert lock.parsed(lock.text(made)) == made


def test_the_source_is_taken_only_where_there_is_no_wheel() -> None:
    files = {"sdist": {"hashes": {"sha256": "s"}}, "wheels": [{"hashes": {"sha256": "w"}}]}
    pylock = {
        "packages": [{"name": "a", "version": "1", **files}, {"name": "b", "version": "2", "sdist": files["sdist"]}]
    }
    assert dict(lock.packages(pylock)) == {"a": locked("1", "w"), "b": locked("2", "s")}


@pytest.mark.parametrize(
    ("fresh", "told"),
    [
        ({("a", ""): ("1", "xyz")}, []),
        ({("a", ""): ("2", "x")}, ["a is 1 where 2 is resolved"]),
        ({("a", ""): ("1", "z")}, ["a has hashes that the index does not know"]),
        ({}, ["a is not needed"]),
        ({("a", ""): ("1", "xy"), ("b", ""): ("1", "z")}, ["b is missing"]),
    ],
)
def test_a_check_tells_what_differs(fresh: dict, told: list[str]) -> None:
    held = {("a", ""): locked("1", "x", "y")}
    assert (
        list(lock.differences(held, {key: locked(version, *hashes) for key, (version, hashes) in fresh.items()}))
        == told
    )


def test_uv_asks_pips_main_index_and_nothing_local(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("UV_DEFAULT_INDEX", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"PIP_INDEX_URL": "https://index.example/simple", "PIP_FIND_LINKS": "wheels", "UV_FIND_LINKS": "wheels",
                        "PIP_CERT": "ca.crt", "PIP_EXTRA_INDEX_URL": "https://more.example"}.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    made = lock.environment()
    assert (made["UV_DEFAULT_INDEX"], made["SSL_CERT_FILE"]) == ("https://index.example/simple", "ca.crt")
    assert not {"UV_FIND_LINKS", "UV_INDEX", "UV_EXTRA_INDEX_URL"} & set(made)
