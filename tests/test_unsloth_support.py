"""What Unsloth's vLLM does not serve is known before it is loaded, and is what the pinned source says."""

from __future__ import annotations

import ast
import json
import os
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from effects import GPU, setting
from recipe_keys import WITH_GPU, with_values
from toolkit.engine import load, unsloth_support
from toolkit.engine.arguments import grpo_arguments, load_arguments
from toolkit.engine.machine import Machine
from toolkit.recipe.checks import cross_problems

FOUR_BIT = {"model.load_in_4bit": True}
OLD = replace(GPU, capability=(6, 1))
TURING = replace(GPU, capability=(7, 5), bf16=False)


def constant(package: str, file: str, name: str) -> set[str]:
    """A tuple or list of names as it stands in an installed file that only a GPU can import."""
    spec = find_spec(package)
    assert spec is not None and spec.origin is not None
    tree = ast.parse((Path(spec.origin).parent / file).read_text(encoding="utf-8"))
    (found,) = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets)
    ]
    return set(ast.literal_eval(found))


def test_the_tables_are_those_of_the_pinned_source() -> None:
    assert constant("unsloth", "models/vision.py", "VLLM_SUPPORTED_VLM") == unsloth_support.PICTURE_MODELS
    assert constant("unsloth", "models/loader.py", "VLLM_NEEDS_SM80_MODEL_TYPES") == unsloth_support.NEED_AMPERE
    known = unsloth_support.TEXT_MODELS | unsloth_support.PICTURE_MODELS
    for file, name in (
        ("models/loader.py", "VLLM_UNSUPPORTED_MODEL_TYPES"),
        ("models/vision.py", "VLLM_NON_LORA_VLM"),
    ):
        assert not constant("unsloth", file, name) & known


def folder(path: Path, **config: Any) -> str:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (path / "model.safetensors").touch()
    return str(path)


@pytest.mark.parametrize(
    ("machine", "keys", "why"),
    [
        (replace(GPU, vllm=False), {}, "not installed"),
        (OLD, {}, "capability 7.0"),
        (replace(GPU, name="NVIDIA GB10"), {}, "Spark"),
        (replace(GPU, vllm_4bit=False), FOUR_BIT, "vllm-bnb-plugin"),
        (GPU, {"model.load_in_8bit": True}, "8-bit"),
        (GPU, {"model.dtype": "float32"}, "16 bits"),
        (GPU, {"model.full_finetuning": True, "model.lora.r": 16}, "full_finetuning"),
        (GPU, {"model.lora.r": 513}, "rank 512"),
    ],
)
@pytest.mark.parametrize("asked", [True, "auto"])
def test_what_it_cannot_serve_goes_the_plain_way_and_says_why(
    machine: Machine, keys: dict[str, Any], why: str, asked: Any
) -> None:
    resolved = setting(with_values(WITH_GPU, keys, {"model.fast_inference": asked}), machine)
    assert resolved.generator == "transformers"
    told = [change for change in resolved.changes if change.key == "model.fast_inference"]
    if asked is True or machine.vllm:  # without vLLM `auto` is no wish
        assert why in told[0].why and told[0].used is False
    else:
        assert told == []


@pytest.mark.parametrize(
    ("config", "machine", "keys", "why"),
    [
        ({"model_type": "gpt_oss"}, GPU, {}, "gpt_oss"),
        ({"model_type": "mllama"}, GPU, {}, "mllama"),
        ({"model_type": "gemma4"}, TURING, {}, "8.0"),
        ({"model_type": "qwen3_moe", "num_experts": 8}, GPU, FOUR_BIT, "experts"),
        ({"model_type": "llama", "quantization_config": {"load_in_8bit": True}}, GPU, {}, "8 bits"),
        ({"model_type": "qwen3_vl", "auto_map": {}}, GPU, {}, "code of its own"),
    ],
)
def test_what_the_model_rules_out_is_read_in_its_config(
    tmp_path: Path, config: dict[str, Any], machine: Machine, keys: dict[str, Any], why: str
) -> None:
    recipe = with_values(WITH_GPU, keys, {"model.source": folder(tmp_path / "base", **config)})
    resolved = setting(recipe, machine)
    assert resolved.generator == "transformers" and why in resolved.changes[0].why


@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "gemma3", "qwen3"])
def test_the_usual_models_are_served(tmp_path: Path, kind: str) -> None:
    recipe = with_values(WITH_GPU, FOUR_BIT, {"model.source": folder(tmp_path / "base", model_type=kind)})
    assert setting(recipe, GPU).generator == "unsloth"


def test_a_revision_is_loaded_from_its_folder_as_vllm_takes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = with_values(WITH_GPU, {"model.revision": "v2", "model.source": "org/base"})
    monkeypatch.setattr(load, "checkpoint_of", lambda *asked: Path("/".join(asked)))
    assert load._source(recipe, setting(recipe, GPU)) == "org/base/v2"
    assert load_arguments(recipe, setting(recipe, GPU), "s")["revision"] is None
    plain = setting(recipe)
    assert (load._source(recipe, plain), load_arguments(recipe, plain, "s")["revision"]) == ("org/base", "v2")


def test_the_trainer_is_told_of_all_tokens_in_vllms_words() -> None:
    for on, expected in ((GPU, -1), (replace(GPU, vllm=False), 0)):
        recipe = with_values(WITH_GPU, {"grpo.top_k": 0})
        assert grpo_arguments(recipe, setting(recipe, on), Path())["top_k"] == expected


def test_bases_in_4_and_in_8_bits_at_once_are_a_fault() -> None:
    with pytest.raises(ValueError, match="4 bits or in 8"):
        with_values(FOUR_BIT, {"model.load_in_8bit": True})
    assert cross_problems(with_values()) == []


def test_standby_is_known_before_unsloth_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """It decides at import how PyTorch allocates memory."""
    monkeypatch.setenv("UNSLOTH_VLLM_STANDBY", "left over")
    monkeypatch.setitem(sys.modules, "unsloth", type(os)("unsloth"))
    for standby, expected in ((None, "left over"), (True, "1"), (False, "0")):
        load.import_unsloth(standby=standby)
        assert os.environ["UNSLOTH_VLLM_STANDBY"] == expected
