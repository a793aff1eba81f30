"""What is made of the tiny run once a session: a pytest plugin, `pytest_plugins = ("exports",)`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiny import merged_folder, tiny_run  # noqa: F401  (tiny_run is a fixture of this plugin, too)


@pytest.fixture(scope="session")
def merged_tiny(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """The merged folder of the tiny run."""
    return merged_folder(
        tiny_run.parent.parent / "base", tiny_run / "adapter", tmp_path_factory.mktemp("merged") / "out"
    )


@pytest.fixture(scope="session")
def source_gguf(merged_tiny: Path) -> Path:
    """It as a GGUF file in its own precision."""
    from toolkit.llamacpp import convert

    path = merged_tiny.parent / "source.gguf"
    convert(merged_tiny, path, outtype="bf16", name="tiny")
    return path
