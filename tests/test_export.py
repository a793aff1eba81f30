"""An export is the same every time, survives odd paths, and says what it needs before it begins."""

from __future__ import annotations

import getpass
import json
import math
import resource
import shutil
import socket
import sys
from pathlib import Path

import pytest

from families import write_family_base
from tiny import converted, exported, merged_folder, need_llama_cpp, run_with, write_adapter
from toolkit.errors import ExportError
from toolkit.export.checkpoint import open_checkpoint
from toolkit.export.space import needed_bytes
from toolkit.llamacpp import FILE_TYPES, GgufFile, quantize, weights_bytes

pytest.importorskip("torch")
pytest.importorskip("peft")

pytest_plugins = ("exports",)


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


FULL = {"gguf": ["f16", "q4_k_m", "q2_k_s"], "imatrix": True, "lora_gguf": True, "max_shard_size": "28MB"}
"""An importance matrix, shards and a GGUF LoRA."""


@pytest.fixture(scope="module")
def full_run(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_with(tiny_run, tmp_path_factory.mktemp("full"), **FULL)


@pytest.fixture(scope="module")
def full_export(full_run: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("toolkit.export.calibration.PROMPTS", 6)
        return exported(full_run, full_run.parent.parent / "out").folder


def test_two_exports_are_equal_to_the_bit_and_leave_nothing_else(
    full_run: Path, full_export: Path, tmp_path: Path
) -> None:
    first = files_in(full_export)
    record = exported(full_run, tmp_path / "two")
    assert first == files_in(tmp_path / "two")
    assert {"manifest.json", "recipe.json", "adapter/adapter_config.json", "adapter/adapter_model.safetensors"} <= set(
        first
    )
    assert {name for name in first if name.endswith(".gguf")} == {
        "tiny-f16-00001-of-00002.gguf", "tiny-f16-00002-of-00002.gguf", "tiny-q4_k_m.gguf", "tiny-q2_k_s.gguf",
        "imatrix/imatrix.gguf", "adapter/tiny-lora.gguf",
    }  # fmt: skip
    assert not [name for name in first if "/." in f"/{name}"], "nothing unfinished is left"
    manifest = json.loads(first["manifest.json"])
    assert manifest["schema"] == 1
    assert [file["type"] for file in manifest["files"]] == FULL["gguf"]
    assert [len(file["parts"]) for file in manifest["files"]] == [2, 0, 0]
    assert record.files[1].tensor_types["Q4_K"] > 0
    assert manifest["imatrix"]["texts"] > 0 and manifest["lora"]["size_bytes"] == len(first["adapter/tiny-lora.gguf"])
    assert set(manifest["versions"]) == {"llama-cpp-python", "llama.cpp", "gguf"}
    assert len(manifest["versions"]["llama.cpp"]) == 40, "the commit"


def test_nothing_in_the_files_is_of_the_machine(full_run: Path, full_export: Path, tiny_run: Path) -> None:
    """But for the recipe, which is the run's own and may name a folder as its base."""
    words = [str(full_run.parent.parent), str(tiny_run.parent.parent), str(Path.home()), sys.prefix]
    words += [f"/{getpass.getuser()}/", *(name for name in (socket.gethostname(),) if len(name) > 5)]
    for name, content in files_in(full_export).items():
        if name != "recipe.json":
            for word in words:
                assert word.encode() not in content, (name, word)


def test_the_manifest_names_a_folder_without_its_path(tiny_run: Path, tmp_path: Path) -> None:
    exported(tiny_run, tmp_path / "out", quants=[])
    manifest = (tmp_path / "out" / "manifest.json").read_text()
    assert str(tiny_run.parent.parent) not in manifest and str(tmp_path) not in manifest
    merged_into = json.loads(manifest)["base"]["merged_into"]
    assert merged_into == {"name": "base", "found": "the base itself", "lossy": False, "commit": None}


def test_paths_may_hold_spaces_quotes_umlauts_and_leading_dashes(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    run = run_with(tiny_run, tmp_path, gguf=["q8_0"], imatrix=True, lora_gguf=True, max_shard_size="15MB")
    odd = tmp_path / '-ein Lauf\'s "Größe" $x'
    shutil.move(run, odd)
    monkeypatch.chdir(tmp_path)
    record = exported(Path(odd.name), Path("-aus gabe'ü"))
    written = tmp_path / "-aus gabe'ü"
    assert [part.file for part in record.files[0].parts] == [f"{odd.name}-q8_0-0000{n}-of-00002.gguf" for n in (1, 2)]
    assert all((written / part.file).is_file() for part in record.files[0].parts)
    assert (written / "adapter" / f"{odd.name}-lora.gguf").is_file()
    assert GgufFile(written / record.files[0].file).field("general.name") == odd.name


def test_without_types_only_the_merged_folder_is_written(tiny_run: Path, tmp_path: Path) -> None:
    record = exported(tiny_run, tmp_path / "out", quants=[])
    assert record.files == []
    assert not list((tmp_path / "out").glob("*.gguf"))
    assert (tmp_path / "out" / "merged" / "model.safetensors").is_file()


def test_an_export_takes_away_what_an_earlier_one_left(tiny_run: Path, full_export: Path, tmp_path: Path) -> None:
    shutil.copytree(full_export, tmp_path / "out")
    (tmp_path / "out" / ".gguf-killed").mkdir()
    (tmp_path / "out" / "verify.json").write_text("{}")
    exported(tiny_run, tmp_path / "out", quants=["q4_0"])
    assert {path.name for path in (tmp_path / "out").rglob("*.gguf")} == {"tiny-q4_0.gguf"}
    assert not (tmp_path / "out" / "verify.json").exists() and not list((tmp_path / "out").glob(".gguf*"))


def test_what_the_export_needs_is_said_before_it_begins(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    with pytest.raises(ExportError, match="did you mean q8_0"):
        exported(tiny_run, tmp_path / "out", quants=["q8-0"])
    with pytest.raises(ExportError, match="iq2_s, iq1_m can only be written with an importance matrix") as caught:
        exported(tiny_run, tmp_path / "out", quants=["f16", "iq2_s", "iq1_m"])
    assert "export.imatrix=true" in str(caught.value.hint)
    usage = shutil.disk_usage(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1_000_000))
        with pytest.raises(ExportError, match=r"the export needs 0\.\d GB, 0\.0 GB are free"):
            exported(tiny_run, tmp_path / "out")
    monkeypatch.setenv("TOOLKIT_LLAMA_CPP_DIR", str(tmp_path))
    with pytest.raises(ExportError, match="without convert_hf_to_gguf"):
        exported(tiny_run, tmp_path / "out")
    monkeypatch.delenv("TOOLKIT_LLAMA_CPP_DIR")
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    with pytest.raises(ExportError) as caught:
        exported(tiny_run, tmp_path / "out")
    assert caught.value.hint == "python -m toolkit.llamacpp.fetch"
    assert not list((tmp_path / "out").rglob("*.*")), "nothing was begun"


def test_a_disk_that_refuses_is_said_and_leaves_nothing_that_looks_whole(tiny_run: Path, tmp_path: Path) -> None:
    """Files above a limit are refused as on a full disk, also midway."""
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(ExportError, match="cannot be written: Not a directory"):
        exported(tiny_run, tmp_path / "file" / "out", quants=[])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, before[1]))
    try:
        with pytest.raises(ExportError, match="cannot be written: File too large") as caught:
            exported(tiny_run, tmp_path / "out", quants=[])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "df -h" in str(caught.value.hint) and not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize("width", [256, 96], ids=["that-256-divides", "odd-so-that-types-fall-back"])
def test_the_disk_that_is_asked_for_is_enough_and_not_far_too_much(tmp_path: Path, width: int) -> None:
    """Every type that needs no importance matrix, quantised from one file; tokens and merges are counted apart."""
    need_llama_cpp()
    base = tmp_path / "base"
    write_family_base(base, "gemma", width=width)
    source = converted(merged_folder(base, write_adapter(base, tmp_path / "adapter"), tmp_path / "out"))
    counts = {name: math.prod(shape) for name, shape in GgufFile(source).tensor_shapes.items() if len(shape) > 1}
    embeddings = counts.pop("token_embd.weight")
    for kind, known in FILE_TYPES.items():
        if known.needs_imatrix or (kind == "q1_0" and width % 128):
            continue
        quantize(source, tmp_path / "out.gguf", kind=kind)
        tensors = GgufFile(tmp_path / "out.gguf").tensors.values()
        data = sum(len(tensor.data) for tensor in tensors if len(tensor.shape) > 1)
        asked = weights_bytes(kind, matrices=sum(counts.values()), embeddings=embeddings, odd_rows=width % 256 > 0)
        assert data <= asked <= 1.5 * data, kind


def test_files_that_lie_there_twice_for_a_while_are_counted_twice(
    tiny_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolkit.estimate.disk.VOCABULARY_BYTES", 0)
    checkpoint = open_checkpoint(tiny_run.parent.parent / "base")
    one, split = (needed_bytes(checkpoint, ["f16"], split_bytes=limit) for limit in (None, 1000))
    assert split - one == pytest.approx(checkpoint.size_bytes, rel=0.001), "a file that is split"
    assert needed_bytes(checkpoint, ["q8_0"]) > one > needed_bytes(checkpoint, []), (
        "the conversion that quants come from"
    )
