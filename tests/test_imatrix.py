"""The importance matrix is the mean square of every matrix's inputs, and quantising with it is nearer to the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest

from tiny import exported, run_with
from toolkit.errors import ExportError
from toolkit.export.calibration import importance_of
from toolkit.llamacpp import FILE_TYPES, GgufFile, Importance, collect, imatrix, open_model, quantize, save
from toolkit.llamacpp.imatrix import MIN_ROWS
from toolkit.recipe import load_resolved

pytest.importorskip("torch")
pytest.importorskip("peft")

pytest_plugins = ("exports",)

TEXTS = [list(range(110, 110 + length)) for length in (40, 25, 60)]


@pytest.fixture(scope="module")
def importance(small_gguf: Path) -> Importance:
    return collect(small_gguf, TEXTS, dataset="some numbers")


def test_it_is_the_mean_square_of_each_matrixs_inputs(importance: Importance, merged_small: Path) -> None:
    """As plain transformers computes them in fp32; llama.cpp rounds the inputs of its products to bf16."""
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(merged_small, dtype=torch.float32)
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


def test_every_matrix_of_every_layer_has_its_entry(importance: Importance, small_gguf: Path) -> None:
    shapes = {name: shape for name, shape in GgufFile(small_gguf).tensor_shapes.items() if name.startswith("blk.")}
    assert importance.sums.keys() == {name for name, shape in shapes.items() if len(shape) > 1}
    assert all(len(importance.sums[name]) == shapes[name][1] for name in importance.sums)
    assert (importance.n_texts, importance.n_tokens) == (3, 125)


def test_it_is_the_same_every_time_on_any_number_of_threads(importance: Importance, small_gguf: Path) -> None:
    again = collect(small_gguf, TEXTS, dataset="some numbers", threads=3)
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


@pytest.mark.parametrize("kind", ["q2_k_s", "iq3_xs", "iq2_xs"])
def test_types_that_need_it_are_written_with_it_and_say_so(
    importance: Importance, small_gguf: Path, tmp_path: Path, kind: str
) -> None:
    assert FILE_TYPES[kind].needs_imatrix
    quantize(small_gguf, tmp_path / "out.gguf", kind=kind, importance=importance)
    file = GgufFile(tmp_path / "out.gguf")
    assert file.field("quantize.imatrix.file") == "imatrix.gguf"
    assert file.field("quantize.imatrix.dataset") == "some numbers"
    assert file.field("quantize.imatrix.entries_count") == len(importance.sums)
    assert file.field("quantize.imatrix.chunks_count") == 3


def test_quantising_with_it_errs_less_where_inputs_are_large(
    importance: Importance, small_gguf: Path, tmp_path: Path
) -> None:
    """Error of the products, weighed by the mean squares of their inputs: what the matrix is for."""
    for kind, given in (("plain", None), ("weighed", importance)):
        quantize(small_gguf, tmp_path / f"{kind}.gguf", kind="q3_k_s", importance=given)
    names = [name for name in importance.sums if "ffn_up" in name or "attn_q" in name]
    exact = GgufFile(small_gguf).read(names)
    errors = {
        kind: sum(
            float(((got[name] - exact[name]) ** 2 * importance.means()[name]).sum()) for name in names
        )
        for kind in ("plain", "weighed")
        for got in [GgufFile(tmp_path / f"{kind}.gguf").read(names)]
    }  # fmt: skip
    assert errors["weighed"] < 0.97 * errors["plain"]


def test_it_comes_from_the_recipes_own_training_prompts(tiny_run: Path, tiny_gguf: Path) -> None:
    recipe = load_resolved(tiny_run / "recipe.json").recipe
    found = importance_of(recipe, tiny_gguf)
    rows = recipe.task.rows("train")
    assert found.n_texts == 6 and found.dataset == "6 training prompts of the task reasoning_gym"
    with open_model(tiny_gguf, context=32) as model:
        expected = [model.chat_ids(recipe.task.messages(row)) for row in rows[:6]]
    again = collect(tiny_gguf, expected, dataset=found.dataset)
    assert all(numpy.array_equal(again.sums[name], found.sums[name]) for name in found.sums)


def test_a_matrix_that_no_text_goes_through_is_an_error(small_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As most experts of a mixture would be: their file would be quantised by halves."""
    watch = imatrix._watch

    def blind(tensor: Any, ask: bool, found: Importance) -> bool:
        return tensor.src[0].contents.name != b"blk.1.attn_output.weight" and watch(tensor, ask, found)

    monkeypatch.setattr(imatrix, "_watch", lambda tensor, ask, found: bool(tensor.src[0]) and blind(tensor, ask, found))
    with pytest.raises(ExportError, match=r"1 matrices met no input, e\.g\. blk\.1\.attn_output\.weight"):
        collect(small_gguf, TEXTS, dataset="some numbers")


def test_texts_that_are_too_short_are_said(small_gguf: Path) -> None:
    with pytest.raises(ExportError, match=f"no text has {MIN_ROWS} tokens"):
        collect(small_gguf, [[1, 2, 3]], dataset="short")


def test_an_export_with_it_says_what_it_was_computed_from(tiny_run: Path, tmp_path: Path) -> None:
    record = exported(run_with(tiny_run, tmp_path, imatrix=True, gguf=["f16", "iq2_xs"]), tmp_path / "out")
    assert record.imatrix["file"] == "imatrix/imatrix.gguf" and record.imatrix["texts"] > 0
    used = GgufFile(tmp_path / "out" / record.imatrix["file"])
    assert used.field("imatrix.datasets") == [record.imatrix["dataset"]]
    quantised = GgufFile(tmp_path / "out" / "tiny-iq2_xs.gguf")
    assert quantised.field("quantize.imatrix.dataset") == record.imatrix["dataset"]
    assert GgufFile(tmp_path / "out" / "tiny-f16.gguf").field("quantize.imatrix.file") is None
