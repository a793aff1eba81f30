"""Reads JSON lines with their line numbers: UTF-8 in any locale, numbers exactly. It knows no columns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

from toolkit.answers import json_int
from toolkit.errors import DataError


def read_jsonl(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Every object of the file with its line number, counted from 1. Blank lines are skipped."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, _object(path, number, line)
    except OSError as cause:
        raise DataError(f"the file cannot be read: {cause.strerror or cause}", where=str(path)) from cause


def _object(path: Path, number: int, line: bytes) -> dict[str, Any]:
    where = f"{path}:{number}"
    try:
        text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        value = json.loads(text, parse_int=json_int, parse_float=Decimal)
    except UnicodeDecodeError as cause:
        raise DataError(f"the line is not UTF-8 (byte {cause.start + 1})", where=where) from cause
    except (ValueError, RecursionError) as cause:
        raise DataError(f"the line is not JSON: {cause}", where=where, hint="one JSON object a line") from cause
    if not isinstance(value, dict):
        raise DataError(
            f"the line holds a JSON {_kind(value)}, not an object", where=where, hint="one JSON object a line"
        )
    return value


def _kind(value: object) -> str:
    kinds: dict[type, str] = {list: "list", str: "text", bool: "boolean", type(None): "null"}
    return kinds.get(type(value), "number")
