"""Every way in which an export is not the model that was trained fails, each in the check that is named for it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from damage import (
    TEMPLATE,
    Damage,
    cut,
    double_bos,
    drop_merges,
    lose_stop,
    plain_special_tokens,
    stop_at_line_breaks,
    swap_tokens,
    zero_from,
    zero_hole,
)
from tiny import edit_gguf
from toolkit.verify.record import FileResult
from verdicts import F16, Q4, failed_checks, verdicts_of, with_files

pytest_plugins = ("exports", "certified")
pytest.importorskip("torch")

Verdicts = dict[str, FileResult]

DAMAGES: dict[str, tuple[Damage, set[str]]] = {
    # A file that is not whole.
    "half": (lambda path: cut(path, 0.5), {"opens"}),
    "cut": (lambda path: cut(path, 0.9999), {"opens"}),
    "zeros": (lambda path: zero_from(path, 0.0), {"opens"}),
    "missing": (lambda path: path.unlink(), {"opens"}),
    "unwritten": (lambda path: zero_from(path, 0.9), {"no empty tensors", "rows", "mean KL"}),
    "hole": (zero_hole, {"rows"}),
    # A header that speaks to the model otherwise than training did.
    "template": (
        lambda path: edit_gguf(path, tokenizer__chat_template=TEMPLATE),
        {"template", "chats rendered", "chat tokens"},
    ),
    "bos": (double_bos, {"template", "chats rendered", "chat tokens", "one BOS"}),
    "added-bos": (lambda path: edit_gguf(path, tokenizer__ggml__add_bos_token=True), {"special tokens added"}),
    "eos": (lambda path: edit_gguf(path, tokenizer__ggml__eos_token_id=1), {"eos"}),
    "stop": (lambda path: lose_stop(path, "<|im_end|>", "<|endoftext|>"), {"eos", "stop set", "chat tokens"}),
    "newline": (stop_at_line_breaks, {"eos", "stop strings"}),
    # A tokenizer that splits otherwise.
    "digits": (lambda path: edit_gguf(path, tokenizer__ggml__pre="gpt-2"), {"chat tokens", "text tokens"}),
    "merges": (drop_merges, {"merges", "chat tokens", "text tokens"}),
    "normal": (plain_special_tokens, {"special tokens"}),
    "swapped": (swap_tokens, {"chat tokens"}),
    # A header that is not the file's.
    "mislabelled": (lambda path: shutil.copyfile(path.parent / Q4, path), {"file type", "narrow tensors", "mean KL"}),
    "context": (lambda path: edit_gguf(path, llama__context_length=64), {"settings"}),
    "layers": (lambda path: edit_gguf(path, llama__embedding_length=512), {"width", "opens"}),
}


@pytest.fixture(scope="session")
def verdicts(
    good_export: Path, base_export: Path, other_export: Path, tmp_path_factory: pytest.TempPathFactory
) -> Verdicts:
    """One export with the good files and one file per kind of damage."""
    export = tmp_path_factory.mktemp("broken") / "export"
    shutil.copytree(good_export, export)
    with_files(export, export / F16, {name: damage for name, (damage, _) in DAMAGES.items()})
    with_files(export, other_export / F16, {"another-run": lambda _: None})
    with_files(export, export / F16, {"abort": lambda path: edit_gguf(path, tokenizer__ggml__model="llama")})
    # general.file_type 1 is f16, 15 is q4_k_m.
    with_files(export, export / Q4, {"lie": lambda path: edit_gguf(path, general__file_type=1)})
    with_files(export, export / F16, {"wide": lambda path: edit_gguf(path, general__file_type=15)}, kind="q4_k_m")
    with_files(export, base_export / Q4, {"base": lambda _: None}, kind="q4_k_m")
    shutil.copyfile(export / F16, export / "stranger-f16.gguf")
    shutil.copyfile(other_export / Q4, export / "swapped_in-q4_k_m.gguf")
    return verdicts_of(export, problems=4)


def test_the_good_files_pass_beside_the_broken_ones(good_export: Path) -> None:
    results = verdicts_of(good_export, problems=4)
    assert {name: failed_checks(result) for name, result in results.items()} == {"tiny": set(), "merged": set()}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_fails_where_it_was_damaged(verdicts: Verdicts, name: str) -> None:
    assert DAMAGES[name][1] <= failed_checks(verdicts[name])


@pytest.mark.parametrize(("name", "checks"), [
    ("hole", {"rows"}), ("eos", {"eos"}), ("context", {"settings"}), ("added-bos", {"special tokens added"}),
])  # fmt: skip
def test_small_damage_is_seen_by_its_own_check_alone(verdicts: Verdicts, name: str, checks: set[str]) -> None:
    assert failed_checks(verdicts[name]) == checks


def test_a_q4_of_the_base_fails(verdicts: Verdicts) -> None:
    assert failed_checks(verdicts["base"]) >= {"training in the weights"}


def test_a_file_of_another_run_fails_although_its_base_is_the_same(verdicts: Verdicts) -> None:
    assert {"training in the weights", "mean KL"} <= failed_checks(verdicts["another-run"])


def test_a_header_that_lies_about_the_type_fails(verdicts: Verdicts) -> None:
    assert "narrow tensors" in failed_checks(verdicts["lie"]) and "file type" not in failed_checks(verdicts["lie"])
    assert failed_checks(verdicts["wide"]) == {"share left wide"}


def test_a_file_on_which_llama_cpp_aborts_is_a_verdict_and_no_crash(verdicts: Verdicts) -> None:
    result = verdicts["abort"]
    assert "opens" in failed_checks(result)
    assert "aborts" in next(check.why for check in result.checks if check.name == "opens")


def test_a_file_that_the_export_did_not_write_is_not_vouched_for(verdicts: Verdicts) -> None:
    assert failed_checks(verdicts["stranger"]) == {"unchanged since export"}
    assert "unchanged since export" in failed_checks(verdicts["swapped_in"])


def test_no_verdict_names_a_folder_of_this_machine(
    verdicts: Verdicts, tmp_path_factory: pytest.TempPathFactory
) -> None:
    said = "".join(result.model_dump_json() for result in verdicts.values())
    assert str(tmp_path_factory.getbasetemp()) not in said


def test_an_adapter_that_was_not_merged_fails_everywhere(base_export: Path, good_export: Path, tmp_path: Path) -> None:
    export = tmp_path / "export"
    shutil.copytree(base_export, export)
    shutil.rmtree(export / "adapter")
    shutil.copytree(good_export / "adapter", export / "adapter")
    results = verdicts_of(export, problems=2)
    assert not any(result.passed for result in results.values())
    assert {"changed by training", "share of the training", "predictions changed"} <= failed_checks(results["merged"])
