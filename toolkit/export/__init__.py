"""Export: a run becomes a folder that holds the merged model, its GGUF files and a manifest of their bytes.

After full fine-tuning the merged model is the trained one, rounded to the base's type unless the recipe asks for float32, and
there is no adapter.

It proves nothing: that is `verify`, which reads this folder. Two exports of one run are equal to the bit.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit import console
from toolkit.atomic import replacing, sha256_of, write_json, writing
from toolkit.bundle import write_bundle
from toolkit.errors import ExportError
from toolkit.export.adapter import CONFIG, WEIGHTS
from toolkit.export.calibration import importance_of
from toolkit.export.checkpoint import open_checkpoint
from toolkit.export.folder import read_json, write_folder
from toolkit.export.gguf import IMATRIX, SCRATCH, Ggufs, without_imatrix, write_ggufs
from toolkit.export.lora import fitting_adapter, lora_name, write_lora
from toolkit.export.merge import merge
from toolkit.export.record import ExportedFile, ExportRecord, FilePart
from toolkit.export.space import check_space
from toolkit.llamacpp import GgufFile, check_type, versions
from toolkit.rundir import EXPORTS, SCHEMA, WHOLE_WEIGHTS, ExportDir, RunDir, is_whole

if TYPE_CHECKING:
    from toolkit.engine.sixteen_bit import MergeBase
    from toolkit.recipe import Recipe
    from toolkit.recipe.schema import Export

__all__ = ["ADAPTER", "ExportRecord", "ExportedFile", "FilePart", "export_run"]

ADAPTER = "adapter"
LOSSY = "merged into weights that were computed back from 4 bits, not into the 16-bit original"


def export_run(
    run: Path,
    *,
    recipe: Recipe | None = None,
    merged: bool = True,
    quants: Sequence[str] | None = None,
    out: Path | None = None,
) -> ExportRecord:
    """Merge the run's adapter and write the GGUF types `quants` (None: those of the recipe) into `out`.

    `recipe`: the run's with another export section; None: its own. `merged=False` asks for the GGUF files alone; the
    merged folder stays beside them all the same, because they come from it and `verify` compares with it.
    """
    from toolkit.recipe import load_resolved

    source, target = RunDir(run.resolve()), ExportDir(EXPORTS / run.resolve().name if out is None else out)
    with writing(target.path):
        recipe = recipe or load_resolved(source.recipe).recipe
        return _exported(source, target, recipe, merged=merged, quants=quants)


def _exported(
    source: RunDir, target: ExportDir, recipe: Recipe, *, merged: bool, quants: Sequence[str] | None
) -> ExportRecord:
    from toolkit.engine.sixteen_bit import merge_base

    if not source.adapter.is_dir():
        raise ExportError(
            "the run holds no trained adapter or model",
            where=str(source.path),
            hint=f"toolkit train --resume {source.path}",
        )
    kinds = list(dict.fromkeys(recipe.export.gguf if quants is None else quants))
    if not kinds and not merged:
        raise ExportError("nothing to export: no merged folder and no GGUF type", hint="toolkit export RUN")
    made_with = _check_wishes(kinds, recipe.export, source.adapter)
    base = merge_base(recipe.model, recipe.export)
    _prepare(target, base.folder, source.adapter, kinds, recipe.export)
    if base.lossy:
        console.warn(LOSSY)
    written = _write_merged(base.folder, source.adapter, target.merged, wide=recipe.export.is_wide)
    ggufs = _write_ggufs(target, source.path.name, kinds, written["dtype"], recipe)
    trained = _ship_adapter(source.adapter, target.path / ADAPTER, recipe.model.source)
    lora = _write_lora(target, source.path.name) if recipe.export.lora_gguf else None
    write_json(target.recipe, recipe.model_dump(mode="json"))
    files = [_describe(paths, kind) for kind, paths in ggufs.files.items()]
    record = ExportRecord(
        run=source.path.name,
        base=_describe_base(base, recipe),
        adapter=trained | _hashes(target.path / ADAPTER),
        merged=written,
        files=files,
        versions=made_with,
        warnings=[*([LOSSY] if base.lossy else []), *ggufs.warnings],
        folder=target.path,
        imatrix=_describe_imatrix(target.path, ggufs),
        lora=lora,
        bundle=write_bundle(target, recipe, run=source.path.name, files=[file.file for file in files]),
    )
    write_json(target.manifest, {"schema": SCHEMA, **record.model_dump(mode="json", exclude={"folder"})})
    _show(files)
    return record


def _check_wishes(kinds: list[str], settings: Export, adapter: Path) -> dict[str, str]:
    """Versions of what writes the GGUF files, all of which it can write."""
    for kind in kinds:
        check_type(kind)
    needing = without_imatrix(kinds)
    if needing and not settings.imatrix:
        what = f"{', '.join(needing)} can only be written with an importance matrix"
        raise ExportError(what, hint="export.imatrix=true, or other types in export.gguf")
    if settings.lora_gguf:
        fitting_adapter(adapter)
    return versions() if kinds or settings.lora_gguf else {}


def _prepare(target: ExportDir, base: Path, adapter: Path, kinds: list[str], settings: Export) -> None:
    """Check everything that can be known, then take away what an earlier export left."""
    checkpoint = open_checkpoint(base)
    target.path.mkdir(parents=True, exist_ok=True)
    for path in target.path.glob(f"{SCRATCH}*"):
        shutil.rmtree(path, ignore_errors=True)
    earlier = [*target.path.glob("*.gguf"), target.path / IMATRIX]
    check_space(
        target.path,
        checkpoint,
        kinds,
        adapter_bytes=(adapter / WEIGHTS).stat().st_size if (adapter / WEIGHTS).is_file() else 0,
        split_bytes=settings.max_shard_bytes,
        freed_bytes=sum(path.stat().st_size for path in earlier if path.is_file()),
        wide=settings.is_wide,
    )
    for path in [target.manifest, target.certificate, target.certificate_text, *earlier]:
        path.unlink(missing_ok=True)


def _write_merged(base: Path, adapter: Path, target: Path, *, wide: bool) -> dict[str, Any]:
    with replacing(target) as staging:
        staging.mkdir()
        written = merge(base, adapter, staging, wide=wide)
        write_folder(base, adapter, staging, dtype=written.dtype, unties=written.unties)
    return {"dtype": written.dtype, "changed": list(written.changed), **_hashes(target)}


def _write_ggufs(target: ExportDir, name: str, kinds: list[str], dtype: str, recipe: Recipe) -> Ggufs:
    if not kinds:
        return Ggufs({}, [], None)
    return write_ggufs(
        target.merged,
        target.path,
        name=name,
        kinds=kinds,
        dtype=dtype,
        max_bytes=recipe.export.max_shard_bytes,
        importance_of=partial(importance_of, recipe) if recipe.export.imatrix else None,
    )


def _ship_adapter(adapter: Path, target: Path, source: str) -> dict[str, Any]:
    """The adapter as PEFT loads it, without the path that its base had on this machine; what the manifest says of it.

    Of a whole model nothing is copied: it stays in the run, and its hash says which one it was.
    """
    from toolkit.engine.source import is_hub_name

    if is_whole(adapter):
        shutil.rmtree(target, ignore_errors=True)  # of an earlier run's export
        return {"full_finetuning": True, "trained": sha256_of(adapter / WHOLE_WEIGHTS)}
    config = read_json(adapter / CONFIG)
    config["base_model_name_or_path"] = source if is_hub_name(source) else None
    with replacing(target) as staging:
        staging.mkdir()
        text = json.dumps(config, indent=2, sort_keys=True) + "\n"
        (staging / CONFIG).write_text(text, encoding="utf-8")
        shutil.copyfile(adapter / WEIGHTS, staging / WEIGHTS)
    return {}


def _write_lora(target: ExportDir, name: str) -> dict[str, Any]:
    """In the adapter's folder, with its hash."""
    path = target.path / ADAPTER / lora_name(name)
    write_lora(target.path / ADAPTER, path, base=target.merged, name=name)
    return {"file": f"{ADAPTER}/{path.name}", "sha256": sha256_of(path), "size_bytes": path.stat().st_size}


def _describe_base(base: MergeBase, recipe: Recipe) -> dict[str, Any]:
    from toolkit.engine.sixteen_bit import shown

    return {
        "source": shown(recipe.model.source),
        "revision": recipe.model.revision,
        "merged_into": {"name": base.name, "found": base.found, "lossy": base.lossy, "commit": _commit(base.folder)},
        **_hashes(base.folder, "*.safetensors"),
    }


def _commit(folder: Path) -> str | None:
    """The Hub's commit, in whose name its cache keeps the files."""
    return folder.name if folder.parent.name == "snapshots" else None


def _describe(paths: Sequence[Path], kind: str) -> ExportedFile:
    parts = [FilePart(file=path.name, sha256=sha256_of(path), size_bytes=path.stat().st_size) for path in paths]
    return ExportedFile(
        file=paths[0].name,
        type=kind,
        sha256=parts[0].sha256,
        size_bytes=sum(part.size_bytes for part in parts),
        tensor_types=GgufFile(paths[0]).tensor_types,
        parts=parts if len(parts) > 1 else [],
    )


def _describe_imatrix(folder: Path, ggufs: Ggufs) -> dict[str, Any] | None:
    if (used := ggufs.importance) is None:
        return None
    counts = {"dataset": used.dataset, "texts": used.n_texts, "tokens": used.n_tokens}
    return {"file": IMATRIX, "sha256": sha256_of(folder / IMATRIX), **counts}


def _show(files: Sequence[ExportedFile]) -> None:
    """What is in the files, which in small models is not what their names say."""
    rows = [
        (
            console.untrusted(file.file),
            f"{file.size_bytes / 1e6:.0f}",
            ", ".join(
                f"{kind} {count}" for kind, count in sorted(file.tensor_types.items(), key=lambda item: -item[1])
            ),
        )
        for file in files
    ]
    if rows:
        console.table("GGUF files", ("file", "MB", "tensors of each type"), rows)


def _hashes(folder: Path, pattern: str = "*") -> dict[str, Any]:
    return {"sha256": {path.name: sha256_of(path) for path in sorted(folder.glob(pattern)) if path.is_file()}}
