"""An adapter is merged into 16-bit weights: of a 4-bit copy into its original, or, where asked, into what 4 bits still hold."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tiny import write_adapter, write_base
from toolkit.engine import sixteen_bit
from toolkit.engine.sixteen_bit import dequantized, merge_base
from toolkit.engine.source import checkpoint_of, source_fingerprint, training_source
from toolkit.errors import EngineError
from toolkit.recipe import Model
from toolkit.recipe.schema import Export

SMALL = {"vocab_size": 96, "hidden_size": 64, "intermediate_size": 96}
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def model(source: Path | str, **keys: Any) -> Model:
    return Model.model_validate({"source": str(source)} | keys)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("bases") / "original", **SMALL)


def copy_in_4_bits(original: Path, folder: Path, **settings: Any) -> Path:
    """As Unsloth and others publish them: bitsandbytes' packed numbers, and what they mean in the config."""
    import torch
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    how = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16, **settings)
    packed = AutoModelForCausalLM.from_pretrained(original, quantization_config=how, dtype=torch.bfloat16)
    packed.save_pretrained(folder)
    return folder


def copy_by_config(original: Path, folder: Path, **changes: Any) -> Path:
    """A copy of which only the config says that it is packed."""
    shutil.copytree(original, folder)
    config = json.loads((folder / "config.json").read_text()) | {"quantization_config": {"load_in_4bit": True}}
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


def weights_of(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return {k: v for path in folder.glob("*.safetensors") for k, v in load_file(path).items()}


# Where the original is.


def test_a_base_of_16_bits_is_merged_into_itself(original: Path) -> None:
    found = merge_base(model(original), Export(base="org/other", dequantize_base=True))
    assert (found.folder, found.name, found.lossy) == (original, "original", False)


@pytest.mark.parametrize(
    ("copy", "wanted"),
    [
        ("unsloth/gemma-3-1b-it-unsloth-bnb-4bit", "unsloth/gemma-3-1b-it"),
        ("unsloth/Llama-3.2-3B-Instruct-bnb-4bit", "unsloth/Llama-3.2-3B-Instruct"),
        ("someone/Tuned-7B-BNB-4bit", "someone/Tuned-7B"),
        # Names of which the original cannot be guessed; from Unsloth's own table.
        ("unsloth/OpenThinker-7B-unsloth-bnb-4bit", "open-thoughts/OpenThinker-7B"),
        ("unsloth/llama-3-70b-instruct-bnb-4bit", "meta-llama/Meta-Llama-3-70B-Instruct"),
    ],
)
def test_the_original_of_a_copy_on_the_hub_is_found(
    copy: str, wanted: str, original: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if find_spec("unsloth") is None:
        pytest.skip("its table of copies is not installed")
    asked = []
    monkeypatch.setattr(sixteen_bit, "_config", lambda *_: {"quantization_config": {}})
    monkeypatch.setattr(
        sixteen_bit, "checkpoint_of", lambda name, revision=None: asked.append((name, revision)) or original
    )
    found = merge_base(model(copy, revision="of-the-copy"), Export())
    assert (found.folder, found.name, found.lossy) == (original, wanted, False)
    assert asked == [(wanted, None)], "the copy's revision is none of the original"
    assert training_source(model(copy)) == copy, "training loads the copy itself"


def test_the_original_of_a_folder_lies_beside_it_or_is_named_in_its_config(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = copy_by_config(original, tmp_path / "mine-bnb-4bit", _name_or_path="org/mine-bnb-4bit")
    asked = []
    with monkeypatch.context() as patch:
        patch.setattr(sixteen_bit, "checkpoint_of", lambda name, _=None: asked.append(name) or original)
        assert merge_base(model(copy), Export()).found == "the copy's config"
    assert asked == ["org/mine"]
    shutil.copytree(original, tmp_path / "mine")
    assert merge_base(model(copy), Export()).folder == tmp_path / "mine"
    assert training_source(model(copy)) == str(copy)


def test_an_original_that_is_not_known_is_asked_for(original: Path, tmp_path: Path) -> None:
    copy = copy_by_config(original, tmp_path / "copy")
    with pytest.raises(EngineError, match="a 4-bit copy, and nothing says of which 16-bit model") as caught:
        merge_base(model(copy), Export())
    assert "export.base=" in str(caught.value.hint) and "export.dequantize_base=true" in str(caught.value.hint)
    found = merge_base(model(copy), Export(base=str(original)))
    assert (found.folder, found.name, found.found) == (original, "original", "named in export.base")
    with pytest.raises(EngineError, match=r"there is no .*nowhere") as caught:
        merge_base(model(copy), Export(base=str(tmp_path / "nowhere")))
    assert "export.base=" in str(caught.value.hint)


def test_another_model_is_not_the_original(original: Path, tmp_path: Path) -> None:
    copy = copy_by_config(original, tmp_path / "copy")
    other = write_base(tmp_path / "other", **(SMALL | {"num_hidden_layers": 3}))
    with pytest.raises(EngineError, match="num_hidden_layers 3 instead of 2"):
        merge_base(model(copy), Export(base=str(other)))
    with pytest.raises(EngineError, match="a quantised copy as well"):
        merge_base(model(copy), Export(base=str(copy_by_config(original, tmp_path / "another"))))


# The lossy way.


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "settings",
    [
        {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
        {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": False},
        {"bnb_4bit_quant_type": "fp4", "bnb_4bit_use_double_quant": False},
    ],
    ids=["nf4-nested", "nf4", "fp4"],
)
def test_weights_computed_back_are_those_that_the_4_bit_model_calculates_with(
    original: Path, tmp_path: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from bitsandbytes.functional import dequantize_4bit
    from transformers import AutoModelForCausalLM

    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path / "cache"))
    copy = copy_in_4_bits(original, tmp_path / "copy", **settings)
    folder = dequantized(copy)
    assert dequantized(copy) == folder, "made once"
    got, before = weights_of(folder), weights_of(original)
    assert got.keys() == before.keys()
    packed = AutoModelForCausalLM.from_pretrained(copy)
    module: Any
    for name, module in packed.named_modules():
        if type(module).__name__ == "Linear4bit" and name != "lm_head":
            expected = dequantize_4bit(module.weight.data, module.weight.quant_state)
            assert torch.equal(got[f"{name}.weight"], expected.to(torch.bfloat16)), name
    assert torch.equal(got["model.norm.weight"], before["model.norm.weight"])
    assert not torch.equal(got["model.layers.0.mlp.up_proj.weight"], before["model.layers.0.mlp.up_proj.weight"])
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    plain: Any = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(plain[1][kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))


@pytest.mark.filterwarnings("ignore")
def test_an_export_of_the_lossy_way_is_asked_for_and_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tiny import write_tokenizer
    from toolkit.export import export_run
    from toolkit.recipe import load_recipe

    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path / "cache"))
    original = write_base(tmp_path / "original")
    write_tokenizer(original)
    copy = copy_in_4_bits(original, tmp_path / "copy", bnb_4bit_quant_type="nf4")
    write_tokenizer(copy)
    write_adapter(original, tmp_path / "run" / "adapter")
    for flag, passes in (("false", False), ("true", True)):
        words = [f"model.source={json.dumps(str(copy))}", f"export.dequantize_base={flag}"]
        recipe = load_recipe("smoke", words).recipe.model_dump_json()
        (tmp_path / "run" / "recipe.json").write_text(recipe)
        if not passes:
            with pytest.raises(EngineError, match="a 4-bit copy"):
                export_run(tmp_path / "run", quants=[], out=tmp_path / "out")
    record = export_run(tmp_path / "run", quants=[], out=tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["base"]["merged_into"]["lossy"] is True
    assert "computed back from 4 bits" in record.warnings[0]
    assert "computed back from 4 bits" in capsys.readouterr().err
    assert str(tmp_path) not in json.dumps(manifest["base"]["merged_into"])


# A model of the Hub in the cache, without a network.


@pytest.fixture
def cached(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`org/base` as huggingface_hub keeps it: its snapshot folder."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    repo = tmp_path / "hub" / "models--org--base"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text(COMMIT)
    shutil.copytree(original, repo / "snapshots" / COMMIT)
    return repo / "snapshots" / COMMIT


def test_a_cached_model_of_the_hub_needs_no_network(cached: Path) -> None:
    found = merge_base(model("org/base"), Export())
    assert (found.folder, found.name) == (cached, "org/base")
    assert checkpoint_of("org/base", COMMIT) == cached
    copy = copy_by_config(cached, cached.parents[2] / "models--org--base-bnb-4bit" / "snapshots" / COMMIT)
    (copy.parents[1] / "refs").mkdir()
    (copy.parents[1] / "refs" / "main").write_text(COMMIT)
    assert merge_base(model("org/base-bnb-4bit"), Export()).folder == cached
    assert len(source_fingerprint(model("org/base-bnb-4bit"))) == 64
    shutil.rmtree(copy.parents[1])
    assert merge_base(model("org/base-bnb-4bit"), Export()).folder == cached, "the name alone tells of the original"


def test_a_cache_without_all_weights_is_an_error_with_their_names(cached: Path) -> None:
    (cached / "model.safetensors").unlink()
    with pytest.raises(EngineError, match=r"org/base lies in the cache without model\.safetensors"):
        merge_base(model("org/base"), Export())
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (cached / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(EngineError, match=r"without model-00001-of-00002\.safetensors and 1 more"):
        merge_base(model("org/base"), Export())


def test_what_is_not_in_the_cache_is_an_error_with_the_way_out(cached: Path) -> None:
    for name in ("org/none", "org/none-bnb-4bit"):
        with pytest.raises(EngineError, match="org/none cannot be downloaded") as caught:
            merge_base(model(name), Export())
        assert "connect to the Hub" in str(caught.value.hint)
