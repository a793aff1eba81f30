"""The certificate as data: checks, files, verdict. It measures nothing."""

from __future__ import annotations

import math
from typing import Any

from pydantic import BaseModel, ConfigDict


class Check(BaseModel):
    """One fact about one file: what was measured, what was allowed, and why that is the limit."""

    model_config = ConfigDict(frozen=True)

    name: str
    value: Any
    limit: Any = None
    passed: bool
    why: str = ""


class FileResult(BaseModel):
    """All checks of one file, and what it costs; `type` is `merged` for the folder of all weights."""

    model_config = ConfigDict(frozen=True)

    file: str
    """The folder, or the file; of one in shards the first."""
    type: str
    sha256: str | None
    """Of `file`; None for a folder."""
    hashes: dict[str, str] = {}
    """Name -> SHA-256 of every file that belongs to it, all shards, all files of the folder: what this verdict is about."""
    size_bytes: int
    passed: bool
    checks: list[Check]
    tensor_types: dict[str, int] = {}
    bits_per_weight: float | None = None
    perplexity: float | None = None
    task: dict[str, Any] = {}
    tokens_per_second: dict[str, float] = {}
    """`prefill` and `decode`, per second of processor time on one thread: to compare files with, not machines."""
    memory_bytes: int | None = None
    """Weights, and the key-value cache of one chat of the recipe's longest length."""
    seconds: float

    def value(self, name: str) -> Any:
        """What the check of this name measured; None where there is none."""
        return next((check.value for check in self.checks if check.name == name), None)


class VerifyRecord(BaseModel):
    """verify.json. `files` are the GGUF files, `merged` is the folder that they are compared with."""

    model_config = ConfigDict(frozen=True)

    run: str
    passed: bool
    date: str = ""
    """UTC."""
    base: str = ""
    """What was merged into, as the manifest names it."""
    lossy_base: bool = False
    """Merged into weights that were computed back from 4 bits."""
    full_finetuning: bool = False
    """All weights were trained: there is no adapter."""
    recommended: str | None = None
    recommendation: str = ""
    """Why this file, in words."""
    files: list[FileResult]
    merged: FileResult
    adapter: dict[str, str] = {}
    """Name -> SHA-256 of the adapter's files in the export."""
    reference: dict[str, Any]
    versions: dict[str, str]
    seconds: float


def at_most(name: str, value: float, limit: float, why: str) -> Check:
    """Passed when the value is a number and within the limit: nan never is."""
    return Check(name=name, value=_number(value), limit=limit, passed=bool(value <= limit), why=why)


def at_least(name: str, value: float, limit: float, why: str) -> Check:
    return Check(name=name, value=_number(value), limit=limit, passed=bool(value >= limit), why=why)


def within(name: str, value: float, limit: tuple[float, float], why: str) -> Check:
    passed = bool(limit[0] <= value <= limit[1])
    return Check(name=name, value=_number(value), limit=list(limit), passed=passed, why=why)


def equal(name: str, value: Any, expected: Any, why: str) -> Check:
    return Check(name=name, value=value, limit=expected, passed=value == expected, why=why)


def noted(name: str, value: Any, why: str) -> Check:
    """A value for the reader, without a limit."""
    return Check(name=name, value=_number(value) if isinstance(value, float) else value, passed=True, why=why)


def failed(name: str, value: Any, why: str) -> Check:
    return Check(name=name, value=value, passed=False, why=why)


def _number(value: float) -> float | None:
    """JSON has no nan; null says that there was no number. Counts stay whole."""
    if isinstance(value, int):
        return value
    value = float(value)
    return float(f"{value:.6g}") if math.isfinite(value) else None
