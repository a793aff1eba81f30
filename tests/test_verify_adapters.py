"""Every kind of adapter that is merged is proven, against PEFT's own merge; and what one module lacks shows there alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tiny import exported, need_llama_cpp, write_adapter, write_base, write_tokenizer
from toolkit.recipe import load_recipe
from toolkit.verify import verify_export
from verdicts import failed_checks

pytest_plugins = ("exports",)
pytest.importorskip("peft")

KINDS: dict[str, dict[str, Any]] = {
    "DoRA": {"use_dora": True},
    "ranks and alphas of their own, rank-stabilised": {
        "use_rslora": True, "rank_pattern": {"layers.0.self_attn.q_proj": 2, "down_proj": 6}, "alpha_pattern": {"v_proj": 3},
    },
    "modules trained whole": {"modules_to_save": ["norm"]},
    "a tied embedding": {"target_modules": ["embed_tokens", "q_proj"]},
    "a tied embedding trained whole": {"modules_to_save": ["embed_tokens"]},
    "a tied head": {"target_modules": ["lm_head", "q_proj"]},
}  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need_llama_cpp()
    folder = write_base(tmp_path_factory.mktemp("kinds") / "base", hidden_size=64, intermediate_size=64)
    write_tokenizer(folder)
    return folder


def export_of(base: Path, folder: Path, **settings: Any) -> Path:
    run = folder / "runs" / "tiny"
    run.mkdir(parents=True)
    lora = f"export.lora_gguf={json.dumps(settings.pop('lora_gguf', False))}"
    loaded = load_recipe("smoke", [f"model.source={json.dumps(str(base))}", "export.gguf=[]", lora])
    (run / "recipe.json").write_text(loaded.recipe.model_dump_json(), encoding="utf-8")
    write_adapter(base, run / "adapter", **settings)
    return exported(run, folder / "export", quants=[]).folder


@pytest.mark.parametrize("kind", KINDS)
def test_an_adapter_of_every_kind_is_proven(base: Path, tmp_path: Path, kind: str) -> None:
    merged = verify_export(export_of(base, tmp_path, **KINDS[kind]), problems=1).merged
    assert failed_checks(merged) == set()
    assert merged.value("KL to base") > 1e-4, "the adapter must be there to be seen"
    assert merged.value("share of the training") == pytest.approx(1, abs=0.02)


def test_one_module_at_half_its_scale_is_noticed_by_its_weights_alone(base: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    export = export_of(base, tmp_path)
    path, name = export / "merged" / "model.safetensors", "model.layers.1.self_attn.q_proj.weight"
    weights, before = load_file(path), load_file(base / "model.safetensors")[name]
    weights[name] = ((weights[name].float() + before.float()) / 2).to(before.dtype)
    save_file(weights, path, metadata={"format": "pt"})
    merged = verify_export(export, problems=1).merged
    assert failed_checks(merged) == {"unchanged since export", "merged as PEFT merges"}
    assert merged.value("merged as PEFT merges") == [name]


def test_a_gguf_lora_is_held_to_the_adapter_and_not_to_what_16_bits_left_of_it(base: Path, tmp_path: Path) -> None:
    """Of changes about as large as the steps of 16 bits, merged - base is another direction."""
    export = export_of(base, tmp_path, strength=2e-4, lora_gguf=True)
    (lora,) = verify_export(export, problems=1).files
    assert failed_checks(lora) == set()
    assert lora.value("adapter in the factors") == pytest.approx(1, abs=1e-3)
    config = export / "adapter" / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"alpha_pattern": {"v_proj": 6}}))
    (lora,) = verify_export(export, problems=1).files
    assert lora.value("modules") == [f"model.layers.{n}.self_attn.v_proj.weight" for n in (0, 1)], "a lost scale"
