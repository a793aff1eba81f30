"""Puts damaged files into an export, and reads the verdicts on them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from toolkit.atomic import sha256_of
from toolkit.verify import verify_export
from toolkit.verify.record import FileResult

F16, Q4 = "tiny-f16.gguf", "tiny-q4_k_m.gguf"


def with_files(export: Path, source: Path, damages: dict[str, Callable[[Path], object]], kind: str = "f16") -> None:
    """Put a damaged copy of `source` into the export for each name. The manifest agrees with every byte of them, so that
    the deeper checks have to find what is wrong."""
    manifest = json.loads((export / "manifest.json").read_text())
    for name, damage in damages.items():
        path = export / f"{name}-{kind}.gguf"
        shutil.copyfile(source, path)
        damage(path)
        manifest["files"].append({"file": path.name, "type": kind, "sha256": hash_of(path)})
    (export / "manifest.json").write_text(json.dumps(manifest))


def hash_of(path: Path) -> str | None:
    return sha256_of(path) if path.is_file() else None


def verdicts_of(export: Path, **options: Any) -> dict[str, FileResult]:
    """By file, without the type's name; the merged folder as `merged`."""
    record = verify_export(export, **options)
    results = {result.file.removesuffix(".gguf").rpartition("-")[0]: result for result in record.files}
    return results | {"merged": record.merged}


def failed_checks(result: FileResult) -> set[str]:
    names = {check.name for check in result.checks if not check.passed}
    assert result.passed == (not names)
    return names
