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
    """All checks of one file; `type` is `merged` for the 16-bit folder."""

    model_config = ConfigDict(frozen=True)

    file: str
    type: str
    sha256: str | None
    size_bytes: int
    passed: bool
    checks: list[Check]
    tensor_types: dict[str, int] = {}
    task: dict[str, Any] = {}
    seconds: float


class VerifyRecord(BaseModel):
    """verify.json. `files` are the GGUF files, `merged` is the folder that they are compared with."""

    model_config = ConfigDict(frozen=True)

    run: str
    passed: bool
    files: list[FileResult]
    merged: FileResult
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
    """JSON has no nan; null says that there was no number."""
    value = float(value)
    return float(f"{value:.6g}") if math.isfinite(value) else None
