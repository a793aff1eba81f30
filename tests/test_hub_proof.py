"""Only what a passing certificate is about, byte for byte, is pushed; with force the card says what is not. On loopback."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hub_export import IN_PARTS, REPO, certify, sha256, write_export
from hub_stand_in import Hub, logged_in_to, running_hub
from toolkit.errors import ToolkitError
from toolkit.hub import proven, push_export
from toolkit.rundir import ExportDir


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as hub, logged_in_to(hub.url):
        yield hub


@pytest.fixture
def export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_export(Path("exports/a-20260101-120000"))


NAMES = [
    "a-q8_0.gguf", "merged/model.safetensors", "merged/new.json", "new.gguf", "adapter/adapter_model.safetensors",
    "adapter/new.bin", "a-q8_0.Modelfile",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("data", [b"changed", None])
def test_other_bytes_than_the_verified_ones_are_refused(export: Path, name: str, data: bytes | None) -> None:
    there = (export / name).exists()
    if data is not None:
        (export / name).write_bytes(data)
    elif there:
        (export / name).unlink()
    else:
        return
    with pytest.raises(ToolkitError, match=f"{name} is not the file that was verified") as caught:
        proven(ExportDir(export))
    assert str(caught.value.hint).startswith(f"toolkit verify {export};")


@pytest.mark.parametrize(("part", "name"), [("merged", "config.json"), ("adapter", "adapter_model.safetensors")])
def test_a_manifest_that_was_rewritten_with_the_file_proves_nothing(export: Path, part: str, name: str) -> None:
    (export / part / name).write_bytes(b"another")
    manifest = json.loads((export / "manifest.json").read_text())
    manifest[part]["sha256"][name] = sha256(b"another")
    (export / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ToolkitError, match=f"{part}/{name} is not the file that was verified"):
        proven(ExportDir(export))


def test_a_certificate_from_before_it_named_all_files_is_helped_by_the_manifest(export: Path) -> None:
    record = json.loads((export / "verify.json").read_text())
    del record["merged"]["hashes"], record["adapter"]
    (export / "verify.json").write_text(json.dumps(record))
    assert proven(ExportDir(export)).problems == ()


def _no_certificate(folder: Path) -> None:
    (folder / "verify.json").unlink()


def _failed(folder: Path) -> None:
    certify(folder, passed=False)


def _one_failed(folder: Path) -> None:
    record: dict[str, Any] = json.loads((folder / "verify.json").read_text())
    record["files"][1]["passed"] = False
    (folder / "verify.json").write_text(json.dumps(record))


def _one_changed(folder: Path) -> None:
    (folder / "a-f16.gguf").write_bytes(b"another model")


SPOILT: dict[str, Callable[[Path], None]] = {
    "not verified": _no_certificate,
    "did not pass": _failed,
    "did not pass: a-q8_0.gguf": _one_failed,
    "not the file that was verified": _one_changed,
}


@pytest.mark.parametrize("why", SPOILT)
def test_what_is_not_verified_is_refused_and_with_force_the_card_says_so(hub: Hub, export: Path, why: str) -> None:
    SPOILT[why](export)
    with pytest.raises(ToolkitError, match=why):
        push_export(export)
    assert hub.repos == {} and hub.asked == []
    push_export(export, force=True)
    card = hub.repos[REPO].files["README.md"].decode()
    assert "> **This model is not verified." in card and "- not-verified" in card
    assert hub.repos[REPO].messages == ["a-20260101-120000, NOT verified, forced"]
    # A certificate of other bytes would say what is not so.
    about_these = why.startswith("did not pass")
    assert ("verify.json" in hub.repos[REPO].files) == about_these


def test_an_export_without_a_manifest_is_none_even_with_force(export: Path) -> None:
    (export / "manifest.json").unlink()
    with pytest.raises(ToolkitError, match="no whole export"):
        proven(ExportDir(export), force=True)


def test_a_file_in_parts_arrives_with_all_of_them_and_is_joined_for_ollama(hub: Hub, tmp_path: Path) -> None:
    export = write_export(tmp_path / "exports/b-20260101-120000", ggufs=IN_PARTS)
    push_export(export)
    arrived = hub.repos[REPO].files
    assert {name: arrived[name] for name in IN_PARTS} == IN_PARTS
    card = arrived["README.md"].decode()
    first, second = sorted(name for name in IN_PARTS if "q8_0" in name)
    assert f"| {first} | q8_0 |" in card and "not-verified" not in card
    assert f"hf download {REPO} {first} {second} system-prompt.txt a-q8_0.Modelfile --local-dir ." in card
    join = card.index(f"llama-gguf-split --merge {first} a-q8_0.gguf")
    assert join < card.index("ollama create a-q8_0 -f a-q8_0.Modelfile")


@pytest.mark.parametrize("data", [b"changed", None])
@pytest.mark.parametrize("name", [name for name in IN_PARTS if "q8_0" in name])
def test_other_bytes_in_any_part_are_refused(name: str, data: bytes | None, tmp_path: Path) -> None:
    export = write_export(tmp_path / "exports/b-20260101-120000", ggufs=IN_PARTS)
    (export / name).unlink()
    if data is not None:
        (export / name).write_bytes(data)
    with pytest.raises(ToolkitError, match=f"{name} is not the file that was verified"):
        proven(ExportDir(export))


def test_a_part_more_than_was_verified_is_refused(tmp_path: Path) -> None:
    export = write_export(tmp_path / "exports/b-20260101-120000", ggufs=IN_PARTS)
    (export / "a-q8_0-00003-of-00003.gguf").write_bytes(b"another")
    with pytest.raises(ToolkitError, match=r"00003-of-00003\.gguf is not the file that was verified"):
        proven(ExportDir(export))
