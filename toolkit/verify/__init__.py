"""Verify: shows, with numbers, that the files of an export answer as the trained model does. It mends
nothing.

Everything is compared with the merged model in fp32 through plain transformers, and that one with what was trained, base and
adapter through PEFT or all weights; the GGUF files run in llama.cpp. Limits and their reasons stand in `limits`, the words for
readers in docs/export.md.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from toolkit import console
from toolkit.atomic import read_json, sha256_of, write_json, writing
from toolkit.errors import ToolkitError
from toolkit.rundir import RUNS, SCHEMA, WHOLE_WEIGHTS, ExportDir, RunDir
from toolkit.verify.certificate import write_certificate
from toolkit.verify.contents import Folders
from toolkit.verify.files import Shipped, check_adapter_file, check_file, shipped_files
from toolkit.verify.material import Material, gather
from toolkit.verify.merged_checks import (
    cannot_open,
    check_bytes,
    check_model,
    check_weights,
    hashes_of,
    task_summary,
)
from toolkit.verify.recommend import recommend
from toolkit.verify.record import Check, FileResult, VerifyRecord, equal, failed
from toolkit.verify.reference import quiet
from toolkit.verify.table import COLUMNS, rows
from toolkit.verify.versions import used_versions

ADAPTER = "adapter"
TERMINAL = ("file", "MB", "mean KL", "top-1", "training", "right", "speed", "verdict")
"""Columns that fit there; CERTIFICATE.md has all."""


def verify_export(export: Path, *, problems: int | None = None) -> VerifyRecord:
    """Check the merged folder and every GGUF file, write verify.json and CERTIFICATE.md, and return the record, passed or
    not. `problems`: how many held-out problems to ask; None: as many as are affordable for a model of this size."""
    started, target = time.monotonic(), ExportDir(export)
    manifest = read_json(target.manifest)
    if not target.merged.is_dir():
        raise ToolkitError(
            "the export has no merged folder to compare with", where=str(export), hint="toolkit export RUN"
        )
    trained = _trained(target, manifest)
    fault = cannot_open(target.merged) or (cannot_open(trained) if trained else _no_weights(manifest))
    record = (
        _compared(target, manifest, trained, problems)
        if trained and not fault
        else _unopened(target, manifest, fault or "")
    )
    record = record.model_copy(update={"seconds": round(time.monotonic() - started, 1)})
    with writing(export):
        _write(target, record)
    show(record)
    return record


def _trained(target: ExportDir, manifest: dict[str, Any]) -> Path | None:
    """The adapter that was merged; after full fine-tuning the run's own weights, found by their hash, where they still are."""
    if not manifest["adapter"].get("full_finetuning"):
        return target.path / ADAPTER
    beside = target.path.resolve().parents[1] / RUNS
    folders = [RunDir(runs / manifest["run"]).whole for runs in (RUNS, beside)]
    return next((folder for folder in folders if _is_of(folder / WHOLE_WEIGHTS, manifest["adapter"]["trained"])), None)


def _is_of(file: Path, digest: str) -> bool:
    return file.is_file() and sha256_of(file) == digest


def _no_weights(manifest: dict[str, Any]) -> str:
    return f"the weights as they were trained are not in {RUNS / manifest['run']}: verify where the run is"


def _compared(target: ExportDir, manifest: dict[str, Any], trained: Path, problems: int | None) -> VerifyRecord:
    from toolkit.engine.sixteen_bit import merge_base
    from toolkit.recipe import load_resolved

    started = time.monotonic()
    recipe = load_resolved(target.recipe).recipe
    base = merge_base(recipe.model, recipe.export).folder
    with quiet():
        weight_checks, changed = check_weights(base, target.merged, trained, wide=recipe.export.is_wide)
        material = gather(recipe, base=base, merged=target.merged, adapter=trained, problems=problems)
    folders, hashes = Folders(base, target.merged, frozenset(changed)), hashes_of(target.merged)
    checks = [*weight_checks, *_merged_checks(target, manifest, folders, hashes, material)]
    spent = round(time.monotonic() - started, 1)
    merged = _merged_result(target.merged, hashes, checks, task=task_summary(material), seconds=spent)
    files = _file_results(target.path, manifest, folders, material)
    return _record(target, manifest, material, merged, files)


def _unopened(target: ExportDir, manifest: dict[str, Any], fault: str) -> VerifyRecord:
    """The verdict where there is nothing to compare with."""
    hashes = hashes_of(target.merged)
    same = check_bytes("unchanged since export", hashes, manifest["merged"]["sha256"])
    merged = _merged_result(target.merged, hashes, [same, failed("opens", None, fault)], task={}, seconds=0.0)
    return VerifyRecord(
        run=manifest["run"],
        passed=False,
        date=_now(),
        base=_base_name(manifest),
        recommendation="no GGUF file was compared",
        files=[],
        merged=merged,
        adapter=hashes_of(target.path / ADAPTER),
        reference={"texts": 0, "tokens": 0, "problems": 0},
        versions=used_versions(gguf=False),
        seconds=0.0,
    )


def _file_results(export: Path, manifest: dict[str, Any], folders: Folders, material: Material) -> list[FileResult]:
    """Every model first; the adapter's own file is then put on the one with the most bits."""
    models = shipped_files(export, manifest)
    results = [check_file(shipped, material, folders) for shipped in models]
    opened = [(result, shipped) for result, shipped in zip(results, models, strict=True) if result.bits_per_weight]
    widest = max(opened, key=lambda pair: pair[0].bits_per_weight or 0.0, default=None)
    if manifest.get("lora"):
        entry = manifest["lora"]
        path = export / entry["file"]
        lora = Shipped(path, "lora", {path.name: entry["sha256"]}, folder=f"{path.parent.name}/")
        results.append(check_adapter_file(lora, material, folders, widest[1] if widest else None))
    return results


def _merged_checks(
    target: ExportDir, manifest: dict[str, Any], folders: Folders, hashes: dict[str, str], material: Material
) -> list[Check]:
    base_hashes = {name: digest for name, digest in hashes_of(folders.base).items() if name.endswith(".safetensors")}
    return [
        check_bytes("unchanged since export", hashes, manifest["merged"]["sha256"]),
        *_check_adapter(target, manifest["adapter"]),
        equal(
            "same base",
            base_hashes == manifest["base"]["sha256"],
            True,
            "SHA-256 of the base's weights as at the export",
        ),
        *_check_imatrix(target.path, manifest.get("imatrix")),
        *check_model(material),
    ]


def _check_adapter(target: ExportDir, adapter: dict[str, Any]) -> list[Check]:
    """Of full fine-tuning `_trained` has compared the hash, and there must be no adapter."""
    held = hashes_of(target.path / ADAPTER)
    name = "no adapter" if adapter.get("full_finetuning") else "adapter unchanged"
    return [check_bytes(name, held, adapter["sha256"])]


def _check_imatrix(export: Path, imatrix: dict[str, Any] | None) -> list[Check]:
    """It is shipped beside the files that were quantised with it, and is no model."""
    if imatrix is None:
        return []
    path = export / imatrix["file"]
    held = {path.name: sha256_of(path)} if path.is_file() else {}
    return [check_bytes("importance matrix unchanged", held, {path.name: imatrix["sha256"]})]


def _merged_result(
    folder: Path, hashes: dict[str, str], checks: list[Check], *, task: dict[str, Any], seconds: float
) -> FileResult:
    result = FileResult(
        file=folder.name,
        type="merged",
        sha256=None,
        hashes=hashes,
        size_bytes=sum(path.stat().st_size for path in folder.iterdir()),
        passed=all(check.passed for check in checks),
        checks=checks,
        task=task,
        seconds=seconds,
    )
    return result.model_copy(update={"perplexity": result.value("perplexity")})


def _record(
    target: ExportDir, manifest: dict[str, Any], material: Material, merged: FileResult, files: list[FileResult]
) -> VerifyRecord:
    recommended, why = recommend([file for file in files if file.type != "lora"])
    counts = {
        "texts": len(material.texts),
        "tokens": sum(map(len, material.tuned)),
        "problems": len(material.asked.rows),
    }
    return VerifyRecord(
        run=manifest["run"],
        passed=merged.passed and all(file.passed for file in files),
        date=_now(),
        base=_base_name(manifest),
        lossy_base=manifest["base"].get("merged_into", {}).get("lossy", False),
        full_finetuning=manifest["adapter"].get("full_finetuning", False),
        recommended=recommended,
        recommendation=why,
        files=files,
        merged=merged,
        adapter=hashes_of(target.path / ADAPTER),
        reference=counts,
        versions=used_versions(gguf=bool(files)),
        seconds=0.0,
    )


def _base_name(manifest: dict[str, Any]) -> str:
    """A Hub's name, or a folder's without the way to it."""
    base = manifest["base"]
    return base["merged_into"]["name"] if "merged_into" in base else Path(base["source"]).name


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())


def _write(target: ExportDir, record: VerifyRecord) -> None:
    """The certificate for readers never says more than verify.json, nor stands beside another one."""
    target.certificate_text.unlink(missing_ok=True)
    write_json(target.certificate, {"schema": SCHEMA, **record.model_dump(mode="json")})
    write_certificate(target.certificate_text, record)


def show(record: VerifyRecord) -> None:
    """One table for a reader, and every check that failed."""
    shown = [COLUMNS.index(name) for name in TERMINAL]
    cells = [[console.untrusted(row[at]) for at in shown] for row in rows(record)]
    console.table(f"verify: {'passed' if record.passed else 'FAILED'} in {record.seconds:.0f} s", TERMINAL, cells)
    if record.recommended:
        console.say(f"recommended: {console.untrusted(record.recommended)}, {console.untrusted(record.recommendation)}")
    for result in [record.merged, *record.files]:
        for check in (check for check in result.checks if not check.passed):
            limit = "" if check.limit is None else f", allowed {check.limit}"
            console.warn(console.untrusted(f"{result.file}: {check.name}: {check.value}{limit} ({check.why})"))
