"""The merged weights are PEFT's in fp32, rounded once, tensor by tensor from disk to disk; or an error that says why not."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from models import child_environment
from tiny import write_adapter, write_base
from toolkit.errors import ExportError
from toolkit.export import checkpoint
from toolkit.export.match import LAYOUTS
from toolkit.export.merge import Merged, merge

pytest.importorskip("torch")
pytest.importorskip("peft")

SMALL = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48}


@pytest.fixture(scope="module")
def small_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("small") / "base", **SMALL)


@pytest.fixture(scope="module")
def small_adapter(small_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_adapter(small_base, tmp_path_factory.mktemp("small") / "adapter")


def merged(base: Path, adapter: Path, out: Path) -> Merged:
    out.mkdir()
    return merge(base, adapter, out)


def weights_of(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return {k: v for path in folder.glob("*.safetensors") for k, v in load_file(path).items()}


def merged_by_peft(base: Path, adapter: Path, kind: str = "AutoModelForCausalLM") -> dict[str, Any]:
    import torch
    import transformers
    from peft import PeftModel

    model = getattr(transformers, kind).from_pretrained(base, dtype=torch.float32)
    return dict(PeftModel.from_pretrained(model, adapter).merge_and_unload().state_dict())


def within_one_ulp(got: Any, expected: Any, base: Any) -> bool:
    """Whether bf16 numbers are the fp32 reference's, or the next ones to them. Where base and change cancel, the reference
    itself is only known to the rounding of its fp32 summands, which is coarser than bf16 there."""
    import torch

    def places(tensor: Any) -> Any:
        bits = tensor.to(torch.bfloat16).contiguous().view(torch.int16).int()
        return torch.where(bits < 0, -(bits & 0x7FFF), bits)

    summands = base.float().abs() + (expected - base.float()).abs()
    near = (places(got) - places(expected)).abs() <= 1
    return bool((near | ((got.float() - expected).abs() <= 2**-22 * summands)).all())


def change_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rslora": {"use_rslora": True, "r": 8},
    "patterns": {"rank_pattern": {"layers.0.self_attn.q_proj": 2}, "alpha_pattern": {"up_proj": 32}},
    "patterns-by-regex": {"rank_pattern": {r"layers\.[01]\.mlp\..*": 3}, "alpha_pattern": {r".*\.1\..*v_proj": 5}},
    "dora": {"use_dora": True},
    "dora-rslora-patterns": {"use_dora": True, "use_rslora": True, "rank_pattern": {"down_proj": 6}, "lora_alpha": 3},
    "modules_to_save": {"target_modules": ["v_proj"], "modules_to_save": ["input_layernorm", "k_proj"]},
    "all-linear": {"target_modules": "all-linear"},
    "some-layers": {"layers_to_transform": [1], "target_modules": ["o_proj", "gate_proj"]},
}


@pytest.mark.parametrize("settings", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("block_weights", [checkpoint.BLOCK_WEIGHTS, 100])
def test_merge_is_pefts_merge_in_fp32_within_one_ulp_and_leaves_the_rest_alone(
    small_base: Path, tmp_path: Path, settings: dict[str, Any], block_weights: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(checkpoint, "BLOCK_WEIGHTS", block_weights)  # the small one: several blocks to a tensor
    adapter = write_adapter(small_base, tmp_path / "adapter", **settings)
    changed = merged(small_base, adapter, tmp_path / "merged").changed
    expected, base, got = merged_by_peft(small_base, adapter), weights_of(small_base), weights_of(tmp_path / "merged")
    assert got.keys() == base.keys()
    assert changed
    for name, weight in got.items():
        assert weight.dtype == torch.bfloat16
        if name in changed:
            assert within_one_ulp(weight, expected[name], base[name]), name
            assert not torch.equal(weight, base[name])
        else:
            assert torch.equal(weight.view(torch.int16), base[name].view(torch.int16)), name
    targets = settings.get("target_modules", ["q_proj", "v_proj", "up_proj", "down_proj"])
    if isinstance(targets, list):
        layers = settings.get("layers_to_transform", [0, 1])
        assert len(changed) == len(layers) * (len(targets) + len(settings.get("modules_to_save", [])))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_base_of_another_type_keeps_it(small_base: Path, tmp_path: Path, dtype: str) -> None:
    import torch
    from safetensors.torch import save_file

    base = tmp_path / "base"
    shutil.copytree(small_base, base)
    kind = getattr(torch, dtype)
    save_file({k: v.to(kind) for k, v in weights_of(base).items()}, base / "model.safetensors", {"format": "pt"})
    adapter = write_adapter(base, tmp_path / "adapter")
    record = merged(base, adapter, tmp_path / "merged")
    assert record.dtype == dtype
    expected = merged_by_peft(base, adapter)
    for name, weight in weights_of(tmp_path / "merged").items():
        torch.testing.assert_close(weight, expected[name].to(kind))


def test_merge_of_plain_lora_is_exact_to_the_bit(small_base: Path, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    adapter = write_adapter(small_base, tmp_path / "adapter", target_modules=["up_proj"])
    changed = merged(small_base, adapter, tmp_path / "merged").changed
    got, base = weights_of(tmp_path / "merged"), weights_of(small_base)
    factors = load_file(adapter / "adapter_model.safetensors")
    for name in changed:
        path = "base_model.model." + name.removesuffix(".weight")
        delta = factors[f"{path}.lora_B.weight"] @ factors[f"{path}.lora_A.weight"] * 2.0
        assert torch.equal(got[name], (base[name].float() + delta).to(torch.bfloat16))


def test_a_sharded_base_keeps_its_shards_and_untouched_bytes(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base", **SMALL, shard_size="10KB")
    adapter = write_adapter(base, tmp_path / "adapter", target_modules=["o_proj"])
    shards = sorted(path.name for path in base.glob("*.safetensors"))
    changed = merged(base, adapter, tmp_path / "merged").changed
    assert len(shards) > 2
    assert sorted(path.name for path in (tmp_path / "merged").glob("*.safetensors")) == shards
    index = "model.safetensors.index.json"
    assert (tmp_path / "merged" / index).read_bytes() == (base / index).read_bytes()
    assert sorted(changed) == [f"model.layers.{n}.self_attn.o_proj.weight" for n in (0, 1)]
    whole = [name for name in shards if not set(read_names(base / name)) & set(changed)]
    assert whole and all((base / name).read_bytes() == (tmp_path / "merged" / name).read_bytes() for name in whole)
    assert set(weights_of(tmp_path / "merged")) == set(weights_of(base))


def read_names(path: Path) -> list[str]:
    return list(checkpoint.read_shard(path).tensors)


def test_an_index_with_a_wrong_total_size_is_mended(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base", **SMALL, shard_size="10KB")
    index = base / "model.safetensors.index.json"
    right = json.loads(index.read_text())["metadata"]["total_size"]
    change_json(index, metadata={"total_size": right // 2, "note": "kept"})
    merged(base, write_adapter(base, tmp_path / "adapter"), tmp_path / "merged")
    written = json.loads((tmp_path / "merged" / index.name).read_text())
    assert written["metadata"] == {"total_size": right, "note": "kept"}
    assert right == sum(tensor.nbytes for tensor in weights_of(tmp_path / "merged").values())


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


def rewrite(path: Path, change: Callable[[str, Any], Any], rename: Callable[[str], str] = str) -> None:
    from safetensors.torch import load_file, save_file

    save_file({rename(name): change(name, tensor) for name, tensor in load_file(path).items()}, path, {"format": "pt"})


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
    Gemma3ForConditionalGeneration(config).to(torch.bfloat16).save_pretrained(base)
    targets = r".*language_model.*\.(q_proj|down_proj)"
    kind = "AutoModelForImageTextToText"
    adapter = write_adapter(base, tmp_path / "adapter", kind=kind, target_modules=targets)
    changed = merged(base, adapter, tmp_path / "merged").changed
    assert len(changed) == 4
    shutil.copy(base / "config.json", tmp_path / "merged")
    expected, got, before = merged_by_peft(base, adapter, kind), opened(tmp_path / "merged", kind), opened(base, kind)
    assert all(within_one_ulp(got[name], expected[name], before[name]) for name in got)
    assert sum(not torch.equal(got[name], before[name]) for name in got) == 4


def opened(folder: Path, kind: str) -> dict[str, Any]:
    import torch
    import transformers

    return dict(getattr(transformers, kind).from_pretrained(folder, dtype=torch.float32).state_dict())


# What is refused.


def test_an_adapter_for_another_model_is_refused_with_examples_of_both_sides(small_base: Path, tmp_path: Path) -> None:
    bigger = write_base(tmp_path / "bigger", **SMALL, num_hidden_layers=3)
    adapter = write_adapter(bigger, tmp_path / "adapter")
    with pytest.raises(ExportError) as caught:
        merged(small_base, adapter, tmp_path / "merged")
    assert "4 of the adapter's 12 tensors are not in the base" in caught.value.message
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
    with pytest.raises(ExportError, match="8 of the adapter's 8 tensors are not in the base"):
        merged(small_base, adapter, tmp_path / "merged")


def test_an_adapter_of_another_width_is_refused(small_base: Path, tmp_path: Path) -> None:
    wider = write_base(tmp_path / "wider", **(SMALL | {"intermediate_size": 64}))
    adapter = write_adapter(wider, tmp_path / "adapter")
    with pytest.raises(ExportError, match=r"\(32, 64\) in the adapter, \(32, 48\) in the base"):
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
    with pytest.raises(ExportError, match="stored as U8: an adapter is merged into 16-bit weights only"):
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


# Memory.


MEASURE = """
import resource, sys
from pathlib import Path
import torch
from toolkit.export.merge import merge
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
merge(*map(Path, sys.argv[1:]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_does_not_grow_with_a_tensor(tmp_path: Path) -> None:
    """An embedding of 33 million weights, replaced as a whole, takes 270 MB in two types; the merge holds some rows."""
    import torch
    from safetensors.torch import save_file

    base, adapter, out = (tmp_path / name for name in ("base", "adapter", "out"))
    for folder in (base, adapter, out):
        folder.mkdir()
    rows, width = 2**16, 2**9
    old, new = torch.zeros(rows, width, dtype=torch.bfloat16), torch.ones(rows, width)
    save_file({"model.embed_tokens.weight": old, "lm_head.weight": old + 1}, base / "model.safetensors")
    save_file({"base_model.model.model.embed_tokens.weight": new}, adapter / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "modules_to_save": ["embed_tokens"], "r": 1, "lora_alpha": 1}
    (adapter / "adapter_config.json").write_text(json.dumps(settings))
    command = [sys.executable, "-c", MEASURE, str(base), str(adapter), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, env=child_environment(), check=True)
    assert int(done.stdout) / 1024 < 70, "MB more than before the merge"
    assert bool((weights_of(out)["model.embed_tokens.weight"] == 1).all())
