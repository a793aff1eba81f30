"""GGUF files hold the merged model: every type that llama.cpp offers, in shards where they are large, and as a LoRA."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy
import pytest

from families import write_family_base, write_gemma, write_llama
from tiny import edit_gguf, merged_folder, need_llama_cpp, write_adapter, write_base
from toolkit.errors import ExportError
from toolkit.export.lora import write_lora
from toolkit.export.written import check_conversion, check_quant
from toolkit.llamacpp import (
    CONTROL,
    FILE_TYPES,
    GgufFile,
    convert,
    file_type_number,
    open_model,
    quantize,
    shard_paths,
    split,
)
from toolkit.recipe.checks import NEEDS_IMATRIX
from toolkit.recipe.schema import GgufType
from toolkit.verify.limits import LIMITS

pytest.importorskip("torch")
pytest.importorskip("peft")

pytest_plugins = ("exports",)


# Types.


def test_the_recipe_the_quantiser_and_the_limits_know_the_same_types() -> None:
    assert tuple(FILE_TYPES) == get_args(GgufType)
    assert set(LIMITS) == set(FILE_TYPES)
    assert set(NEEDS_IMATRIX) == {kind for kind, known in FILE_TYPES.items() if known.needs_imatrix}


def test_every_type_is_written_or_asks_for_an_importance_matrix(small_gguf: Path, tmp_path: Path) -> None:
    for kind, known in FILE_TYPES.items():
        out = tmp_path / f"{kind}.gguf"
        if known.needs_imatrix:
            with pytest.raises(ExportError, match="imatrix"):
                quantize(small_gguf, out, kind=kind)
            assert not out.exists()
        else:
            quantize(small_gguf, out, kind=kind)
            check_quant(out, GgufFile(small_gguf))
            assert GgufFile(out).field("general.file_type") == file_type_number(kind)


def test_what_cannot_be_quantised_says_so_in_llama_cpps_words(small_gguf: Path, tmp_path: Path) -> None:
    quantize(small_gguf, tmp_path / "q4.gguf", kind="q4_0")
    with pytest.raises(ExportError, match="requantizing from type q6_K is disabled"):
        quantize(tmp_path / "q4.gguf", tmp_path / "q8.gguf", kind="q8_0")


# What is checked after writing.


def test_the_conversion_holds_everything_of_the_folder(tiny_gguf: Path, merged_tiny: Path) -> None:
    check_conversion(tiny_gguf, merged_tiny)
    file, config = GgufFile(tiny_gguf), json.loads((merged_tiny / "config.json").read_text())
    assert len(file.tensors) == 20 and len(file.tokens) == config["vocab_size"] == 49152
    assert file.field("tokenizer.chat_template") == (merged_tiny / "chat_template.jinja").read_bytes().decode()
    assert file.n_merges == len(json.loads((merged_tiny / "tokenizer.json").read_text())["model"]["merges"])
    assert file.token_types[file.field("tokenizer.ggml.eos_token_id")] == CONTROL


TOO_MUCH = "{% for m in messages %}{{ m.content }}{% endfor %}"
DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "template": (lambda path: edit_gguf(path, tokenizer__chat_template=TOO_MUCH), "another chat template"),
    "eos": (lambda path: edit_gguf(path, tokenizer__ggml__eos_token_id=0), "the eos token is 0 instead of 2"),
    "bos": (lambda path: edit_gguf(path, tokenizer__ggml__bos_token_id=7), "the bos token is 7 instead of 1"),
    "layers": (lambda path: rename_tensor(path, "blk.1.attn_q.weight", "blk.1.attn_x.weight"), "self_attn.q_proj.weight"),
    "control": (lambda path: edit_array(path, "tokenizer.ggml.token_type", 2, 1), "special tokens are not of the type"),
}  # fmt: skip


def rename_tensor(path: Path, old: str, new: str) -> None:
    data = path.read_bytes()
    assert len(old) == len(new) and data.count(old.encode()) == 1
    path.write_bytes(data.replace(old.encode(), new.encode()))


def edit_array(path: Path, field: str, index: int, value: int) -> None:
    """One number of an int32 array in the header."""
    data = bytearray(path.read_bytes())
    at = data.index(field.encode()) + len(field) + 4 + 4 + 8 + 4 * index
    struct.pack_into("<i", data, at, value)
    path.write_bytes(data)


@pytest.mark.parametrize(("damage", "words"), DAMAGE.values(), ids=DAMAGE)
def test_a_conversion_that_lost_something_is_an_error(
    tiny_gguf: Path, merged_tiny: Path, tmp_path: Path, damage: Callable[[Path], None], words: str
) -> None:
    broken = tmp_path / "broken.gguf"
    shutil.copy(tiny_gguf, broken)
    damage(broken)
    with pytest.raises(ExportError, match=words):
        check_conversion(broken, merged_tiny)


def test_a_vocabulary_that_is_not_the_embeddings_is_an_error(
    tiny_gguf: Path, merged_tiny: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(merged_tiny, folder)
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["merges"].pop()
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ExportError, match="merges instead of"):
        check_conversion(tiny_gguf, folder)


@pytest.mark.parametrize("family", ["gemma", "gemma-rebuilt", "llama"])
def test_files_of_other_families_split_text_as_transformers_does(tmp_path: Path, family: str) -> None:
    """Gemma's SentencePiece, also with a tokenizer.model that was made from its tokenizer.json, and Llama 3's bytes."""
    from transformers import AutoTokenizer

    need_llama_cpp()
    base = tmp_path / "base"
    write_family_base(base, family.partition("-")[0])
    if family == "gemma-rebuilt":
        (base / "tokenizer.model").unlink()
    out = merged_folder(base, write_adapter(base, tmp_path / "adapter"), tmp_path / "out")
    if family == "llama":
        with pytest.raises(ExportError, match="pre-tokenizer was not recognized"):
            convert(out, tmp_path / "file.gguf", outtype="bf16", name="n")  # llama.cpp knows tokenizers by their hash
        return
    convert(out, tmp_path / "file.gguf", outtype="bf16", name="n")
    check_conversion(tmp_path / "file.gguf", out)
    tokenizer = AutoTokenizer.from_pretrained(out)
    chats = [[{"role": "user", "content": text}] for text in ("the cat  sat", "ünder 漢 12\t34", "<end_of_turn> not")]
    with open_model(tmp_path / "file.gguf", context=64) as model:
        assert [model.is_stop(token) for token in (1, 106, 105)] == [True, True, False]
        for chat in chats:
            assert model.chat_ids(chat) == tokenizer.apply_chat_template(
                chat, add_generation_prompt=True, return_dict=False
            )


def test_those_tokenizers_are_whole(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    for write in (write_gemma, write_llama):
        tokenizer = AutoTokenizer.from_pretrained(write(tmp_path / write.__name__))
        assert tokenizer.decode(tokenizer("what is 12 plus", add_special_tokens=False).input_ids) == "what is 12 plus"


# Shards.


def test_shards_are_one_model(tiny_gguf: Path, tmp_path: Path) -> None:
    """llama.cpp finds them all from the first, and computes with them what it computes with the whole file."""
    whole = tmp_path / "n-q8_0.gguf"
    quantize(tiny_gguf, whole, kind="q8_0")
    before, size = GgufFile(whole), whole.stat().st_size
    with open_model(whole, context=64) as model:
        expected = model.log_probabilities(list(range(40)), 1)
    shards = split(whole, max_bytes=15_000_000)
    assert [path.name for path in shards] == ["n-q8_0-00001-of-00002.gguf", "n-q8_0-00002-of-00002.gguf"]
    assert not whole.exists() and sorted(tmp_path.iterdir()) == shards
    assert all(path.stat().st_size <= 15_000_000 for path in shards)
    assert size <= sum(path.stat().st_size for path in shards) < size + 1000
    assert shard_paths(shards[1]) == shards
    with open_model(shards[0], context=64) as model:
        assert numpy.array_equal(model.log_probabilities(list(range(40)), 1), expected)
    after = GgufFile(shards[0])
    assert after.tensor_types == before.tensor_types and after.tokens == before.tokens
    assert {name: tensor.data.tobytes() for name, tensor in after.tensors.items()} == {
        name: tensor.data.tobytes() for name, tensor in before.tensors.items()
    }


def test_a_small_file_stays_whole_and_a_tensor_is_never_cut(tiny_gguf: Path, tmp_path: Path) -> None:
    copy = tmp_path / "n.gguf"
    shutil.copy(tiny_gguf, copy)
    assert split(copy, max_bytes=10**9) == [copy]
    with pytest.raises(ExportError, match=r"token_embd\.weight alone needs 27 MB, more than export\.max_shard_size"):
        split(copy, max_bytes=20_000_000)
    assert sorted(tmp_path.iterdir()) == [copy]


@pytest.mark.parametrize("damage", ["missing", "short", "swapped"])
def test_a_lost_shard_is_noticed(tiny_gguf: Path, tmp_path: Path, damage: str) -> None:
    copy = tmp_path / "n.gguf"
    shutil.copy(tiny_gguf, copy)
    first, second = split(copy, max_bytes=27_000_000)
    if damage == "missing":
        second.unlink()
    elif damage == "short":
        with open(second, "rb+") as handle:
            handle.truncate(second.stat().st_size - 64)
    else:
        shutil.copy(first, second)
    with pytest.raises(ExportError, match="not a whole GGUF file"):
        GgufFile(first)


# The adapter alone.


LORA_KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rslora": {"use_rslora": True, "r": 8},
    "patterns": {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"up_proj": 32}},
    "all-linear": {"target_modules": "all-linear", "lora_alpha": 3},
}


@pytest.fixture(scope="module")
def plain_gguf(merged_small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The base of the small Gemma, in fp32."""
    folder = tmp_path_factory.mktemp("plain")
    shutil.copytree(merged_small, folder / "base")
    shutil.copy(merged_small.parent / "base" / "model.safetensors", folder / "base")
    convert(folder / "base", folder / "base.gguf", outtype="f32", name="n")
    return folder / "base.gguf"


@pytest.mark.parametrize("settings", LORA_KINDS.values(), ids=LORA_KINDS)
def test_a_gguf_lora_on_the_base_is_what_was_trained(
    merged_small: Path, plain_gguf: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    """llama.cpp knows one alpha for all modules: with PEFT's other scales a file would be wrong without a word."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base, ids = merged_small.parent / "base", list(range(110, 150))
    adapter = write_adapter(base, tmp_path / "adapter", strength=0.2, **settings)
    lora = tmp_path / "n-lora.gguf"
    write_lora(adapter, lora, base=merged_small, name="n")
    assert {path.name for path in tmp_path.iterdir()} == {"adapter", lora.name}
    head = GgufFile(lora)
    assert (head.field("general.type"), head.field("adapter.type")) == ("adapter", "lora")
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    with torch.inference_mode():
        logits = PeftModel.from_pretrained(model, adapter).eval()(torch.tensor([ids])).logits[0, :-1]
    expected = torch.log_softmax(logits, dim=-1).numpy()
    with open_model(plain_gguf, context=64) as opened:
        before = opened.log_probabilities(ids, 1)
    with open_model(plain_gguf, context=64, lora=(lora, 1.0)) as opened:
        got = opened.log_probabilities(ids, 1)
    assert numpy.abs(got - expected).max() < 0.02 * numpy.abs(before - expected).max()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"use_dora": True}, "DoRA"),
        (
            {"target_modules": ["q_proj"], "modules_to_save": ["norm"]},
            r"modules that were trained whole \(model\.layers\.0\.in",
        ),
        ({"target_modules": ["q_proj", "lm_head"]}, r"the output head \(lm_head\)"),
    ],
)
def test_an_adapter_that_llama_cpp_would_apply_by_halves_is_refused(
    tmp_path: Path, settings: dict[str, Any], words: str
) -> None:
    base = write_base(tmp_path / "base", vocab_size=96, hidden_size=32, intermediate_size=48)
    adapter = write_adapter(base, tmp_path / "adapter", **settings)
    with pytest.raises(ExportError, match=words):
        write_lora(adapter, tmp_path / "lora.gguf", base=base, name="n")
