"""What an export says of itself: the content of its manifest.json. It makes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict


class FilePart(BaseModel):
    """One of the files of a model that is too large for one."""

    model_config = ConfigDict(frozen=True)

    file: str
    sha256: str
    size_bytes: int


class ExportedFile(BaseModel):
    """One GGUF file, or the first of its `parts`: llama.cpp finds the others from it. `size_bytes` counts all parts,
    `sha256` is the first's. `tensor_types` counts what is in it, which for small models is not what the type's name
    says."""

    model_config = ConfigDict(frozen=True)

    file: str
    type: str
    sha256: str
    size_bytes: int
    tensor_types: dict[str, int]
    parts: list[FilePart] = []


class ExportRecord(BaseModel):
    """The export's manifest.json, and the folder that it lies in."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    run: str
    base: dict[str, Any]
    """Where the base came from, what was merged into (`merged_into`), whether that is lossy, and its hashes."""
    adapter: dict[str, Any]
    """Hashes of its files; after full fine-tuning there are none, and `trained` is the hash of the run's own weights."""
    merged: dict[str, Any]
    files: list[ExportedFile]
    versions: dict[str, str]
    warnings: list[str]
    folder: Path
    imatrix: dict[str, Any] | None = None
    """The importance matrix: its file, hash, and what it was computed from."""
    lora: dict[str, Any] | None = None
    """The adapter as a GGUF LoRA: its file, hash and size."""
    bundle: dict[str, Any] = {}
    """What lies beside the files for the programs that use them: hashes, and how Ollama's template was checked."""
