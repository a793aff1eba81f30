"""The importance matrix is the mean square of every matrix's inputs, and quantising with it is nearer to the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest

from tiny import exported, run_with
from toolkit.errors import ExportError
from toolkit.export.calibration import importance_of
from toolkit.llamacpp import FILE_TYPES, GgufFile, Importance, collect, open_model, quantize, save
from toolkit.llamacpp.imatrix import MIN_ROWS
from toolkit.recipe import load_resolved

pytest.importorskip("torch")
pytest.importorskip("peft")

pytest_plugins = ("exports",)

TEXTS = [list(range(900, 900 + length)) for length in (40, 25, 60)]


@pytest.fixture(scope="module")
def importance(source_gguf: Path) -> Importance:
    return collect(source_gguf, TEXTS, dataset="some numbers")


def test_it_is_the_mean_square_of_each_matrixs_inputs(importance: Importance, merged_tiny: Path) -> None:
    """As plain transformers computes them in fp32; llama.cpp rounds the inputs of its products to bf16."""
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(merged_tiny, dtype=torch.float32)
    sums: dict[str, Any] = {}

    def watch(name: str) -> Any:
        return lambda _, inputs: sums.__setitem__(name, sums.get(name, 0) + inputs[0].double().square().sum(dim=(0, 1)))

    hooks = {
        f"blk.{layer}.{theirs}.weight": f"model.layers.{layer}.{ours}"
        for layer in (0, 1)
        for theirs, ours in (("attn_q", "self_attn.q_proj"), ("attn_output", "self_attn.o_proj"), ("ffn_down", "mlp.down_proj"))
    }  # fmt: skip
    for theirs, ours in hooks.items():
        model.get_submodule(ours).register_forward_pre_hook(watch(theirs))
    with torch.inference_mode():
        for text in TEXTS:
            model(torch.tensor([text]))
    n_tokens = sum(map(len, TEXTS))
    for name, expected in sums.items():
        assert importance.counts[name] == n_tokens
        numpy.testing.assert_allclose(importance.means()[name], (expected / n_tokens).numpy(), rtol=0.05, atol=1e-5)


def test_every_matrix_of_every_layer_has_its_entry(importance: Importance, source_gguf: Path) -> None:
    shapes = {name: shape for name, shape in GgufFile(source_gguf).tensor_shapes.items() if name.startswith("blk.")}
    assert importance.sums.keys() == {name for name, shape in shapes.items() if len(shape) > 1}
    assert all(len(importance.sums[name]) == shapes[name][1] for name in importance.sums)
    assert (importance.n_texts, importance.n_tokens) == (3, 125)


def test_it_is_the_same_every_time_on_any_number_of_threads(importance: Importance, source_gguf: Path) -> None:
    again = collect(source_gguf, TEXTS, dataset="some numbers", threads=3)
    assert again.counts == importance.counts
    assert all(numpy.array_equal(again.sums[name], importance.sums[name]) for name in importance.sums)


def test_it_is_saved_as_llama_cpp_saves_it(importance: Importance, tmp_path: Path) -> None:
    save(importance, tmp_path / "imatrix.gguf")
    file = GgufFile(tmp_path / "imatrix.gguf")
    assert file.field("general.type") == "imatrix" and file.field("imatrix.datasets") == ["some numbers"]
    assert file.field("imatrix.chunk_count") == 3
    assert file.field("general.architecture") is None
    name = "blk.0.ffn_up.weight"
    assert set(file.tensors) == {f"{n}.{part}" for n in importance.sums for part in ("in_sum2", "counts")}
    stored = file.read([f"{name}.in_sum2", f"{name}.counts"])
    numpy.testing.assert_allclose(stored[f"{name}.in_sum2"][0], importance.sums[name], rtol=1e-6)
    assert stored[f"{name}.counts"].tolist() == [[125.0]]


def test_all_types_that_need_it_can_be_written_with_it(
    importance: Importance, source_gguf: Path, tmp_path: Path
) -> None:
    for kind in (kind for kind, known in FILE_TYPES.items() if known.needs_imatrix):
        quantize(source_gguf, tmp_path / f"{kind}.gguf", kind=kind, importance=importance)
        file = GgufFile(tmp_path / f"{kind}.gguf")
        assert file.field("quantize.imatrix.file") == "imatrix.gguf"
        assert file.field("quantize.imatrix.dataset") == "some numbers"
        assert file.field("quantize.imatrix.entries_count") == len(importance.sums)
        assert file.field("quantize.imatrix.chunks_count") == 3


def test_quantising_with_it_errs_less_where_inputs_are_large(
    importance: Importance, source_gguf: Path, tmp_path: Path
) -> None:
    """Error of the products, weighed by the mean squares of their inputs: what the matrix is for."""
    for kind, given in (("plain", None), ("weighed", importance)):
        quantize(source_gguf, tmp_path / f"{kind}.gguf", kind="q3_k_s", importance=given)
    names = [name for name in importance.sums if "ffn_up" in name or "attn_q" in name]
    exact = GgufFile(source_gguf).read(names)
    errors = {
        kind: sum(
            float(((got[name] - exact[name]) ** 2 * importance.means()[name]).sum()) for name in names
        )
        for kind in ("plain", "weighed")
        for got in [GgufFile(tmp_path / f"{kind}.gguf").read(names)]
    }  # fmt: skip
    assert errors["weighed"] < 0.97 * errors["plain"]


def test_it_comes_from_the_recipes_own_training_prompts(tiny_run: Path, source_gguf: Path) -> None:
    recipe = load_resolved(tiny_run / "recipe.json").recipe
    found = importance_of(recipe, source_gguf)
    rows = recipe.task.rows("train")
    assert (
        0 < found.n_texts <= len(rows)
        and found.dataset == f"{found.n_texts} training prompts of the task reasoning_gym"
    )
    with open_model(source_gguf, context=32) as model:
        expected = [model.chat_ids(recipe.task.messages(row)) for row in rows[: found.n_texts]]
    again = collect(source_gguf, expected, dataset=found.dataset)
    assert all(numpy.array_equal(again.sums[name], found.sums[name]) for name in found.sums)


def test_texts_that_are_too_short_are_said(source_gguf: Path) -> None:
    with pytest.raises(ExportError, match=f"no text has {MIN_ROWS} tokens"):
        collect(source_gguf, [[1, 2, 3]], dataset="short")


def test_an_export_with_it_says_what_it_was_computed_from(tiny_run: Path, tmp_path: Path) -> None:
    record = exported(run_with(tiny_run, tmp_path, imatrix=True, gguf=["f16", "iq2_xs"]), tmp_path / "out")
    assert record.imatrix["file"] == "imatrix/imatrix.gguf" and record.imatrix["texts"] > 0
    used = GgufFile(tmp_path / "out" / record.imatrix["file"])
    assert used.field("imatrix.datasets") == [record.imatrix["dataset"]]
    quantised = GgufFile(tmp_path / "out" / "tiny-iq2_xs.gguf")
    assert quantised.field("quantize.imatrix.dataset") == record.imatrix["dataset"]
    assert GgufFile(tmp_path / "out" / "tiny-f16.gguf").field("quantize.imatrix.file") is None
