"""Writes what a merged model needs beside its weights: config, tokenizer, chat template, generation config.

Plain JSON work on the base's own files, so that nothing of the machine or of the training library gets in.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from toolkit import atomic, rundir
from toolkit.errors import ExportError
from toolkit.export.tokenizer_model import is_needed, write_tokenizer_model
from toolkit.llamacpp import render_chat

TOKENIZER = "tokenizer.json"
SENTENCEPIECE = "tokenizer.model"
TOKENIZER_FILES = (
    SENTENCEPIECE, "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
)  # fmt: skip
PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
"""Of models that see pictures, too: transformers' processor and vLLM open none without them."""
TEMPLATE = "chat_template.jinja"
MACHINE_KEYS = frozenset(
    {
        "_name_or_path",
        "_model_name_or_path",
        "name_or_path",
        "is_local",
        "local_files_only",
        "_from_model_config",
        "special_tokens_map_file",
        "tokenizer_file",
    }
)
"""What libraries write of the machine that saved a model: its paths, and how it was opened there."""
TRAINING_KEYS = frozenset({"quantization_config", "unsloth_version", "unsloth_fixed", "use_cache"})
ENDS = {
    "<|eot_id|>": ("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"),
    "<end_of_turn>": ("<eos>", "<end_of_turn>"),
}
"""End of a turn -> every token that ends an answer in that family, as Meta (Llama 3.1 on) and Google (Gemma) publish it in
generation_config.json, which copies of their models do not always keep."""


def write_folder(base: Path, adapter: Path, out: Path, *, dtype: str, unties: bool = False) -> None:
    """All files but the weights. The template is the run's own, where it saved one beside the adapter. `unties`: the
    output head is a tensor of its own now."""
    config = config_of(read_json(base / "config.json"), dtype)
    _write_json(out / "config.json", untied(config) if unties else config)
    for name in TOKENIZER_FILES:
        _copy_if_there(base / name, out / name)
    for name in PROCESSOR_FILES:
        if (base / name).is_file():
            _write_json(out / name, _of_no_machine(read_json(base / name)))
    if (base / TOKENIZER).is_file():
        _write_tokenizer(base / TOKENIZER, out / TOKENIZER)
        if not (base / SENTENCEPIECE).is_file() and is_needed(config, read_json(base / TOKENIZER)):
            write_tokenizer_model(read_json(base / TOKENIZER), out / SENTENCEPIECE)
    elif not (base / SENTENCEPIECE).is_file():
        raise ExportError("the base model has no tokenizer.json and no tokenizer.model", where=str(base))
    for pattern in rundir.LICENCE_FILES:
        for path in sorted(base.glob(pattern)):
            _copy_if_there(path, out / path.name)
    settings = tokenizer_settings(base, adapter)
    _write_json(out / "tokenizer_config.json", settings)
    if template := settings.get("chat_template"):
        (out / TEMPLATE).write_text(template, encoding="utf-8", newline="")
    generation = read_json(base / "generation_config.json", {})
    _write_json(out / "generation_config.json", generation_of(generation, read_json(base / "config.json"), out))


def _write_tokenizer(source: Path, target: Path) -> None:
    """A copy, but for one mark: a byte-level vocabulary has no tokens to fall back to, and where
    `byte_fallback` is set all the same (transformers sets it when it rebuilds a tokenizer from GGUF) the
    converter takes it for SentencePiece and writes a file on which llama.cpp aborts."""
    content = read_json(source)
    model = content.get("model", {})
    if model.get("type") == "BPE" and model.get("byte_fallback") and "<0x00>" not in model.get("vocab", {}):
        model |= {"byte_fallback": False, "fuse_unk": False}
        target.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    else:
        shutil.copyfile(source, target)


def config_of(config: dict[str, Any], dtype: str) -> dict[str, Any]:
    """The base's config with the type of the written weights, without quantisation and traces of the
    machine."""
    kept = {key: value for key, value in _of_no_machine(config).items() if key not in TRAINING_KEYS}
    kept.pop("torch_dtype", None)
    for part in [kept, *(value for value in kept.values() if isinstance(value, dict))]:
        part.pop("quantization_config", None)
        if "dtype" in part or "torch_dtype" in part:
            part.pop("torch_dtype", None)
            part["dtype"] = dtype
    return kept | {"dtype": dtype, "use_cache": True}


def _of_no_machine(content: dict[str, Any]) -> dict[str, Any]:
    """Without the MACHINE_KEYS, however deep: parts of a model have configs of their own."""
    kept = ((key, value) for key, value in content.items() if key not in MACHINE_KEYS)
    return {key: _of_no_machine(value) if isinstance(value, dict) else value for key, value in kept}


def untied(config: dict[str, Any]) -> dict[str, Any]:
    """The config of the same model with an output head of its own."""
    text = config.get("text_config")
    inner = {"text_config": text | {"tie_word_embeddings": False}} if isinstance(text, dict) else {}
    return config | inner | {"tie_word_embeddings": False}


def tokenizer_settings(base: Path, adapter: Path) -> dict[str, Any]:
    """tokenizer_config.json with the chat template inline and the special tokens spelled out for
    converters."""
    settings = read_json(base / "tokenizer_config.json", {})
    settings = {key: value for key, value in _of_no_machine(settings).items() if key != "backend"}
    if settings.get("tokenizer_class") == "TokenizersBackend":  # transformers 5 alone knows this name
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    for folder in (adapter, base):
        if (folder / TEMPLATE).is_file():
            settings["chat_template"] = (folder / TEMPLATE).read_bytes().decode("utf-8")
            break
    if not settings.get("added_tokens_decoder") and (base / TOKENIZER).is_file():
        tokens = read_json(base / TOKENIZER).get("added_tokens", [])
        settings["added_tokens_decoder"] = {
            str(token["id"]): {key: value for key, value in token.items() if key != "id"} for token in tokens
        }
    return settings


def generation_of(generation: dict[str, Any], config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The base's generation config with every token that ends an answer: its own, the config's, the
    tokenizer's, the one that the chat template writes after an assistant's turn, and its family's."""
    settings, ids = read_json(folder / "tokenizer_config.json"), special_ids(folder)
    text_config = config.get("text_config") or {}
    stops = _as_list(generation.get("eos_token_id")) or _as_list(config.get("eos_token_id"))
    stops += _as_list(text_config.get("eos_token_id")) if not stops else []
    ends = (token_text(settings.get("eos_token")), turn_end(settings, ids))
    family = [token for end in ends for token in ENDS.get(end or "", ())]
    stops += [ids[token] for token in (*ends, *family) if token in ids]
    distinct = sorted(set(stops))
    if not distinct:
        raise ExportError("no token is known to end an answer: neither config nor tokenizer names one")
    return _of_no_machine(generation) | {"eos_token_id": distinct[0] if len(distinct) == 1 else distinct}


def turn_end(settings: dict[str, Any], ids: dict[str, int]) -> str | None:
    """The special token that the chat template writes right after an assistant's words, if it writes one."""
    template = settings.get("chat_template")
    if not isinstance(template, str):
        return None
    mark = "toolkit-turn-mark"
    chat = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": mark}]
    bos, eos = token_text(settings.get("bos_token")), token_text(settings.get("eos_token"))
    rest = render_chat(template, chat, bos=bos, eos=eos, generate=False).rpartition(mark)[2].lstrip()
    return max((token for token in ids if rest.startswith(token)), key=len, default=None)


def special_ids(folder: Path) -> dict[str, int]:
    """Text of each added token -> id."""
    settings = read_json(folder / "tokenizer_config.json")
    return {entry["content"]: int(number) for number, entry in settings.get("added_tokens_decoder", {}).items()}


def token_text(token: Any) -> str:
    """A token in tokenizer_config.json is a text, or an object with the text in it."""
    return str(token["content"]) if isinstance(token, dict) else str(token or "")


def read_json(path: Path, default: dict[str, Any] | None = None) -> dict[str, Any]:
    """A JSON file of the base model; where it may be absent, `default` stands for it."""
    return dict(default) if default is not None and not path.is_file() else atomic.read_json(path)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _copy_if_there(source: Path, target: Path) -> bool:
    if source.is_file():
        shutil.copyfile(source, target)
    return source.is_file()


def _as_list(ids: Any) -> list[int]:
    return [] if ids is None else [int(one) for one in ids] if isinstance(ids, list) else [int(ids)]
