"""The merged folder is held to its base, its adapter and its own bytes; what is wrong in it is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from toolkit.atomic import read_json
from toolkit.verify import verify_export
from toolkit.verify.record import FileResult
from verdicts import failed_checks

pytest_plugins = ("exports", "certified")
pytest.importorskip("torch")


@pytest.fixture
def merged(export: Path) -> Path:
    """The folder of a copy without GGUF files: they take the time."""
    manifest = read_json(export / "manifest.json") | {"files": []}
    replace(export / "manifest.json", json.dumps(manifest))
    for path in export.glob("*.gguf"):
        path.unlink()
    return export / "merged"


def replace(path: Path, text: str) -> None:
    path.unlink()
    path.write_text(text, encoding="utf-8")


def change(path: Path, **values: Any) -> None:
    replace(path, json.dumps(read_json(path) | values))


def verdict(merged: Path) -> FileResult:
    return verify_export(merged.parent, problems=2).merged


def test_without_gguf_files_the_folder_alone_is_certified(merged: Path) -> None:
    record = verify_export(merged.parent, problems=2)
    assert record.passed and record.files == [] and record.recommended is None
    assert "llama.cpp" not in record.versions


@pytest.mark.parametrize(
    ("values", "checks"),
    [
        ({"eos_token_id": 49}, {"eos ends generation", "turn end ends generation", "stop tokens are special"}),
        ({"eos_token_id": [2, 198]}, {"stop tokens are special", "stop strings"}),
        ({"stop_strings": ["</answer>"]}, {"stop strings"}),
    ],
    ids=["lost", "line break", "answer tag"],
)
def test_a_wrong_stop_set_is_noticed(merged: Path, values: dict[str, Any], checks: set[str]) -> None:
    change(merged / "generation_config.json", **values)
    assert failed_checks(verdict(merged)) == checks | {"unchanged since export"}


def test_a_swapped_template_is_noticed(merged: Path) -> None:
    path = merged / "chat_template.jinja"
    replace(path, path.read_text(encoding="utf-8").replace("<|im_start|>", "<|im_end|>"))
    assert {"as in training", "template in both places"} <= failed_checks(verdict(merged))


def test_a_tokenizer_that_splits_digits_otherwise_is_noticed(merged: Path) -> None:
    content = read_json(merged / "tokenizer.json")
    content["pre_tokenizer"] = content["pre_tokenizer"]["pretokenizers"][1]
    replace(merged / "tokenizer.json", json.dumps(content))
    assert "as in training" in failed_checks(verdict(merged))


def test_a_weight_that_no_adapter_touched_is_noticed(merged: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = merged / "model.safetensors"
    weights = load_file(path)
    path.unlink()
    weights["model.layers.1.mlp.gate_proj.weight"] += 0.25
    save_file(weights, path, metadata={"format": "pt"})
    result = verdict(merged)
    assert "changed without training" in failed_checks(result)
    assert result.value("changed without training") == ["model.layers.1.mlp.gate_proj.weight"]


def test_another_adapter_beside_the_model_is_noticed(merged: Path, other_export: Path) -> None:
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        path = merged.parent / "adapter" / name
        path.unlink()
        path.write_bytes((other_export / "adapter" / name).read_bytes())
    assert {"adapter unchanged", "share of the training"} <= failed_checks(verdict(merged))


@pytest.mark.parametrize(
    "name", ["model.safetensors", "config.json", "tokenizer.json", "../adapter/adapter_model.safetensors"]
)
def test_a_folder_that_cannot_be_opened_gets_a_verdict(merged: Path, name: str) -> None:
    path = merged / name
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[: len(data) // 2])
    result = verdict(merged)
    assert "opens" in failed_checks(result) and ("adapter" in name or "unchanged since export" in failed_checks(result))
    assert read_json(merged.parent / "verify.json")["passed"] is False
