"""The versions of everything that a verdict rests on. It compares nothing."""

from __future__ import annotations

import importlib.metadata
import platform

from toolkit import __version__
from toolkit.llamacpp import versions

PACKAGES = ("torch", "transformers", "peft", "safetensors", "numpy", "scipy")


def used_versions(*, gguf: bool) -> dict[str, str]:
    """`gguf`: with llama.cpp's, which runs GGUF files only."""
    held = {"toolkit": __version__, "Python": platform.python_version()}
    held |= {name: importlib.metadata.version(name) for name in PACKAGES}
    return held | (versions() if gguf else {})
