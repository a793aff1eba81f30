"""What is made of the tiny run once a session: a pytest plugin, `pytest_plugins = ("exports",)`."""

from __future__ import annotations

from pathlib import Path

import pytest

from families import write_family_base
from merging import SMALL
from tiny import converted, merged_folder, need_llama_cpp, tiny_run, write_adapter, write_base  # noqa: F401  (tiny_run: a fixture of this plugin)


@pytest.fixture(autouse=True)
def few_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """An importance matrix reads a hundred prompts elsewhere."""
    monkeypatch.setattr("toolkit.export.calibration.PROMPTS", 6)


@pytest.fixture(scope="session")
def small_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a small Llama whose output head is tied to its embedding."""
    return write_base(tmp_path_factory.mktemp("small") / "base", **SMALL)


@pytest.fixture(scope="session")
def small_adapter(small_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Plain LoRA for four projections of each of its two layers."""
    return write_adapter(small_base, tmp_path_factory.mktemp("small") / "adapter")


@pytest.fixture(scope="session")
def merged_tiny(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """The merged folder of the tiny run: a Llama with SmolLM2's vocabulary."""
    return merged_folder(
        tiny_run.parent.parent / "base", tiny_run / "adapter", tmp_path_factory.mktemp("merged") / "out"
    )


@pytest.fixture(scope="session")
def tiny_gguf(merged_tiny: Path) -> Path:
    """It as a GGUF file in its own precision."""
    return converted(merged_tiny)


@pytest.fixture(scope="session")
def merged_small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A merged Gemma of 480 words, 256 wide: quick to quantise, and every type fits its rows."""
    need_llama_cpp()
    folder = tmp_path_factory.mktemp("small")
    write_family_base(folder / "base", "gemma")
    return merged_folder(folder / "base", write_adapter(folder / "base", folder / "adapter"), folder / "out")


@pytest.fixture(scope="session")
def small_gguf(merged_small: Path) -> Path:
    """It as a GGUF file in its own precision."""
    return converted(merged_small)
