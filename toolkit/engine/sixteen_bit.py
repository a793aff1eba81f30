"""What an adapter is merged into, where the base is a 4-bit copy: its 16-bit original, found or named, or computed back.

Merging into 4-bit weights would round the adapter away. Computing 16-bit weights back from 4 bits is lossy against the
original, is done only where the recipe says so, and is recorded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit import console
from toolkit.atomic import read_json, replacing, sha256_of
from toolkit.engine.source import checkpoint_of, from_hub, is_hub_name, local_path
from toolkit.errors import EngineError
from toolkit.rundir import cache_folder

if TYPE_CHECKING:
    import torch

    from toolkit.recipe import Model
    from toolkit.recipe.schema import Export

LAYOUT = 1
"""Raised when the dequantised checkpoint becomes another for the same files."""

_COPY = re.compile(r"(-unsloth)?-bnb-4bit$", re.IGNORECASE)
_SHAPE_KEYS = (
    "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "tie_word_embeddings",
)  # fmt: skip
_ASK = "export.base=<Hub name or folder of the 16-bit original>; or, lossy: export.dequantize_base=true"


@dataclass(frozen=True, slots=True)
class MergeBase:
    """The folder of 16-bit weights, what it is called, and how it came to be the one."""

    folder: Path
    name: str
    found: str
    lossy: bool = False


def merge_base(model: Model, export: Export) -> MergeBase:
    """The 16-bit weights that an adapter of `model` is merged into.

    EngineError where the base is a 4-bit copy and its original is neither found nor named, or is another model.
    """
    config = _config(model.source, model.revision)
    if not _is_quantized(config):
        return MergeBase(checkpoint_of(model.source, model.revision), shown(model.source), "the base itself")
    if export.dequantize_base:
        own = checkpoint_of(model.source, model.revision)
        return MergeBase(dequantized(own), shown(model.source), "the 4-bit copy, computed back to 16 bits", lossy=True)
    original, found = (export.base, "named in export.base") if export.base else _original(model.source, config)
    if original is None:
        what = "the base is a 4-bit copy, and nothing says of which 16-bit model"
        raise EngineError(what, where=model.source, hint=_ASK)
    try:
        folder = checkpoint_of(original)
    except EngineError as error:
        error.hint = f"{error.hint}; or {_ASK}" if error.hint else _ASK
        raise
    _check_same(config, read_json(folder / "config.json"), model.source, original)
    return MergeBase(folder, shown(original), found)


def _config(source: str, revision: str | None) -> dict[str, Any]:
    """The source's config.json; of a Hub model nothing else is downloaded for it, and where it is out of reach, the
    name says whether it is a copy."""
    if not is_hub_name(source):
        file = local_path(source) / "config.json"
    else:
        try:
            file = from_hub(source, revision, files=("config.json",)) / "config.json"
        except EngineError:
            return {"quantization_config": {}} if _COPY.search(source) else {}
    return read_json(file) if file.is_file() else {}


def _is_quantized(config: dict[str, Any]) -> bool:
    return "quantization_config" in config or "quantization_config" in (config.get("text_config") or {})


def shown(source: str) -> str:
    """A source's name for records: nothing of this machine's folders."""
    return source if is_hub_name(source) or source.startswith("package:") else Path(source).name


def sixteen_bit_name(source: str) -> str | None:
    """The Hub name of the 16-bit model of which a Hub model is a 4-bit copy; None where it is none."""
    return _original(source, {})[0] if is_hub_name(source) else None


def _original(source: str, config: dict[str, Any]) -> tuple[str | None, str]:
    """The 16-bit model of which the source is a copy: by Unsloth's table, by the name, or by its config."""
    if is_hub_name(source):
        if named := _unsloth_table().get(source.lower()):
            return named, "Unsloth's table of copies"
        if _COPY.search(source):
            return _COPY.sub("", source), "the copy's name"
    else:
        beside = local_path(source).with_name(_COPY.sub("", Path(source).name))
        if beside != local_path(source) and beside.is_dir():
            return str(beside), "the folder beside the copy"
    written = _COPY.sub("", str(config.get("_name_or_path") or ""))
    if written and written != source and is_hub_name(written):
        return written, "the copy's config"
    return None, ""


@cache
def _unsloth_table() -> dict[str, str]:
    """Unsloth's 4-bit copies (in lower case) -> their originals."""
    table = getattr(_unsloth_mapper(), "INT_TO_FLOAT_MAPPER", {})
    return {name.lower(): original for name, original in table.items() if _COPY.search(name)}


def ungated_copy(name: str) -> str | None:
    """Unsloth's 16-bit copy of a Hub model, which asks nobody for their terms; None where its table has none."""
    copy = getattr(_unsloth_mapper(), "MAP_TO_UNSLOTH_16bit", {}).get(name.lower())
    return copy if copy and copy.lower() != name.lower() else None


def four_bit_copy(name: str) -> str | None:
    """The copy that Unsloth loads instead of a Hub model where 4 bits are asked for; None where its table has none."""
    copy = getattr(_unsloth_mapper(), "FLOAT_TO_INT_MAPPER", {}).get(name.lower())
    return copy if copy and copy.lower() != name.lower() else None


@cache
def _unsloth_mapper() -> Any:
    """Unsloth's tables of names. The file is read alone: importing unsloth takes seconds. None where it is not installed."""
    spec = find_spec("unsloth")
    folders = list(spec.submodule_search_locations or []) if spec else []
    file = Path(folders[0]) / "models" / "mapper.py" if folders else None
    if file is None or not file.is_file():
        return None
    found = spec_from_file_location("unsloth_mapper", file)
    assert found is not None and found.loader is not None
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module


def _check_same(copy: dict[str, Any], original: dict[str, Any], source: str, named: str) -> None:
    """The two are one model by their shapes, and the second is no copy itself."""
    if _is_quantized(original):
        raise EngineError("export.base is a quantised copy as well", where=named, hint=_ASK)
    if odd := odd_shapes(original, copy):
        raise EngineError(f"{named} is not the original of {source}: {', '.join(odd)}", hint=_ASK)


def odd_shapes(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Why a model of the one configuration cannot be of the other: `hidden_size 576 instead of 640`. What one lacks is left out."""
    here, there = (config.get("text_config") or config for config in (found, wanted))
    return [
        f"{key} {here[key]} instead of {there[key]}"
        for key in _SHAPE_KEYS
        if key in here and key in there and here[key] != there[key]
    ]


def dequantized(folder: Path) -> Path:
    """The 16-bit checkpoint of a bitsandbytes 4-bit one: made once, found by the hash of its files."""
    import hashlib

    files = sorted(folder.glob("*.safetensors"))
    digest = hashlib.sha256("".join(f"{file.name} {sha256_of(file)}\n" for file in files).encode()).hexdigest()
    target = cache_folder() / "checkpoints" / f"dequantized-{digest[:16]}-v{LAYOUT}"
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        console.say("computing 16-bit weights back from 4 bits (once)")
        with replacing(target) as staging:
            _dequantize(folder, files, staging)
    return target


def _dequantize(folder: Path, files: list[Path], out: Path) -> None:
    import json
    import shutil

    from safetensors.torch import save_file

    out.mkdir()
    weight_map, size = {}, 0
    for file in files:
        tensors = _plain_tensors(file)
        save_file(tensors, out / file.name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(tensors, file.name)
        size += sum(tensor.nbytes for tensor in tensors.values())
    if len(files) > 1:
        index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(weight_map.items()))}
        (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=2), encoding="utf-8")
    for path in folder.iterdir():
        if path.is_file() and path.suffix != ".safetensors" and not path.name.endswith(".index.json"):
            shutil.copyfile(path, out / path.name)
    config = read_json(folder / "config.json")
    config.pop("quantization_config")
    (out / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")


def _plain_tensors(file: Path) -> dict[str, torch.Tensor]:
    """The tensors of one file; what bitsandbytes packed (`weight`, `weight.absmax`, `weight.quant_state.…`) unpacked."""
    import torch
    from bitsandbytes.functional import QuantState, dequantize_4bit
    from safetensors import safe_open

    with safe_open(file, framework="pt") as handle:
        stored = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
    packed = sorted(name.partition(".quant_state.")[0] for name in stored if ".quant_state.bitsandbytes__" in name)
    for name in packed:
        parts = {key: stored.pop(key) for key in list(stored) if key.startswith(f"{name}.")}
        state = QuantState.from_dict(parts, device=torch.device("cpu"))
        stored[name] = dequantize_4bit(stored[name], state).contiguous()
    if odd := next((name for name, tensor in stored.items() if not tensor.is_floating_point()), None):
        raise EngineError(f"{odd} is quantised otherwise than in bitsandbytes' 4 bits", where=str(file), hint=_ASK)
    return stored
