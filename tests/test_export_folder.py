"""The folder beside the merged weights: config, tokenizer, template, stop set; nothing of the machine; opens everywhere."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from families import LLAMA_IDS, write_family_base, write_gemma, write_llama
from tiny import exported, merged_folder, write_adapter
from toolkit.export.folder import generation_of, turn_end, write_folder

pytest.importorskip("torch")
pytest.importorskip("peft")

pytest_plugins = ("exports",)

LLAMA_STOPS = [LLAMA_IDS[token] for token in ("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>")]


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


def folder_of(base: Path, out: Path, **options: Any) -> dict[str, str]:
    """What is written for this base: file name -> text."""
    out.mkdir()
    write_folder(base, base, out, dtype="bfloat16", **options)
    return {path.name: path.read_text(encoding="utf-8", errors="replace") for path in out.iterdir()}


# The stop set.


def test_gemma_stops_at_the_end_of_a_turn_and_of_the_text(tmp_path: Path) -> None:
    base = write_gemma(tmp_path / "base")
    write(base / "config.json", {"architectures": ["Gemma3ForCausalLM"], "eos_token_id": 1})
    assert json.loads(folder_of(base, tmp_path / "out")["generation_config.json"])["eos_token_id"] == [1, 106]


@pytest.mark.parametrize("eos", ["<|eot_id|>", "<|end_of_text|>"])
@pytest.mark.parametrize("kept", [None, 128009, 128001, [128001, 128008, 128009]])
def test_llama_3_2_stops_at_all_three_whatever_its_copy_kept(tmp_path: Path, eos: str, kept: Any) -> None:
    base = write_llama(tmp_path / "base", eos=eos)
    write(base / "config.json", {"architectures": ["LlamaForCausalLM"]} | ({"eos_token_id": kept} if kept else {}))
    written = json.loads(folder_of(base, tmp_path / "out")["generation_config.json"])
    assert written["eos_token_id"] == LLAMA_STOPS == [128001, 128008, 128009]


def test_what_the_base_says_of_generation_is_kept(tmp_path: Path) -> None:
    base = write_gemma(tmp_path / "base")
    write(base / "config.json", {"eos_token_id": 1})
    write(base / "generation_config.json", {"eos_token_id": [1, 50], "top_k": 64, "_from_model_config": True})
    written = json.loads(folder_of(base, tmp_path / "out")["generation_config.json"])
    assert written == {"eos_token_id": [1, 50, 106], "top_k": 64}


CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


def test_one_stop_token_is_a_number_and_no_list(tmp_path: Path) -> None:
    decoder = {"0": {"content": "<|endoftext|>"}, "2": {"content": "<|im_end|>"}}
    settings = {"chat_template": CHATML, "eos_token": "<|im_end|>", "added_tokens_decoder": decoder}
    write(tmp_path / "tokenizer_config.json", settings)
    assert generation_of({}, {"eos_token_id": 2}, tmp_path)["eos_token_id"] == 2


def test_the_end_of_a_turn_is_only_a_special_token() -> None:
    settings = {"chat_template": "{% for m in messages %}{{ m.content }}\n\n{% endfor %}"}
    assert turn_end(settings, {"<eos>": 1}) is None


# Tokenizer files.


def test_gemma_without_its_tokenizer_model_gets_one_that_splits_alike(tmp_path: Path) -> None:
    """transformers 5 does not save it, and llama.cpp's converter makes Gemma files from nothing else."""
    import sentencepiece

    base = write_gemma(tmp_path / "base")
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(base / "tokenizer.model"))
    (base / "tokenizer.model").unlink()
    write(base / "config.json", {"architectures": ["Gemma3ForCausalLM"], "eos_token_id": 1})
    assert "tokenizer.model" in folder_of(base, tmp_path / "out")
    ours = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "out" / "tokenizer.model"))
    assert [ours.id_to_piece(n) for n in range(len(ours))] == [theirs.id_to_piece(n) for n in range(len(theirs))]
    for text in ("the cat  sat", " what is   twelve plus", "thinkingraining ünder 漢\n\t12", "oldtown byseathe"):
        assert ours.encode(text) == theirs.encode(text), text


def test_others_get_no_tokenizer_model_that_their_base_lacks(tmp_path: Path) -> None:
    base = write_gemma(tmp_path / "base", sentencepiece=False)
    write(base / "config.json", {"architectures": ["LlamaForCausalLM"], "eos_token_id": 1})
    assert "tokenizer.model" not in folder_of(base, tmp_path / "out")


def test_a_tokenizer_model_of_the_base_is_copied_and_special_tokens_are_spelled_out(tmp_path: Path) -> None:
    base = write_gemma(tmp_path / "base")
    write(base / "config.json", {"architectures": ["Gemma3ForCausalLM"], "eos_token_id": 1})
    written = folder_of(base, tmp_path / "out")
    assert (tmp_path / "out" / "tokenizer.model").read_bytes() == (base / "tokenizer.model").read_bytes()
    decoder = json.loads(written["tokenizer_config.json"])["added_tokens_decoder"]
    assert decoder["106"] == {
        "content": "<end_of_turn>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
        "special": True,
    }  # fmt: skip


def test_a_byte_level_tokenizer_that_claims_byte_fallback_is_mended(tiny_run: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    base = tmp_path / "base"
    shutil.copytree(tiny_run.parent.parent / "base", base)
    content = read(base / "tokenizer.json")
    content["model"] |= {"byte_fallback": True, "fuse_unk": True, "unk_token": "<|endoftext|>"}
    write(base / "tokenizer.json", content)
    folder_of(base, tmp_path / "out")
    assert read(tmp_path / "out" / "tokenizer.json")["model"]["byte_fallback"] is False
    ours, theirs = (AutoTokenizer.from_pretrained(folder) for folder in (tmp_path / "out", base))
    text = "  12 ½ 漢字 🙂\t<|im_end|>"
    assert ours(text).input_ids == theirs(text).input_ids


# The whole folder.


def test_the_folder_is_complete_and_knows_no_machine(tiny_run: Path, tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(tiny_run.parent.parent / "base", base)
    config = read(base / "config.json") | {
        "_name_or_path": str(base), "quantization_config": {"load_in_4bit": True}, "torch_dtype": "float32",
        "text_config": {"quantization_config": {}, "torch_dtype": "float32", "_name_or_path": str(base)},
    }  # fmt: skip
    write(base / "config.json", config)
    settings = {"special_tokens_map_file": str(base / "map.json"), "tokenizer_file": str(base / "tokenizer.json")}
    write(base / "tokenizer_config.json", read(base / "tokenizer_config.json") | settings)
    write(base / "preprocessor_config.json", {"image_processor_type": "Eyes", "_name_or_path": str(base)})
    (base / "LICENSE").write_text("terms")
    written = folder_of(base, tmp_path / "out")
    assert set(written) == {
        "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "LICENSE",
        "preprocessor_config.json",
    }  # fmt: skip
    assert json.loads(written["preprocessor_config.json"]) == {"image_processor_type": "Eyes"}
    assert str(tmp_path) not in "".join(written.values())
    config = json.loads(written["config.json"])
    assert "quantization_config" not in config and config["text_config"] == {"dtype": "bfloat16"}
    assert config["dtype"] == "bfloat16" and "torch_dtype" not in config
    settings = json.loads(written["tokenizer_config.json"])
    assert settings["chat_template"] == written["chat_template.jinja"]
    assert settings["added_tokens_decoder"]["2"]["content"] == "<|im_end|>"


def test_an_untied_head_is_said_in_the_config(tiny_run: Path, tmp_path: Path) -> None:
    written = folder_of(tiny_run.parent.parent / "base", tmp_path / "out", unties=True)
    assert json.loads(written["config.json"])["tie_word_embeddings"] is False


@pytest.mark.parametrize("family", ["gemma", "llama"])
def test_plain_transformers_opens_the_folder(tmp_path: Path, family: str) -> None:
    """With its tokenizer, template and stop set; nothing missing, nothing left over."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    base = tmp_path / "base"
    write_family_base(base, family)
    out = merged_folder(base, write_adapter(base, tmp_path / "adapter"), tmp_path / "out")
    opened: Any = AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
    model, loading = opened
    assert not any(loading[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert model.dtype == torch.bfloat16
    tokenizer = AutoTokenizer.from_pretrained(out)
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "what is 12"}], return_dict=False)
    assert ids == AutoTokenizer.from_pretrained(base).apply_chat_template(
        [{"role": "user", "content": "what is 12"}], return_dict=False
    )
    assert model.generation_config.eos_token_id == ([1, 106] if family == "gemma" else LLAMA_STOPS)
    with torch.inference_mode():
        assert torch.isfinite(model(torch.tensor([ids])).logits).all()


def test_plain_peft_opens_the_adapter(tiny_run: Path, tmp_path: Path) -> None:
    """On the base it is what was trained, and what the merged folder is."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    export = exported(tiny_run, tmp_path / "out", quants=[]).folder
    base = tiny_run.parent.parent / "base"
    ids = torch.arange(40).reshape(1, -1)
    plain: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    merged: Any = AutoModelForCausalLM.from_pretrained(export / "merged", dtype=torch.float32)
    with torch.inference_mode():
        before = plain(ids).logits
        tuned = PeftModel.from_pretrained(plain, str(export / "adapter"))(ids).logits
        assert (merged(ids).logits - tuned).abs().max() < 0.05 * (before - tuned).abs().max()
    assert read(export / "adapter" / "adapter_config.json")["base_model_name_or_path"] is None
    assert str(base) not in (export / "adapter" / "adapter_config.json").read_text()
