"""Verify: shows, with numbers, that the files of an export answer as the trained model does. It mends
nothing.

Everything is compared with the merged model in fp32 through plain transformers, and that one with base and
adapter through PEFT; the GGUF files run in llama.cpp. Limits and their reasons stand in `limits`.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from toolkit import console
from toolkit.errors import ExportError, ToolkitError
from toolkit.llamacpp import FILE_TYPES, GgufFile, open_model, try_file, versions
from toolkit.rundir import SCHEMA, ExportDir, read_json, sha256_of, write_json
from toolkit.verify.gguf_checks import (
    Weights,
    check_adapter_in_weights,
    check_answers,
    check_header,
    check_predictions,
    check_tokens,
)
from toolkit.verify.material import Material, gather, sample_weights
from toolkit.verify.merged_checks import check_bytes, check_model, check_weights, task_summary
from toolkit.verify.record import Check, FileResult, VerifyRecord, equal, failed
from toolkit.verify.reference import quiet

PROBLEMS = 16
"""Held-out problems whose greedy answers are graded: as many sequences as llama.cpp runs side by side
here."""

ADAPTER = "adapter"


def verify_export(export: Path, *, problems: int = PROBLEMS) -> VerifyRecord:
    """Check the merged folder and every GGUF file, write verify.json, and return it, passed or not."""
    from toolkit.engine.source import base_checkpoint
    from toolkit.recipe import load_resolved

    started, target = time.monotonic(), ExportDir(export)
    manifest = read_json(target.manifest)
    if not target.merged.is_dir():
        raise ToolkitError(
            "the export has no merged folder to compare with", where=str(export), hint="toolkit export RUN"
        )
    recipe = load_resolved(target.recipe).recipe
    base, adapter = base_checkpoint(recipe.model), export / ADAPTER
    with quiet():
        weight_checks, changed = check_weights(base, target.merged, adapter)
        material = gather(recipe, base=base, merged=target.merged, adapter=adapter, problems=problems)
    merged = _merged_result(target.merged, manifest, base, weight_checks, material, time.monotonic() - started)
    weights = sample_weights(base, target.merged, changed)
    files = [_check_file(export / name, kind, manifest, material, weights) for name, kind in _files(export, manifest)]
    record = VerifyRecord(
        run=manifest["run"],
        passed=merged.passed and all(file.passed for file in files),
        files=files,
        merged=merged,
        reference={"texts": len(material.texts), "tokens": sum(len(rows) for rows in material.tuned)},
        versions=versions() if files else {},
        seconds=round(time.monotonic() - started, 1),
    )
    write_json(target.certificate, {"schema": SCHEMA, **record.model_dump(mode="json")})
    show(record)
    return record


def _files(export: Path, manifest: dict[str, Any]) -> list[tuple[str, str]]:
    """Files of the manifest, and any other GGUF file that lies there, with their types."""
    listed = {entry["file"]: entry["type"] for entry in manifest["files"]}
    for path in sorted(export.glob("*.gguf")):
        fitting = [kind for kind in FILE_TYPES if path.stem.endswith(kind)]
        listed.setdefault(path.name, max(fitting, key=len, default="f16"))
    return list(listed.items())


def _merged_result(
    folder: Path,
    manifest: dict[str, Any],
    base: Path,
    checks: list[Check],
    material: Material,
    seconds: float,
) -> FileResult:
    same_base = {path.name: sha256_of(path) for path in sorted(base.glob("*.safetensors"))} == manifest["base"][
        "sha256"
    ]
    checks = [
        check_bytes(folder, manifest["merged"]["sha256"]),
        equal("same base", same_base, True, "SHA-256 of the base's weights as at the export"),
        *checks,
        *check_model(material),
    ]
    return FileResult(
        file=folder.name,
        type="merged",
        sha256=None,
        size_bytes=sum(path.stat().st_size for path in folder.iterdir()),
        passed=all(check.passed for check in checks),
        checks=checks,
        task=task_summary(material),
        seconds=round(seconds, 1),
    )


def _check_file(path: Path, kind: str, manifest: dict[str, Any], material: Material, weights: Weights) -> FileResult:
    started = time.monotonic()
    expected = {entry["file"]: entry["sha256"] for entry in manifest["files"]}.get(path.name)
    checks: list[Check] = []
    digest, types, task = None, {}, {}
    try:
        if not path.is_file():
            raise ExportError("the file is missing", where=str(path))
        digest = sha256_of(path)
        checks.append(equal("unchanged since export", digest, expected, "SHA-256 as in manifest.json"))
        types, task = _check_contents(path, kind, material, weights, checks)
    except ExportError as error:
        # The named boundary: a file that cannot be opened or run is a verdict about the file.
        checks.append(failed("opens", None, error.message))
    return FileResult(
        file=path.name,
        type=kind,
        sha256=digest,
        size_bytes=path.stat().st_size if path.is_file() else 0,
        passed=bool(checks) and all(check.passed for check in checks),
        checks=checks,
        tensor_types=types,
        task=task,
        seconds=round(time.monotonic() - started, 1),
    )


def _check_contents(
    path: Path, kind: str, material: Material, weights: Weights, checks: list[Check]
) -> tuple[dict[str, int], dict[str, Any]]:
    """Append to `checks`, so that those made before a failure are kept."""
    file = GgufFile(path)
    checks += check_header(file, kind, material)
    try_file(path, [chat.text for chat in material.spoken.chats])
    checks.append(check_adapter_in_weights(file, kind, weights))
    longest = max(len(text.ids) for text in material.texts)
    room = max(longest, max(map(len, material.asked.prompts)) + material.asked.max_new) + 8
    with open_model(path, context=room, sequences=len(material.asked.prompts)) as model:
        checks += check_tokens(model, material)
        checks += check_predictions(model, kind, material)
        answers, task = check_answers(model, material)
        checks += answers
    return file.tensor_types, task


def show(record: VerifyRecord) -> None:
    """One table for a reader, and every check that failed."""
    rows = [_row(result) for result in [record.merged, *record.files]]
    columns = ("file", "MB", "mean KL", "top-1", "adapter", "right", "verdict")
    console.table(f"verify: {'passed' if record.passed else 'FAILED'} in {record.seconds:.0f} s", columns, rows)
    for result in [record.merged, *record.files]:
        for check in (check for check in result.checks if not check.passed):
            limit = "" if check.limit is None else f", allowed {check.limit}"
            console.warn(console.untrusted(f"{result.file}: {check.name}: {check.value}{limit} ({check.why})"))


def _row(result: FileResult) -> tuple[str, ...]:
    values = {check.name: check.value for check in result.checks}
    kl = values.get("mean KL", values.get("KL to base + adapter"))
    adapter = values.get("adapter in the weights", values.get("share of the adapter"))
    top1 = values.get("top-1 agreement")
    right = f"{result.task['strict']}/{result.task['n']}" if "strict" in result.task else "–"
    return (
        console.untrusted(result.file),
        f"{result.size_bytes / 1e6:.0f}",
        "–" if kl is None else f"{kl:.1e}",
        "–" if top1 is None else f"{top1:.3f}",
        "–" if adapter is None else f"{adapter:.2f}",
        right,
        "passed" if result.passed else "FAILED",
    )
