"""Verification passes the true export, says so in two files, and knows every kind of file that an export can hold."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tiny import edit_gguf, exported, run_with
from toolkit.atomic import read_json, sha256_of, write_json
from toolkit.cli import main
from toolkit.recipe import Recipe
from toolkit.verify import verify_export
from toolkit.verify.record import VerifyRecord
from verdicts import F16, Q4, failed_checks, hash_of, verdicts_of

pytest_plugins = ("exports", "certified")
pytest.importorskip("torch")


@pytest.fixture(scope="session")
def certified(good_export: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, VerifyRecord]:
    folder = tmp_path_factory.mktemp("certified") / "export"
    shutil.copytree(good_export, folder, copy_function=os.link)
    return folder, verify_export(folder)


def test_a_true_export_passes(certified: tuple[Path, VerifyRecord]) -> None:
    record = certified[1]
    assert record.passed and [failed_checks(result) for result in [record.merged, *record.files]] == [set()] * 3
    assert [(file.file, file.type) for file in record.files] == [(F16, "f16"), (Q4, "q4_k_m")]
    assert record.files[1].tensor_types["Q4_K"] > 0
    assert record.merged.value("KL to base") > 1e-3, "the adapter must be there to be seen"


def test_the_certificate_names_the_bytes(certified: tuple[Path, VerifyRecord]) -> None:
    export, _ = certified
    written = read_json(export / "verify.json")
    assert written["schema"] == 1 and written["passed"] is True
    text = (export / "CERTIFICATE.md").read_text(encoding="utf-8")
    places = {file["file"]: file for file in written["files"]}
    for path in [export / F16, export / Q4, *(export / "merged").iterdir(), *(export / "adapter").iterdir()]:
        assert f"{sha256_of(path)}  {path.relative_to(export)}\n" in text
    assert places[F16]["sha256"] == places[F16]["hashes"][F16] == sha256_of(export / F16)
    assert written["merged"]["hashes"].keys() == {path.name for path in (export / "merged").iterdir()}
    assert all(set(check) == {"name", "value", "limit", "passed", "why"} for check in places[F16]["checks"])
    assert written["reference"]["tokens"] > 100 and written["reference"]["problems"] == 8


def test_the_certificate_says_what_it_was_made_with_and_nothing_of_this_machine(
    certified: tuple[Path, VerifyRecord],
) -> None:
    export, record = certified
    assert {"toolkit", "Python", "torch", "transformers", "llama-cpp-python", "llama.cpp"} <= record.versions.keys()
    assert record.date.endswith(" UTC")
    for path in (export / "verify.json", export / "CERTIFICATE.md"):
        text = path.read_text(encoding="utf-8")
        assert str(export.parent) not in text and str(Path.home()) not in text


def test_the_document_explains_every_check_that_a_certificate_can_hold(
    certified: tuple[Path, VerifyRecord], parts_export: Path
) -> None:
    text = (Path(__file__).parent.parent / "docs" / "export.md").read_text(encoding="utf-8")
    records = [certified[1], verify_export(parts_export, problems=1)]
    names = {check.name for record in records for file in [record.merged, *record.files] for check in file.checks}
    assert {
        name for name in names | {"nearer to merged than to base", "importance matrix unchanged"} if name not in text
    } == set()


def test_each_file_has_its_price(certified: tuple[Path, VerifyRecord]) -> None:
    wide, narrow = certified[1].files
    assert wide.bits_per_weight == pytest.approx(16, abs=0.01) and narrow.bits_per_weight < 8  # type: ignore[operator]
    for file in (wide, narrow):
        assert file.tokens_per_second["prefill"] > file.tokens_per_second["decode"] > 0
        assert file.memory_bytes is not None and file.perplexity is not None
        # Weights, and 2 layers × 2 heads × 64 numbers × 2 bytes for key and value of each of 512 tokens.
        assert file.memory_bytes == pytest.approx(file.size_bytes + 512 * 1024, rel=0.15)
        assert file.perplexity == pytest.approx(certified[1].merged.perplexity, rel=0.05)


def test_the_smallest_file_that_keeps_to_the_rule_is_recommended(certified: tuple[Path, VerifyRecord]) -> None:
    export, record = certified
    assert record.recommended == Q4 and "smallest" in record.recommendation
    assert f"Recommended: **{Q4}**" in (export / "CERTIFICATE.md").read_text(encoding="utf-8")


def test_answers_are_counted_in_pairs_with_an_interval(certified: tuple[Path, VerifyRecord]) -> None:
    task = certified[1].files[0].task
    assert task["n"] == 8 and task["lost"] == task["won"] == 0 and task["difference"] == 0
    assert task["ci95"] == pytest.approx([-0.3244, 0.3244], abs=1e-3), "with 8 problems little can be excluded"


def test_the_command_takes_a_number_of_problems_ends_with_1_and_leaves_both_records(export: Path) -> None:
    (export / Q4).unlink()
    assert main(["verify", str(export), "--problems", "2"]) == 1
    written = read_json(export / "verify.json")
    assert written["passed"] is False and written["reference"]["problems"] == 2
    assert "NOT every file passed" in (export / "CERTIFICATE.md").read_text(encoding="utf-8")
    assert read_json(export / "verify.json")["files"][1]["checks"][-1]["why"] == "the file is missing"


@pytest.mark.parametrize("word", ["0", "-3", "many"])
def test_a_senseless_number_of_problems_is_refused(export: Path, word: str) -> None:
    assert main(["verify", str(export), "--problems", word]) == 2


def test_a_stale_certificate_never_stands_beside_another_verdict(export: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (export / "CERTIFICATE.md").write_text("passed, long ago")

    def broken(*_: Any) -> None:
        raise OSError("no space left on the disk")

    monkeypatch.setattr("toolkit.verify.write_certificate", broken)
    with pytest.raises(OSError, match="no space"):
        verify_export(export, problems=1)
    assert (export / "verify.json").is_file() and not (export / "CERTIFICATE.md").exists()


@pytest.fixture(scope="module")
def parts_export(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the adapter as a GGUF LoRA, and a file in two shards."""
    run = run_with(tiny_run, tmp_path_factory.mktemp("parts"), lora_gguf=True, max_shard_size="27MB")
    return exported(run, run.parents[1] / "export").folder


def test_shards_and_the_adapters_own_file_are_certified_too(parts_export: Path) -> None:
    record = verify_export(parts_export, problems=2)
    assert record.passed, [failed_checks(file) for file in record.files]
    shards, _, lora = record.files
    assert list(shards.hashes) == [f"tiny-f16-0000{n}-of-00002.gguf" for n in (1, 2)]
    assert shards.size_bytes == sum((parts_export / name).stat().st_size for name in shards.hashes)
    assert lora.file == "adapter/tiny-lora.gguf" and lora.hashes[lora.file] == sha256_of(parts_export / lora.file)
    assert lora.value("adapter in the factors") == pytest.approx(1, abs=1e-3)
    assert lora.value("KL to the base") < 1e-5, "taken away, the adapter leads back to the base"
    assert record.recommended == Q4


def broken_copy(export: Path, name: str, damage: Callable[[Path], object], folder: Path) -> Path:
    """A copy with one damaged file, whose manifest agrees with its bytes."""
    shutil.copytree(export, folder)
    damage(folder / name)
    text = (folder / "manifest.json").read_text().replace(sha256_of(export / name), hash_of(folder / name) or "gone")
    (folder / "manifest.json").write_text(text)
    return folder


@pytest.mark.parametrize(
    ("name", "damage", "checks"),
    [
        ("tiny-f16-00002-of-00002.gguf", lambda path: path.unlink(), {"opens"}),
        ("tiny-f16-00002-of-00002.gguf", lambda path: os.truncate(path, path.stat().st_size // 2), {"opens"}),
        ("adapter/tiny-lora.gguf", lambda path: os.truncate(path, path.stat().st_size // 2), {"opens"}),
        (
            "adapter/tiny-lora.gguf",
            lambda path: edit_gguf(path, general__type="model"),
            {"kind", "opens"},
        ),
    ],
    ids=["lost shard", "cut shard", "cut adapter", "adapter that is called a model"],
)
def test_a_broken_part_fails(
    parts_export: Path, tmp_path: Path, name: str, damage: Callable[[Path], object], checks: set[str]
) -> None:
    record = verify_export(broken_copy(parts_export, name, damage, tmp_path / "export"), problems=1)
    failed = [failed_checks(file) for file in record.files if not file.passed]
    assert not record.passed and len(failed) == 1 and checks <= failed[0] | {"kind"}


def test_an_adapter_file_of_another_run_fails(parts_export: Path, tiny_run: Path, tmp_path: Path) -> None:
    run = run_with(tiny_run, tmp_path, lora_gguf=True, gguf=[])
    config = read_json(run / "adapter" / "adapter_config.json")
    write_json(run / "adapter" / "adapter_config.json", config | {"lora_alpha": config["lora_alpha"] / 2})
    half = exported(run, tmp_path / "half").folder / "adapter" / "tiny-lora.gguf"
    copy = broken_copy(
        parts_export, "adapter/tiny-lora.gguf", lambda path: shutil.copyfile(half, path), tmp_path / "export"
    )
    verdict = verdicts_of(copy, problems=1)["adapter/tiny"]
    assert failed_checks(verdict) == {
        "modules", "adapter in the factors", "KL to the base", "adapter left in the predictions",
    }  # fmt: skip
    assert verdict.value("adapter in the factors") == pytest.approx(0.5, abs=1e-3)


def test_a_task_without_golds_is_certified_without_right_answers(export: Path) -> None:
    recipe = read_json(export / "recipe.json")
    recipe["task"] = {"name": "prompts", "prompts": [f"Say {word}." for word in "abcdefgh"], "heldout_rows": 3}
    recipe["rewards"] = [{"name": "length", "ideal": 20, "unit": "words", "form": "bounded"}]
    recipe["warmup"], recipe["eval"]["rows"] = None, 3
    (export / "recipe.json").unlink()
    write_json(export / "recipe.json", Recipe.model_validate(recipe).model_dump(mode="json"))
    record = verify_export(export)
    assert record.passed and record.recommended == Q4
    assert "strict" not in record.files[0].task and record.files[0].value("held-out answers") is None
    text = (export / "CERTIFICATE.md").read_text(encoding="utf-8")
    assert "3 held-out problems, not graded" in text and "| – | – |" in text
    json.dumps(record.model_dump(mode="json"), allow_nan=False)
