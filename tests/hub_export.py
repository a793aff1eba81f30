"""A verified export, but for its content: the records are the real ones of a tiny run, the models are not."""

from __future__ import annotations

import hashlib
from pathlib import Path

from toolkit.export import ExportedFile, ExportRecord
from toolkit.recipe import load_recipe
from toolkit.rundir import write_json
from toolkit.verify.record import Check, FileResult, VerifyRecord

REPO = "org/model"
GGUFS = {"a-f16.gguf": b"f" * 2500, "a-q8_0.gguf": b"q" * 700}
MERGED = {"model.safetensors": b"w" * 1500, "config.json": b"{}", "LICENSE": b"Free."}
BUNDLE = {"a-q8_0.Modelfile": b"FROM ./a-q8_0.gguf", "system-prompt.txt": b"Answer.", "README.md": b"# a"}
ADAPTER = {"adapter_model.safetensors": b"a" * 1100, "adapter_config.json": b"{}"}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def write_export(folder: Path, *overrides: str) -> Path:
    """An export whose recipe is the smallest one with these overrides."""
    parts = {"": GGUFS | BUNDLE, "merged/": MERGED, "adapter/": ADAPTER}
    for prefix, files in parts.items():
        (folder / prefix).mkdir(parents=True)
        for name, data in files.items():
            (folder / f"{prefix}{name}").write_bytes(data)
    files = [
        ExportedFile(
            file=name, type=Path(name).stem.removeprefix("a-"), sha256=sha256(data), size_bytes=len(data),
            tensor_types={"F16": 2},
        )
        for name, data in GGUFS.items()
    ]  # fmt: skip
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


def _hashes(files: dict[str, bytes]) -> dict[str, dict[str, str]]:
    return {"sha256": {name: sha256(data) for name, data in files.items()}}


def certify(folder: Path, *, passed: bool = True) -> None:
    """The certificate for what lies there now."""

    def result(name: str, digest: str | None) -> FileResult:
        checks = [
            Check(name="mean KL", value=0.00012, limit=0.01, passed=passed, why="per token"),
            Check(name="top-1 agreement", value=0.998, limit=0.9, passed=True, why="the likeliest token"),
        ]
        return FileResult(
            file=name, type="f16", sha256=digest, size_bytes=1, passed=passed, checks=checks, seconds=0,
            task={"n": 16, "strict": 9},
        )  # fmt: skip

    files = [result(path.name, sha256(path.read_bytes())) for path in sorted(folder.glob("*.gguf"))]
    record = VerifyRecord(
        run=folder.name, passed=passed, files=files, merged=result("merged", None),
        reference={"texts": 16, "tokens": 490}, versions={}, seconds=0,
    )  # fmt: skip
    write_json(folder / "verify.json", record.model_dump(mode="json"))


def everything(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
