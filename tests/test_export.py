"""An export is the same every time, survives odd paths, and says what it needs before it begins."""

from __future__ import annotations

import getpass
import json
import math
import shutil
import socket
import sys
from pathlib import Path

import pytest

from tiny import exported, run_with
from toolkit.errors import ExportError
from toolkit.export.checkpoint import open_checkpoint
from toolkit.export.space import needed_bytes
from toolkit.llamacpp import FILE_TYPES, GgufFile

pytest.importorskip("torch")
pytest.importorskip("peft")

pytest_plugins = ("exports",)


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_two_exports_are_equal_to_the_bit_and_leave_nothing_else(tiny_run: Path, tmp_path: Path) -> None:
    """With everything: an importance matrix, shards, a GGUF LoRA."""
    settings = {"gguf": ["f16", "q4_k_m", "iq2_xxs"], "imatrix": True, "lora_gguf": True, "max_shard_size": "28MB"}
    run = run_with(tiny_run, tmp_path, **settings)
    record = exported(run, tmp_path / "one")
    first = files_in(tmp_path / "one")
    exported(run, tmp_path / "two")
    exported(run, tmp_path / "one")
    assert first == files_in(tmp_path / "two") == files_in(tmp_path / "one")
    manifest = json.loads(first["manifest.json"])
    beside = set(manifest["bundle"]["files"])
    assert {"tiny-f16.Modelfile", "tiny-q4_k_m.open-webui.json", "README.md"} < beside
    assert {name for name in first.keys() - beside if not name.startswith("merged/")} == {
        "manifest.json", "recipe.json", "tiny-f16-00001-of-00002.gguf", "tiny-f16-00002-of-00002.gguf",
        "tiny-q4_k_m.gguf", "tiny-iq2_xxs.gguf", "imatrix/imatrix.gguf", "adapter/adapter_config.json",
        "adapter/adapter_model.safetensors", "adapter/tiny-lora.gguf",
    }  # fmt: skip
    assert manifest["schema"] == 1
    assert [file["type"] for file in manifest["files"]] == settings["gguf"]
    assert record.files[1].tensor_types["Q4_K"] > 0
    assert manifest["imatrix"]["texts"] > 0 and manifest["lora"]["size_bytes"] == len(first["adapter/tiny-lora.gguf"])
    assert set(manifest["versions"]) == {"llama-cpp-python", "llama.cpp", "gguf"}
    assert len(manifest["versions"]["llama.cpp"]) == 40, "the commit"


def test_nothing_in_the_files_is_of_the_machine(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """But for the recipe, which is the run's own and may name a folder as its base."""
    run = run_with(tiny_run, tmp_path, gguf=["q8_0"], imatrix=True, lora_gguf=True)
    exported(run, tmp_path / "out")
    words = [str(tmp_path), str(tiny_run.parent.parent), str(Path.home()), sys.prefix, f"/{getpass.getuser()}/"]
    words += [name for name in (socket.gethostname(),) if len(name) > 5]  # shorter ones are words
    for name, content in files_in(tmp_path / "out").items():
        if name not in ("recipe.json", "manifest.json"):
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


def test_an_export_takes_away_what_an_earlier_one_left(tiny_run: Path, tmp_path: Path) -> None:
    exported(run_with(tiny_run, tmp_path, gguf=["q8_0"], imatrix=True, lora_gguf=True), tmp_path / "out")
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


@pytest.mark.parametrize(("hidden", "columns"), [(256, "that 256 divides"), (96, "odd ones, which fall back")])
def test_the_disk_that_is_asked_for_is_enough_and_not_far_too_much(
    tmp_path: Path, hidden: int, columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every type that needs no importance matrix, quantised from one file; tokens and merges are counted apart."""
    from tiny import need_llama_cpp, write_base, write_tokenizer
    from toolkit.export import space
    from toolkit.llamacpp import convert, quantize, weights_bytes

    need_llama_cpp()
    base = write_base(tmp_path / "base", hidden_size=hidden, intermediate_size=4 * hidden, num_hidden_layers=8)
    write_tokenizer(base)
    convert(base, tmp_path / "source.gguf", outtype="bf16", name="n")
    source = GgufFile(tmp_path / "source.gguf")
    counts = {name: math.prod(shape) for name, shape in source.tensor_shapes.items()}
    embeddings = counts["token_embd.weight"]
    for kind, known in FILE_TYPES.items():
        if known.needs_imatrix or (kind == "q1_0" and hidden % 128):
            continue
        quantize(tmp_path / "source.gguf", tmp_path / "out.gguf", kind=kind)
        tensors = GgufFile(tmp_path / "out.gguf").tensors.values()
        data = sum(len(tensor.data) for tensor in tensors if len(tensor.shape) > 1)
        asked = weights_bytes(
            kind, matrices=sum(counts.values()) - embeddings, embeddings=embeddings, odd_rows=hidden % 256 > 0
        )
        assert data <= asked <= 1.4 * data, (kind, columns)
    checkpoint = open_checkpoint(base)
    monkeypatch.setattr(space, "VOCABULARY_BYTES", 0)
    one, split = (needed_bytes(checkpoint, ["f16"], split_bytes=limit) for limit in (None, 1000))
    assert split - one == weights_bytes("f16", matrices=sum(counts.values()) - embeddings, embeddings=embeddings)
    # The conversion that a quant comes from takes room, too, unless it is asked for itself.
    assert needed_bytes(checkpoint, ["q8_0"]) > one and needed_bytes(checkpoint, []) < one
