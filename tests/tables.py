"""Writes the same rows as CSV, JSON, JSON lines and parquet, as people's tools do."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Rows = Sequence[dict[str, Any]]


def write(path: Path, rows: Rows) -> Path:
    """The rows in the format that the suffix says."""
    {".csv": _csv, ".json": _json, ".jsonl": _jsonl, ".parquet": _parquet}[path.suffix](path, rows)
    return path


def _csv(path: Path, rows: Rows) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows([{key: _cell(value) for key, value in row.items()} for row in rows])


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list) else value


def _json(path: Path, rows: Rows) -> None:
    path.write_text(json.dumps(list(rows), ensure_ascii=False, indent=1, default=str), encoding="utf-8")


def _jsonl(path: Path, rows: Rows) -> None:
    path.write_text("".join(json.dumps(row, default=str) + "\n" for row in rows), encoding="utf-8")


def _parquet(path: Path, rows: Rows) -> None:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
