"""Exports of tiny runs, made once a session: a pytest plugin, `pytest_plugins = ("exports", "certified")`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tiny import exported, write_adapter


@pytest.fixture(scope="session")
def good_export(tiny_run: Path) -> Path:
    return exported(tiny_run, tiny_run.parents[1] / "exports" / "tiny").folder


@pytest.fixture(scope="session")
def base_export(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same export with an adapter that changes nothing: GGUF files of the base."""
    return _sibling(tiny_run, tmp_path_factory.mktemp("untouched"), strength=0.0)


@pytest.fixture(scope="session")
def other_export(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another run from the same base: its adapter goes another way."""
    return _sibling(tiny_run, tmp_path_factory.mktemp("other"), r=8)


def _sibling(run: Path, folder: Path, **adapter: Any) -> Path:
    """The export of the run with another adapter. The run keeps its name, which goes into the files' names."""
    copy = folder / run.name
    shutil.copytree(run, copy)
    shutil.rmtree(copy / "adapter")
    write_adapter(run.parents[1] / "base", copy / "adapter", **adapter)
    return exported(copy, folder / "export").folder


@pytest.fixture
def export(good_export: Path, tmp_path: Path) -> Path:
    """A copy to break; files share their bytes with the original until they are replaced."""
    shutil.copytree(good_export, tmp_path / "export", copy_function=os.link)
    return tmp_path / "export"
