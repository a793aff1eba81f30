"""Verification passes the true export and fails every broken one, each for the reason that was broken."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tiny import edit_gguf, tiny_run  # noqa: F401
from toolkit.rundir import sha256_of
from toolkit.verify import verify_export
from toolkit.verify.record import FileResult, at_most
from toolkit.verify.stats import chance_of_as_many_losses, distance, strength, weight_strength

pytest.importorskip("torch")
pytest.importorskip("peft")

F16, Q4 = "tiny-f16.gguf", "tiny-q4_k_m.gguf"


@pytest.fixture(scope="session")
def good_export(tiny_run: Path) -> Path:  # noqa: F811
    from toolkit.export import export_run

    return export_run(tiny_run, out=tiny_run.parent.parent / "exports" / "tiny").folder


@pytest.fixture(scope="session")
def base_export(good_export: Path, tiny_run: Path) -> Path:  # noqa: F811
    """The same export with an adapter that changes nothing: GGUF files of the base."""
    from safetensors.torch import load_file, save_file

    from toolkit.export import export_run

    run = tiny_run.parent / "untouched" / "tiny"
    shutil.copytree(tiny_run, run)
    file = run / "adapter" / "adapter_model.safetensors"
    save_file({key: tensor * ("lora_A" in key) for key, tensor in load_file(file).items()}, file)
    return export_run(run, out=tiny_run.parent.parent / "exports" / "untouched").folder


def test_a_true_export_passes_and_its_certificate_names_the_bytes(good_export: Path) -> None:
    record = verify_export(good_export)
    failed = [check for result in [record.merged, *record.files] for check in result.checks if not check.passed]
    assert record.passed, failed
    written = json.loads((good_export / "verify.json").read_text())
    assert written["schema"] == 1
    assert written["passed"] is True
    assert [(file["file"], file["type"]) for file in written["files"]] == [(F16, "f16"), (Q4, "q4_k_m")]
    for file in written["files"]:
        assert file["sha256"] == sha256_of(good_export / file["file"])
        assert all(set(check) == {"name", "value", "limit", "passed", "why"} for check in file["checks"])
    assert written["reference"]["tokens"] > 100
    assert record.files[1].tensor_types["Q4_K"] > 0


def zero_from(path: Path, share: float) -> None:
    size = path.stat().st_size
    start = int(size * share)
    with open(path, "rb+") as handle:
        handle.seek(start)
        handle.write(bytes(size - start))


TEMPLATE = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
BROKEN: dict[str, Callable[[Path], object]] = {
    "half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "cut": lambda path: os.truncate(path, path.stat().st_size - 64),
    # As an interrupted copy leaves a file: the right size, the rest never written.
    "unwritten": lambda path: zero_from(path, 0.9),
    "zeros": lambda path: zero_from(path, 0.0),
    "missing": lambda path: path.unlink(),
    "template": lambda path: edit_gguf(path, tokenizer__chat_template=TEMPLATE),
    "eos": lambda path: edit_gguf(path, tokenizer__ggml__eos_token_id=1),
    "bos": lambda path: edit_gguf(path, tokenizer__ggml__add_bos_token=True),
    "digits": lambda path: edit_gguf(path, tokenizer__ggml__pre="gpt-2"),
    "abort": lambda path: edit_gguf(path, tokenizer__ggml__model="llama"),
    "mislabelled": lambda path: shutil.copyfile(path.parent / Q4, path),
}


@pytest.fixture(scope="session")
def verdicts(good_export: Path, base_export: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, FileResult]:
    """One export with the two good files and one file per kind of damage. The manifest agrees with every
    byte, so that the deeper checks have to find what is wrong."""
    export = tmp_path_factory.mktemp("broken") / "export"
    shutil.copytree(good_export, export)
    for name, damage in BROKEN.items():
        shutil.copyfile(export / F16, export / f"{name}-f16.gguf")
        damage(export / f"{name}-f16.gguf")
    shutil.copyfile(base_export / Q4, export / "base-q4_k_m.gguf")
    manifest = json.loads((export / "manifest.json").read_text())
    names = [*(f"{name}-f16.gguf" for name in BROKEN), "base-q4_k_m.gguf"]
    manifest["files"] += [
        {"file": name, "type": name.partition("-")[2].removesuffix(".gguf"), "sha256": hash_of(export / name)}
        for name in names
    ]
    (export / "manifest.json").write_text(json.dumps(manifest))
    shutil.copyfile(export / F16, export / "stranger-f16.gguf")
    record = verify_export(export)
    assert not record.passed
    assert record.merged.passed
    return {result.file: result for result in record.files}


def hash_of(path: Path) -> str | None:
    return sha256_of(path) if path.is_file() else None


def failed_checks(result: FileResult) -> set[str]:
    names = {check.name for check in result.checks if not check.passed}
    assert result.passed == (not names)
    return names


def test_good_files_pass_beside_broken_ones(verdicts: dict[str, FileResult]) -> None:
    assert verdicts[F16].passed
    assert verdicts[Q4].passed


def test_a_q4_of_the_base_fails(verdicts: dict[str, FileResult]) -> None:
    assert "adapter in the weights" in failed_checks(verdicts["base-q4_k_m.gguf"])


@pytest.mark.parametrize("name", ["half", "cut", "zeros", "missing"])
def test_a_file_that_is_not_whole_fails(verdicts: dict[str, FileResult], name: str) -> None:
    assert failed_checks(verdicts[f"{name}-f16.gguf"]) == {"opens"}


@pytest.mark.parametrize(
    ("name", "checks"),
    [
        ("unwritten", {"no empty tensors", "mean KL"}),
        ("template", {"template", "chats rendered", "chat tokens"}),
        ("eos", {"eos"}),
        ("bos", {"special tokens added"}),
        ("digits", {"chat tokens", "text tokens"}),
        ("mislabelled", {"file type", "mean KL"}),
    ],
)
def test_a_file_that_opens_and_is_wrong_fails(verdicts: dict[str, FileResult], name: str, checks: set[str]) -> None:
    assert checks <= failed_checks(verdicts[f"{name}-f16.gguf"])


def test_a_file_on_which_llama_cpp_aborts_is_a_verdict_and_no_crash(verdicts: dict[str, FileResult]) -> None:
    result = verdicts["abort-f16.gguf"]
    assert "opens" in failed_checks(result)
    assert "aborts" in next(check.why for check in result.checks if check.name == "opens")


def test_a_file_that_the_export_did_not_write_is_not_vouched_for(verdicts: dict[str, FileResult]) -> None:
    assert failed_checks(verdicts["stranger-f16.gguf"]) == {"unchanged since export"}


@pytest.fixture
def export(good_export: Path, tmp_path: Path) -> Path:
    """A copy to break; files share their bytes with the original until they are replaced."""
    shutil.copytree(good_export, tmp_path / "export", copy_function=os.link)
    return tmp_path / "export"


def test_an_adapter_that_was_not_merged_fails_everywhere(base_export: Path, good_export: Path, tmp_path: Path) -> None:
    export = tmp_path / "export"
    shutil.copytree(base_export, export)
    shutil.rmtree(export / "adapter")
    shutil.copytree(good_export / "adapter", export / "adapter")
    record = verify_export(export)
    assert not record.merged.passed
    assert not any(file.passed for file in record.files)
    failed = {check.name for check in record.merged.checks if not check.passed}
    assert {"changed by the adapter", "share of the adapter", "predictions changed"} <= failed


def test_the_merged_folder_is_held_to_its_bytes(export: Path) -> None:
    path = export / "merged" / "generation_config.json"
    content = json.loads(path.read_text()) | {"eos_token_id": 49}
    path.unlink()
    path.write_text(json.dumps(content))
    record = verify_export(export)
    failed = {check.name for check in record.merged.checks if not check.passed}
    assert {"unchanged since export", "eos ends generation", "stop tokens are special"} <= failed


def test_a_weight_that_no_adapter_touched_is_noticed(export: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = export / "merged" / "model.safetensors"
    weights = load_file(path)
    path.unlink()
    weights["model.layers.1.mlp.gate_proj.weight"] += 0.25
    save_file(weights, path, metadata={"format": "pt"})
    record = verify_export(export)
    failed = {check.name: check.value for check in record.merged.checks if not check.passed}
    assert failed["changed without an adapter"] == ["model.layers.1.mlp.gate_proj.weight"]


def test_the_command_ends_with_code_1_and_leaves_the_certificate(export: Path) -> None:
    from toolkit.cli import main

    (export / Q4).unlink()
    assert main(["verify", str(export)]) == 1
    assert json.loads((export / "verify.json").read_text())["passed"] is False


def rows(*values: list[float]) -> list:
    import numpy

    logits = numpy.array(values, dtype=numpy.float32)
    return [logits - numpy.log(numpy.exp(logits).sum(-1, keepdims=True))]


def test_distance_is_zero_to_itself_and_the_known_number_to_another() -> None:
    one, other = rows([0.0, 0.0]), rows([math.log(3.0), 0.0])
    assert distance(one, one).mean == 0
    assert distance(one, other).mean == pytest.approx(0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25))


def test_strength_is_0_at_the_base_1_at_the_tuned_model_and_2_for_a_doubled_adapter() -> None:
    base, tuned = rows([0.0, 1.0, 2.0]), rows([0.5, 1.0, 1.0])
    twice = [2 * tuned[0] - base[0]]
    assert strength(base, tuned, base).value == pytest.approx(0, abs=1e-6)
    assert strength(base, tuned, tuned).value == pytest.approx(1, abs=1e-6)
    assert strength(base, tuned, twice).value == pytest.approx(2, abs=1e-6)
    assert math.isnan(strength(base, base, base).value)


def test_weight_strength_sees_through_noise() -> None:
    import numpy

    draw = numpy.random.default_rng(3)
    base = draw.normal(size=(500, 500)).astype("float32")
    tuned = base + draw.normal(scale=0.01, size=base.shape).astype("float32")
    noise = draw.normal(scale=0.05, size=base.shape).astype("float32")
    assert weight_strength([base], [tuned], [tuned + noise]).value == pytest.approx(1, abs=0.05)
    assert weight_strength([base], [tuned], [base + noise]).value == pytest.approx(0, abs=0.05)


def test_a_paired_test_counts_only_answers_that_differ() -> None:
    assert chance_of_as_many_losses(0, 0) == 1
    assert chance_of_as_many_losses(0, 5) == 1
    assert chance_of_as_many_losses(7, 0) == pytest.approx(1 / 128)


def test_no_number_never_passes() -> None:
    check = at_most("mean KL", math.nan, 1.0, "")
    assert not check.passed
    assert check.value is None
