"""The merged weights are PEFT's in fp32, rounded once, tensor by tensor from disk to disk; or an error that says why not."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from merging import SMALL, change_json, merged, merged_by_peft, weights_of, within_one_ulp
from models import child_environment
from tiny import write_adapter, write_base
from toolkit.export import checkpoint
from toolkit.export.merge import merge

pytest.importorskip("torch")
pytest.importorskip("peft")

pytest_plugins = ("exports",)


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


@pytest.mark.parametrize("shard_size", ["5GB", "10KB"])
@pytest.mark.parametrize("settings", [{}, {"target_modules": ["v_proj", "lm_head"]}], ids=["tied", "parted"])
def test_a_wide_merge_rounds_nothing_away(tmp_path: Path, settings: dict[str, Any], shard_size: str) -> None:
    """A change that is far below half a step of bfloat16 is whole in float32, and what nothing changes keeps its value."""
    import torch

    base = write_base(tmp_path / "base", **SMALL, shard_size=shard_size)
    adapter = write_adapter(base, tmp_path / "adapter", strength=1e-5, **settings)
    (tmp_path / "wide").mkdir()
    record = merge(base, adapter, tmp_path / "wide", wide=True)
    assert record.dtype == "float32" and record.unties == bool(settings)
    got, plain, expected = weights_of(tmp_path / "wide"), weights_of(base), merged_by_peft(base, adapter)
    assert {weight.dtype for weight in got.values()} == {torch.float32}
    for name, weight in got.items():
        if name in record.changed:
            torch.testing.assert_close(weight, expected[name], rtol=1e-6, atol=1e-8)
        else:
            assert torch.equal(weight, plain[name].float()), name
    merged(base, adapter, tmp_path / "narrow")
    narrow = weights_of(tmp_path / "narrow")
    for name in record.changed:
        before = plain[name if name in plain else "model.embed_tokens.weight"].float()
        kept, lost = ((weights[name].float() != before).float().mean() for weights in (got, narrow))
        assert lost < 0.3 and kept > 0.6, name
    if shard_size == "10KB":
        index = json.loads((tmp_path / "wide" / "model.safetensors.index.json").read_text())
        assert index["metadata"]["total_size"] == sum(weight.nbytes for weight in got.values())


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
