"""A verified export, but for its content: the records are the real ones of a tiny run, the models are not."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

from toolkit.atomic import write_json
from toolkit.export import ExportedFile, ExportRecord
from toolkit.export.record import FilePart
from toolkit.recipe import load_recipe
from toolkit.verify.record import Check, FileResult, VerifyRecord

REPO = "org/model"
GGUFS = {"a-f16.gguf": b"f" * 2500, "a-q8_0.gguf": b"q" * 700}
IN_PARTS = {
    "a-f16.gguf": b"f" * 2500,
    "a-q8_0-00001-of-00002.gguf": b"q" * 700,
    "a-q8_0-00002-of-00002.gguf": b"r" * 300,
}
"""The same with the second file split."""
MERGED = {"model.safetensors": b"w" * 1500, "config.json": b"{}", "LICENSE": b"Free."}
BUNDLE = {"a-q8_0.Modelfile": b"FROM ./a-q8_0.gguf", "system-prompt.txt": b"Answer.", "README.md": b"# a"}
ADAPTER = {"adapter_model.safetensors": b"a" * 1100, "adapter_config.json": b"{}"}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def write_export(folder: Path, *overrides: str, ggufs: dict[str, bytes] = GGUFS) -> Path:
    """An export whose recipe is the smallest one with these overrides."""
    parts = {"": ggufs | BUNDLE, "merged/": MERGED, "adapter/": ADAPTER}
    for prefix, files in parts.items():
        (folder / prefix).mkdir(parents=True)
        for name, data in files.items():
            (folder / f"{prefix}{name}").write_bytes(data)
    files = [_exported(names, ggufs) for names in _files_of(ggufs)]
    manifest = ExportRecord(
        run=folder.name, base={"source": "org/base"}, adapter=_hashes(ADAPTER), merged=_hashes(MERGED), files=files,
        versions={"llama.cpp": "0c1e570"}, warnings=[], folder=folder,
        bundle={"files": {name: sha256(data) for name, data in BUNDLE.items()}, "ollama": None},
    )  # fmt: skip
    write_json(folder / "manifest.json", manifest.model_dump(mode="json", exclude={"folder"}))
    recipe = load_recipe("smoke", [f"hub.repo={REPO}", *overrides]).recipe
    write_json(folder / "recipe.json", recipe.model_dump(mode="json"))
    certify(folder)
    return folder


def _files_of(names: Iterable[str]) -> list[list[str]]:
    """The names of each file's parts; one in a file that is whole."""
    grouped: dict[str, list[str]] = {}
    for name in sorted(names):
        grouped.setdefault(re.sub(r"-\d{5}-of-\d{5}", "", name), []).append(name)
    return list(grouped.values())


def _exported(names: list[str], ggufs: dict[str, bytes]) -> ExportedFile:
    parts = [FilePart(file=name, sha256=sha256(ggufs[name]), size_bytes=len(ggufs[name])) for name in names]
    return ExportedFile(
        file=names[0], type=names[0].removeprefix("a-").split(".")[0].split("-")[0], sha256=sha256(ggufs[names[0]]),
        size_bytes=sum(len(ggufs[name]) for name in names), tensor_types={"F16": 2}, parts=parts if names[1:] else [],
    )  # fmt: skip


def _hashes(files: dict[str, bytes]) -> dict[str, dict[str, str]]:
    return {"sha256": {name: sha256(data) for name, data in files.items()}}


def certify(folder: Path, *, passed: bool = True, recommended: str | None = None) -> None:
    """The certificate for what lies there now."""

    def result(name: str, hashes: dict[str, str]) -> FileResult:
        checks = [
            Check(name="mean KL", value=0.00012, limit=0.01, passed=passed, why="per token"),
            Check(name="top-1 agreement", value=0.998, limit=0.9, passed=True, why="the likeliest token"),
        ]
        return FileResult(
            file=name, type="f16", sha256=hashes.get(name), hashes=hashes, size_bytes=1, passed=passed, checks=checks, seconds=0,
            task={"n": 16, "strict": 9, "difference": -0.0625, "ci95": [-0.125, 0.03]}, memory_bytes=5_000_000,
        )  # fmt: skip

    names = _files_of(path.name for path in folder.glob("*.gguf"))
    record = VerifyRecord(
        run=folder.name, passed=passed, merged=result("merged", _there(folder / "merged")),
        adapter=_there(folder / "adapter"),
        files=[result(parts[0], {name: sha256((folder / name).read_bytes()) for name in parts}) for parts in names],
        reference={"texts": 16, "tokens": 490}, versions={}, seconds=0,
        recommended=recommended, recommendation="the smallest file that passed" if recommended else "",
    )  # fmt: skip
    write_json(folder / "verify.json", record.model_dump(mode="json"))


def _there(folder: Path) -> dict[str, str]:
    return {path.name: sha256(path.read_bytes()) for path in folder.iterdir()}


def everything(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
