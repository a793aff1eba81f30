"""An adapter is merged into the tensors that it was trained on, whatever they are called, or refused with a reason."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from merging import SMALL, change_json, merged, merged_by_peft, opened, rewrite, weights_of, within_one_ulp
from tiny import write_adapter, write_base
from toolkit.errors import ExportError
from toolkit.export.match import LAYOUTS

pytest.importorskip("torch")
pytest.importorskip("peft")

pytest_plugins = ("exports",)


# Tied embeddings: what was one matrix may be two after training, and PEFT's own merge changes both.


HEADS: dict[str, tuple[dict[str, Any], bool]] = {
    "lora-on-the-head": ({"target_modules": ["lm_head", "q_proj"]}, True),
    "lora-on-the-embedding": ({"target_modules": ["embed_tokens", "q_proj"]}, True),
    "embedding-saved": ({"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]}, True),
    "head-saved": ({"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}, True),
    "both-saved": ({"target_modules": ["q_proj"], "modules_to_save": ["lm_head", "embed_tokens"]}, True),
    "lora-tied": ({"target_modules": ["embed_tokens", "q_proj"], "ensure_weight_tying": True}, False),
    "saved-tied": (
        {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
        False,
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("shard_size", ["5GB", "10KB"])
@pytest.mark.parametrize(("settings", "unties"), HEADS.values(), ids=HEADS)
def test_a_tied_base_becomes_what_was_trained(
    tmp_path: Path, settings: dict[str, Any], unties: bool, shard_size: str
) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from toolkit.export.folder import untied

    base = write_base(tmp_path / "base", **SMALL, shard_size=shard_size)
    adapter = write_adapter(base, tmp_path / "adapter", strength=0.3, **settings)
    record = merged(base, adapter, tmp_path / "merged")
    assert record.unties == unties
    assert ("lm_head.weight" in weights_of(tmp_path / "merged")) == unties
    config = json.loads((base / "config.json").read_text())
    (tmp_path / "merged" / "config.json").write_text(json.dumps(untied(config) if unties else config))
    ids = torch.arange(24).reshape(1, -1)
    plain: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    before = plain(ids).logits
    with torch.inference_mode():
        expected = PeftModel.from_pretrained(plain, adapter).eval()(ids).logits
    opened: Any = AutoModelForCausalLM.from_pretrained(
        tmp_path / "merged", dtype=torch.float32, output_loading_info=True
    )
    model, loading = opened
    assert not any(loading[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    with torch.inference_mode():
        got = model(ids).logits
    assert (got - expected).abs().max() < 0.02 * (before - expected).abs().max()
    index = tmp_path / "merged" / "model.safetensors.index.json"
    if index.is_file():
        content = json.loads(index.read_text())
        assert content["weight_map"].keys() == weights_of(tmp_path / "merged").keys()
        assert content["metadata"]["total_size"] == sum(t.nbytes for t in weights_of(tmp_path / "merged").values())


@pytest.mark.filterwarnings("ignore")
def test_an_adapter_beside_another_embedding_than_the_bases_is_refused(small_base: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    adapter = write_adapter(small_base, tmp_path / "adapter", target_modules=["lm_head"])
    shutil.copytree(small_base, other)
    rewrite(other / "model.safetensors", lambda name, tensor: tensor + 1 if "embed" in name else tensor)
    with pytest.raises(ExportError, match=r"a copy of model\.embed_tokens\.weight that differs from the base"):
        merged(other, adapter, tmp_path / "merged")


# Names.


@pytest.mark.parametrize("stored", LAYOUTS, ids=[body for body, _ in LAYOUTS])
@pytest.mark.parametrize("trained", LAYOUTS, ids=[body for body, _ in LAYOUTS])
def test_a_language_model_inside_another_is_found(
    small_base: Path, tmp_path: Path, trained: tuple[str, str], stored: tuple[str, str]
) -> None:
    """As Gemma 3 from 4B on lies on the Hub and in memory, in old and new versions of transformers."""
    import torch

    adapter, base = write_adapter(small_base, tmp_path / "adapter"), tmp_path / "base"
    reference = tmp_path / "reference"
    merged(small_base, adapter, reference)
    shutil.copytree(small_base, base)
    prefix = "base_model.model."
    rewrite(base / "model.safetensors", lambda _, tensor: tensor, lambda name: named(name, stored))
    rewrite(
        adapter / "adapter_model.safetensors",
        lambda _, tensor: tensor,
        lambda name: prefix + named(name.removeprefix(prefix), trained),
    )
    changed = merged(base, adapter, tmp_path / "merged").changed
    assert len(changed) == 8 and all(name.startswith(stored[0]) for name in changed)
    expected = {named(name, stored): tensor for name, tensor in weights_of(reference).items()}
    for name, tensor in weights_of(tmp_path / "merged").items():
        assert torch.equal(tensor, expected[name])


def named(name: str, layout: tuple[str, str]) -> str:
    return layout[0] + name.removeprefix("model.") if name.startswith("model.") else name


def test_gemma_3_with_eyes_is_merged_as_transformers_saves_it(tmp_path: Path) -> None:
    """The class of Gemma 3 from 4B on: in memory its text part is called otherwise than in the file."""
    import torch
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    text = {
        "vocab_size": 99, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 16, "sliding_window": 8, "max_position_embeddings": 64,
    }  # fmt: skip
    vision = {
        "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
        "patch_size": 14,
    }  # fmt: skip
    torch.manual_seed(1)
    config = Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)
    base = tmp_path / "base"
    Gemma3ForConditionalGeneration(config).bfloat16().save_pretrained(base)
    targets = r".*language_model.*\.(q_proj|down_proj)"
    kind = "AutoModelForImageTextToText"
    adapter = write_adapter(base, tmp_path / "adapter", kind=kind, target_modules=targets)
    changed = merged(base, adapter, tmp_path / "merged").changed
    assert len(changed) == 4
    shutil.copy(base / "config.json", tmp_path / "merged")
    expected, got, before = merged_by_peft(base, adapter, kind), opened(tmp_path / "merged", kind), opened(base, kind)
    assert all(within_one_ulp(got[name], expected[name], before[name]) for name in got)
    assert sum(not torch.equal(got[name], before[name]) for name in got) == 4


# What is refused.


def test_an_adapter_for_another_model_is_refused_with_examples_of_both_sides(small_base: Path, tmp_path: Path) -> None:
    bigger = write_base(tmp_path / "bigger", **SMALL, num_hidden_layers=3)
    adapter = write_adapter(bigger, tmp_path / "adapter")
    with pytest.raises(ExportError) as caught:
        merged(small_base, adapter, tmp_path / "merged")
    assert "4 of the 12 tensors that were trained are not in the base" in caught.value.message
    assert "model.layers.2.mlp.down_proj.weight" in caught.value.message
    assert "model.embed_tokens.weight" in caught.value.message
    assert not list((tmp_path / "merged").iterdir())


def test_an_adapter_with_no_name_of_the_base_is_refused(small_base: Path, small_adapter: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    shutil.copytree(small_adapter, adapter)
    keep = "base_model.model."
    rewrite(
        adapter / "adapter_model.safetensors",
        lambda _, tensor: tensor,
        lambda name: keep + "transformer." + name.removeprefix(keep),
    )
    with pytest.raises(ExportError, match="8 of the 8 tensors that were trained are not in the base"):
        merged(small_base, adapter, tmp_path / "merged")


def test_an_adapter_of_another_width_is_refused(small_base: Path, tmp_path: Path) -> None:
    wider = write_base(tmp_path / "wider", **(SMALL | {"intermediate_size": 64}))
    adapter = write_adapter(wider, tmp_path / "adapter")
    with pytest.raises(ExportError, match=r"\(32, 64\) as it was trained, \(32, 48\) in the base"):
        merged(small_base, adapter, tmp_path / "merged")


@pytest.mark.parametrize(
    ("key", "value"),
    [("bias", "all"), ("init_lora_weights", "pissa"), ("layer_replication", [[0, 1]]), ("fan_in_fan_out", True),
     ("use_some_new_kind", True), ("peft_type", "IA3"), ("r", 3), ("use_dora", True), ("modules_to_save", ["norm"]),
     ("trainable_token_indices", [1]), ("lora_bias", True)],
)  # fmt: skip
def test_what_cannot_be_merged_exactly_is_refused(
    small_base: Path, small_adapter: Path, tmp_path: Path, key: str, value: Any
) -> None:
    adapter = tmp_path / "adapter"
    shutil.copytree(small_adapter, adapter)
    change_json(adapter / "adapter_config.json", **{key: value})
    with pytest.raises(ExportError):
        merged(small_base, adapter, tmp_path / "merged")


@pytest.mark.parametrize("part", ["lora_A", "lora_B"])
def test_half_an_adapter_is_refused(small_base: Path, small_adapter: Path, tmp_path: Path, part: str) -> None:
    from safetensors.torch import load_file, save_file

    adapter = tmp_path / "adapter"
    shutil.copytree(small_adapter, adapter)
    file = adapter / "adapter_model.safetensors"
    tensors = load_file(file)
    tensors.pop(next(key for key in tensors if part in key))
    save_file(tensors, file)
    with pytest.raises(ExportError, match="only half of"):
        merged(small_base, adapter, tmp_path / "merged")


def test_a_base_in_4_bits_is_refused(small_base: Path, small_adapter: Path, tmp_path: Path) -> None:
    import torch

    base = tmp_path / "base"
    shutil.copytree(small_base, base)
    rewrite(
        base / "model.safetensors",
        lambda name, tensor: torch.zeros(tensor.shape, dtype=torch.uint8) if "up_proj" in name else tensor,
    )
    with pytest.raises(ExportError, match="stored as U8: only plain 16- or 32-bit weights can be merged into"):
        merged(base, small_adapter, tmp_path / "merged")


@pytest.mark.parametrize("file", ["model.safetensors", "adapter_model.safetensors"])
def test_weights_cut_short_are_refused(small_base: Path, small_adapter: Path, tmp_path: Path, file: str) -> None:
    for source, name in ((small_base, "base"), (small_adapter, "adapter")):
        shutil.copytree(source, tmp_path / name)
    path = next(tmp_path.rglob(file))
    with open(path, "rb+") as handle:
        handle.truncate(handle.seek(0, 2) - 100)
    with pytest.raises(ExportError, match="its header speaks of"):
        merged(tmp_path / "base", tmp_path / "adapter", tmp_path / "merged")


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_numbers_that_are_none_are_refused(small_base: Path, small_adapter: Path, tmp_path: Path, value: float) -> None:
    adapter = tmp_path / "adapter"
    shutil.copytree(small_adapter, adapter)

    def spoil(name: str, tensor: Any) -> Any:
        if "layers.1.mlp.up_proj.lora_B" in name:
            tensor[-1, -1] = value
        return tensor

    rewrite(adapter / "adapter_model.safetensors", spoil)
    with pytest.raises(ExportError, match=r"layers\.1\.mlp\.up_proj\.weight holds infinite or undefined"):
        merged(small_base, adapter, tmp_path / "merged")
