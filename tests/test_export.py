"""The export writes the trained model: merge, folder and GGUF files, exactly, or an error that says why
not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tiny import tiny_run, write_adapter, write_base  # noqa: F401
from toolkit.errors import ExportError
from toolkit.export.folder import generation_of, turn_end, write_folder
from toolkit.export.merge import merge

pytest.importorskip("torch")
pytest.importorskip("peft")

SMALL = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48}


@pytest.fixture(scope="module")
def small_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("small") / "base", **SMALL)


def merged_weights(base: Path, adapter: Path, out: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    from safetensors.torch import load_file

    out.mkdir()
    changed = merge(base, adapter, out).changed
    return {k: v for path in out.glob("*.safetensors") for k, v in load_file(path).items()}, changed


def weights_of(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return {k: v for path in folder.glob("*.safetensors") for k, v in load_file(path).items()}


def merged_by_peft(base: Path, adapter: Path) -> dict[str, Any]:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    return dict(PeftModel.from_pretrained(model, adapter).merge_and_unload().state_dict())


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"use_rslora": True, "r": 8},
        {"rank_pattern": {"layers.0.self_attn.q_proj": 2}, "alpha_pattern": {"up_proj": 32}},
        {"use_dora": True},
        {"target_modules": ["v_proj"], "modules_to_save": ["input_layernorm"]},
        {"target_modules": "all-linear"},
    ],
    ids=["plain", "rslora", "patterns", "dora", "modules_to_save", "all-linear"],
)
def test_merge_is_pefts_merge_in_fp32_rounded_once(small_base: Path, tmp_path: Path, settings: dict[str, Any]) -> None:
    import torch

    adapter = write_adapter(small_base, tmp_path / "adapter", **settings)
    got, changed = merged_weights(small_base, adapter, tmp_path / "merged")
    expected, base = merged_by_peft(small_base, adapter), weights_of(small_base)
    assert changed
    for name, weight in got.items():
        if name in changed:
            # One unit in the last place of bf16: 8 bits of mantissa.
            assert torch.allclose(weight.float(), expected[name], rtol=2**-8, atol=1e-6), name
            assert not torch.equal(weight, base[name])
        else:
            assert torch.equal(weight, base[name]), name


def test_merge_of_plain_lora_is_exact_to_the_bit(small_base: Path, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    adapter = write_adapter(small_base, tmp_path / "adapter", target_modules=["up_proj"])
    got, changed = merged_weights(small_base, adapter, tmp_path / "merged")
    factors, base = load_file(adapter / "adapter_model.safetensors"), weights_of(small_base)
    for name in changed:
        path = "base_model.model." + name.removesuffix(".weight")
        delta = factors[f"{path}.lora_B.weight"] @ factors[f"{path}.lora_A.weight"] * 2.0
        assert torch.equal(got[name], (base[name].float() + delta).to(torch.bfloat16))


def test_a_sharded_base_keeps_its_shards_and_untouched_bytes(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base", **SMALL, shard_size="10KB")
    adapter = write_adapter(base, tmp_path / "adapter", target_modules=["o_proj"])
    shards = sorted(path.name for path in base.glob("*.safetensors"))
    got, changed = merged_weights(base, adapter, tmp_path / "merged")
    assert len(shards) > 2
    assert sorted(path.name for path in (tmp_path / "merged").glob("*.safetensors")) == shards
    index = "model.safetensors.index.json"
    assert (tmp_path / "merged" / index).read_bytes() == (base / index).read_bytes()
    assert sorted(changed) == [f"model.layers.{n}.self_attn.o_proj.weight" for n in (0, 1)]
    assert set(got) == set(weights_of(base))


def test_an_adapter_for_another_model_is_refused_with_examples_of_both_sides(small_base: Path, tmp_path: Path) -> None:
    bigger = write_base(tmp_path / "bigger", **SMALL, num_hidden_layers=3)
    adapter = write_adapter(bigger, tmp_path / "adapter")
    with pytest.raises(ExportError) as caught:
        merged_weights(small_base, adapter, tmp_path / "merged")
    assert "4 of the adapter's 12 tensors are not in the base" in caught.value.message
    assert "model.layers.2.mlp.down_proj.weight" in caught.value.message
    assert "model.embed_tokens.weight" in caught.value.message


def test_an_adapter_of_another_width_is_refused(small_base: Path, tmp_path: Path) -> None:
    wider = write_base(tmp_path / "wider", **(SMALL | {"intermediate_size": 64}))
    adapter = write_adapter(wider, tmp_path / "adapter")
    with pytest.raises(ExportError, match=r"\(32, 64\) in the adapter, \(32, 48\) in the base"):
        merged_weights(small_base, adapter, tmp_path / "merged")


@pytest.mark.parametrize(
    ("key", "value"),
    [("bias", "all"), ("init_lora_weights", "pissa"), ("layer_replication", [[0, 1]]), ("fan_in_fan_out", True),
     ("use_some_new_kind", True), ("peft_type", "IA3"), ("r", 3)],
)  # fmt: skip
def test_what_cannot_be_merged_exactly_is_refused(small_base: Path, tmp_path: Path, key: str, value: Any) -> None:
    adapter = write_adapter(small_base, tmp_path / "adapter")
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(config | {key: value}))
    with pytest.raises(ExportError):
        merged_weights(small_base, adapter, tmp_path / "merged")


def test_half_an_adapter_is_refused(small_base: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    adapter = write_adapter(small_base, tmp_path / "adapter")
    file = adapter / "adapter_model.safetensors"
    tensors = load_file(file)
    tensors.pop(next(key for key in tensors if "lora_A" in key))
    save_file(tensors, file)
    with pytest.raises(ExportError, match="only half of"):
        merged_weights(small_base, adapter, tmp_path / "merged")


def test_a_base_in_4_bits_is_refused(small_base: Path, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    adapter = write_adapter(small_base, tmp_path / "adapter", target_modules=["up_proj"])
    base = tmp_path / "base"
    shutil.copytree(small_base, base)
    weights = weights_of(base)
    name = "model.layers.0.mlp.up_proj.weight"
    weights[name] = torch.zeros(weights[name].shape, dtype=torch.uint8)
    save_file(weights, base / "model.safetensors")
    with pytest.raises(ExportError, match="stored as U8: an adapter is merged into 16-bit weights only"):
        merged_weights(base, adapter, tmp_path / "merged")


def test_a_base_cut_short_is_refused(small_base: Path, tmp_path: Path) -> None:
    adapter = write_adapter(small_base, tmp_path / "adapter")
    base = tmp_path / "base"
    shutil.copytree(small_base, base)
    with open(base / "model.safetensors", "rb+") as handle:
        handle.truncate(handle.seek(0, 2) - 100)
    with pytest.raises(ExportError, match="its header speaks of"):
        merged_weights(base, adapter, tmp_path / "merged")


CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
GEMMA = (
    "{{ bos_token }}{% for m in messages %}"
    "<start_of_turn>{{ m.role }}\n{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
)


def tokenizer_folder(folder: Path, template: str, tokens: dict[str, int], eos: str) -> Path:
    folder.mkdir(exist_ok=True)
    decoder = {str(number): {"content": token} for token, number in tokens.items()}
    settings = {
        "chat_template": template,
        "bos_token": "<bos>",
        "eos_token": eos,
        "added_tokens_decoder": decoder,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def test_the_stop_set_holds_the_end_of_the_turn_and_the_end_of_the_text(tmp_path: Path) -> None:
    gemma = tokenizer_folder(tmp_path, GEMMA, {"<eos>": 1, "<start_of_turn>": 105, "<end_of_turn>": 106}, "<eos>")
    assert generation_of({}, {"eos_token_id": 1}, gemma)["eos_token_id"] == [1, 106]
    llama = tokenizer_folder(tmp_path, CHATML.replace("<|im_end|>", "<|eot_id|>"), {"<|eot_id|>": 128009}, "<|eot_id|>")
    given = {"eos_token_id": [128001, 128008, 128009]}
    assert generation_of(given, {}, llama)["eos_token_id"] == [128001, 128008, 128009]
    smollm = tokenizer_folder(tmp_path, CHATML, {"<|im_end|>": 2}, "<|im_end|>")
    assert generation_of({}, {"eos_token_id": 2}, smollm)["eos_token_id"] == 2


def test_the_end_of_a_turn_is_only_a_special_token() -> None:
    settings = {"chat_template": "{% for m in messages %}{{ m.content }}\n\n{% endfor %}"}
    assert turn_end(settings, {"<eos>": 1}) is None


def test_the_folder_is_complete_and_knows_no_machine(tiny_run: Path, tmp_path: Path) -> None:  # noqa: F811
    base = tmp_path / "base"
    shutil.copytree(tiny_run.parent.parent / "base", base)
    config = json.loads((base / "config.json").read_text())
    config |= {
        "_name_or_path": str(base),
        "quantization_config": {"load_in_4bit": True},
        "torch_dtype": "float32",
    }
    (base / "config.json").write_text(json.dumps(config))
    out = tmp_path / "out"
    out.mkdir()
    write_folder(base, tiny_run / "adapter", out, dtype="bfloat16")
    written = {path.name: path.read_text(encoding="utf-8") for path in out.iterdir()}
    assert set(written) == {
        "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
    }  # fmt: skip
    assert str(tmp_path) not in "".join(written.values())
    config = json.loads(written["config.json"])
    assert "quantization_config" not in config
    assert config["dtype"] == "bfloat16"
    settings = json.loads(written["tokenizer_config.json"])
    assert settings["chat_template"] == written["chat_template.jinja"]
    assert settings["added_tokens_decoder"]["2"]["content"] == "<|im_end|>"


def test_a_byte_level_tokenizer_that_claims_byte_fallback_is_mended(tiny_run: Path, tmp_path: Path) -> None:  # noqa: F811
    from transformers import AutoTokenizer

    base = tmp_path / "base"
    shutil.copytree(tiny_run.parent.parent / "base", base)
    content = json.loads((base / "tokenizer.json").read_text(encoding="utf-8"))
    content["model"] |= {"byte_fallback": True, "fuse_unk": True, "unk_token": "<|endoftext|>"}
    (base / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    out = tmp_path / "out"
    out.mkdir()
    write_folder(base, tiny_run / "adapter", out, dtype="bfloat16")
    assert json.loads((out / "tokenizer.json").read_text(encoding="utf-8"))["model"]["byte_fallback"] is False
    text = "  12 ½ 漢字 🙂\t<|im_end|>"
    assert AutoTokenizer.from_pretrained(out)(text).input_ids == AutoTokenizer.from_pretrained(base)(text).input_ids


def exported(run: Path, out: Path, **options: Any) -> Any:
    from toolkit.export import export_run

    return export_run(run, out=out, **options)


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_two_exports_are_equal_to_the_bit_and_leave_nothing_else(tiny_run: Path, tmp_path: Path) -> None:  # noqa: F811
    record = exported(tiny_run, tmp_path / "one")
    first = files_in(tmp_path / "one")
    exported(tiny_run, tmp_path / "two")
    exported(tiny_run, tmp_path / "one")
    assert first == files_in(tmp_path / "two") == files_in(tmp_path / "one")
    assert {name for name in first if "/" not in name} == {
        "manifest.json", "recipe.json", "tiny-f16.gguf", "tiny-q4_k_m.gguf",
    }  # fmt: skip
    manifest = json.loads(first["manifest.json"])
    assert manifest["schema"] == 1
    assert [file["type"] for file in manifest["files"]] == ["f16", "q4_k_m"]
    assert record.files[1].tensor_types["Q4_K"] > 0
    assert str(tmp_path) not in first["manifest.json"].decode()


def test_paths_may_hold_spaces_quotes_umlauts_and_leading_dashes(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    run = tmp_path / '-ein Lauf\'s "Größe" $x'
    shutil.copytree(tiny_run, run)
    monkeypatch.chdir(tmp_path)
    exported(Path(run.name), Path("-aus gabe'ü"), quants=["q8_0"])
    assert (tmp_path / "-aus gabe'ü" / f"{run.name}-q8_0.gguf").is_file()


def test_without_types_only_the_merged_folder_is_written(tiny_run: Path, tmp_path: Path) -> None:  # noqa: F811
    record = exported(tiny_run, tmp_path / "out", quants=[])
    assert record.files == []
    assert not list((tmp_path / "out").glob("*.gguf"))
    assert (tmp_path / "out" / "merged" / "model.safetensors").is_file()


def test_what_the_export_needs_is_said_before_it_begins(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    with pytest.raises(ExportError, match="did you mean q8_0"):
        exported(tiny_run, tmp_path / "out", quants=["q8-0"])
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


def broken_run(tiny_run: Path, folder: Path, damage: dict[str, Any]) -> Path:  # noqa: F811
    """The run on a base whose tokenizer.json is changed."""
    base = folder / "base"
    shutil.copytree(tiny_run.parent.parent / "base", base)
    content = json.loads((base / "tokenizer.json").read_text(encoding="utf-8")) | damage
    (base / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    run = folder / "run"
    shutil.copytree(tiny_run, run)
    recipe = json.loads((run / "recipe.json").read_text())
    recipe["model"]["source"] = str(base)
    (run / "recipe.json").write_text(json.dumps(recipe))
    return run


def test_a_tokenizer_that_the_converter_does_not_know_stops_the_export(tiny_run: Path, tmp_path: Path) -> None:  # noqa: F811
    run = broken_run(tiny_run, tmp_path, {"pre_tokenizer": {"type": "WhitespaceSplit"}})
    with pytest.raises(ExportError, match="pre-tokenizer was not recognized"):
        exported(run, tmp_path / "out")
    assert not list((tmp_path / "out").rglob("*.gguf"))
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_warning_about_the_tokenizer_stops_the_export(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    fake = tmp_path / "llama.cpp"
    for part in ("conversion", "gguf-py/gguf"):
        (fake / part).mkdir(parents=True)
        (fake / part / "__init__.py").touch()
    (fake / "convert_hf_to_gguf.py").write_text(
        "import sys, pathlib\n"
        "out = next(a for a in sys.argv if a.startswith('--outfile=')).partition('=')[2]\n"
        "pathlib.Path(out).write_bytes(b'GGUF')\n"
        "print('WARNING:gguf.vocab:Adding merges requested but no merges found', file=sys.stderr)\n"
    )
    monkeypatch.setenv("TOOLKIT_LLAMA_CPP_DIR", str(fake))
    with pytest.raises(ExportError, match="no merges found"):
        exported(tiny_run, tmp_path / "out")
    assert not list((tmp_path / "out").rglob("*.gguf"))


def test_set_up_takes_only_the_converter_out_of_the_source_distribution(tmp_path: Path) -> None:
    import io
    import tarfile

    from toolkit.llamacpp.fetch import unpack

    archive = tmp_path / "llama_cpp_python-9.tar.gz"
    tree = "llama_cpp_python-9/vendor/llama.cpp/"
    names = [
        "convert_hf_to_gguf.py", "conversion/__init__.py", "conversion/base.py", "gguf-py/gguf/__init__.py",
        "src/llama.cpp", "../../../escape.py", "conversion/../../escape.py",
    ]  # fmt: skip
    with tarfile.open(archive, "w:gz") as made:
        for name in [tree + name for name in names] + ["llama_cpp_python-9/.git/modules/vendor/llama.cpp/HEAD"]:
            member = tarfile.TarInfo(name)
            member.size = 3
            made.addfile(member, io.BytesIO(b"abc"))
    unpack(archive, tmp_path / "share" / "llama.cpp-9", version="9")
    assert {str(p.relative_to(tmp_path / "share")) for p in (tmp_path / "share").rglob("*") if p.is_file()} == {
        f"llama.cpp-9/{name}" for name in [*names[:4], "origin.json"]
    }
    origin = json.loads((tmp_path / "share" / "llama.cpp-9" / "origin.json").read_text())
    assert origin == {"llama-cpp-python": "9", "llama.cpp": "abc"}
