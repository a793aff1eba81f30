"""Export: a run becomes a folder that holds the merged model, its GGUF files and a manifest of their bytes.

It proves nothing: that is `verify`, which reads this folder. Two exports of one run are equal to the bit.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from toolkit.errors import ExportError
from toolkit.export.adapter import CONFIG, WEIGHTS
from toolkit.export.checkpoint import open_checkpoint
from toolkit.export.folder import read_json, write_folder
from toolkit.export.gguf import SCRATCH, check_space, gguf_name, write_ggufs
from toolkit.export.merge import merge
from toolkit.llamacpp import GgufFile, check_type, versions
from toolkit.rundir import EXPORTS, SCHEMA, ExportDir, RunDir, replacing, sha256_of, write_json

MERGED, ADAPTER, RECIPE, MANIFEST, CERTIFICATE = (
    "merged",
    "adapter",
    "recipe.json",
    "manifest.json",
    "verify.json",
)


class ExportedFile(BaseModel):
    """One GGUF file. `tensor_types` counts what is in it, which for small models is not what the type's
    name says."""

    model_config = ConfigDict(frozen=True)

    file: str
    type: str
    sha256: str
    size_bytes: int
    tensor_types: dict[str, int]


class ExportRecord(BaseModel):
    """The export's manifest.json, and the folder that it lies in."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    run: str
    base: dict[str, Any]
    adapter: dict[str, Any]
    merged: dict[str, Any]
    files: list[ExportedFile]
    versions: dict[str, str]
    warnings: list[str]
    folder: Path


def export_run(
    run: Path, *, merged: bool = True, quants: Sequence[str] | None = None, out: Path | None = None
) -> ExportRecord:
    """Merge the run's adapter and write the GGUF types `quants` (None: those of its recipe) into `out`.

    `merged=False` asks for the GGUF files alone; the merged folder stays beside them all the same, because
    they come from it and `verify` compares with it.
    """
    from toolkit.engine.source import base_checkpoint
    from toolkit.recipe import load_resolved

    source = RunDir(run.resolve())
    recipe = load_resolved(source.recipe).recipe
    if not source.adapter.is_dir():
        raise ExportError("the run holds no trained adapter", where=str(run), hint=f"toolkit train --resume {run}")
    kinds = list(dict.fromkeys(recipe.export.gguf if quants is None else quants))
    if not kinds and not merged:
        raise ExportError("nothing to export: no merged folder and no GGUF type", hint="toolkit export RUN")
    target = ExportDir(EXPORTS / source.path.name if out is None else out)
    made_with = versions() if kinds else {}
    base = base_checkpoint(recipe.model)
    _prepare(target, base, kinds)
    written = _write_merged(base, source.adapter, target.merged)
    files, warnings = _write_ggufs(target, source.path.name, kinds, written["dtype"])
    _copy_adapter(source.adapter, target.path / ADAPTER, recipe.model.source)
    with replacing(target.recipe) as temporary:
        shutil.copyfile(source.recipe, temporary)
    record = ExportRecord(
        run=source.path.name,
        base={
            "source": recipe.model.source,
            "revision": recipe.model.revision,
            **_hashes(base, "*.safetensors"),
        },
        adapter=_hashes(target.path / ADAPTER),
        merged=written,
        files=files,
        versions=made_with,
        warnings=warnings,
        folder=target.path,
    )
    write_json(target.manifest, {"schema": SCHEMA, **record.model_dump(mode="json", exclude={"folder"})})
    return record


def _prepare(target: ExportDir, base: Path, kinds: list[str]) -> None:
    """Check everything that can be known, then take away what an earlier export left."""
    for kind in kinds:
        check_type(kind)
    checkpoint = open_checkpoint(base)
    target.path.mkdir(parents=True, exist_ok=True)
    for path in target.path.glob(f"{SCRATCH}*"):
        shutil.rmtree(path, ignore_errors=True)
    earlier = list(target.path.glob("*.gguf"))
    check_space(target.path, checkpoint, kinds, freed_bytes=sum(path.stat().st_size for path in earlier))
    for path in [target.manifest, target.certificate, *earlier]:
        path.unlink(missing_ok=True)


def _write_merged(base: Path, adapter: Path, target: Path) -> dict[str, Any]:
    with replacing(target) as staging:
        staging.mkdir()
        written = merge(base, adapter, staging)
        write_folder(base, adapter, staging, dtype=written.dtype)
    return {"dtype": written.dtype, "changed": list(written.changed), **_hashes(target)}


def _write_ggufs(target: ExportDir, name: str, kinds: list[str], dtype: str) -> tuple[list[ExportedFile], list[str]]:
    folder = target.path
    warnings = write_ggufs(target.merged, folder, name=name, kinds=kinds, dtype=dtype) if kinds else []
    return [_describe(folder / gguf_name(name, kind), kind) for kind in kinds], warnings


def _copy_adapter(adapter: Path, target: Path, source: str) -> None:
    """The adapter as PEFT loads it, without the path that its base had on this machine."""
    config = read_json(adapter / CONFIG)
    on_hub = source.count("/") == 1 and not source.startswith((".", "/", "~", "package:")) and not Path(source).exists()
    config["base_model_name_or_path"] = source if on_hub else None
    with replacing(target) as staging:
        staging.mkdir()
        text = json.dumps(config, indent=2, sort_keys=True) + "\n"
        (staging / CONFIG).write_text(text, encoding="utf-8")
        shutil.copyfile(adapter / WEIGHTS, staging / WEIGHTS)


def _describe(path: Path, kind: str) -> ExportedFile:
    return ExportedFile(
        file=path.name,
        type=kind,
        sha256=sha256_of(path),
        size_bytes=path.stat().st_size,
        tensor_types=GgufFile(path).tensor_types,
    )


def _hashes(folder: Path, pattern: str = "*") -> dict[str, Any]:
    return {"sha256": {path.name: sha256_of(path) for path in sorted(folder.glob(pattern)) if path.is_file()}}
