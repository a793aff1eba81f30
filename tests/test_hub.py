"""What is pushed was verified, what arrived is compared, what fails says how to go on. Against a Hub on loopback."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hub_stand_in import TOKEN, Hub, running_hub
from models import child_environment
from toolkit.errors import ToolkitError
from toolkit.export import ExportedFile, ExportRecord
from toolkit.hub import push_export, verified_files
from toolkit.recipe import load_recipe
from toolkit.rundir import ExportDir, write_json
from toolkit.verify.record import FileResult, VerifyRecord

REPO = "org/model"
Push = Callable[..., subprocess.CompletedProcess[str]]


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """A verified export, but for its content: the records are real, the models are not."""
    folder = tmp_path / "exports" / "a-20260101-120000"
    contents = {"a-f16.gguf": b"f" * 2500, "a-q8_0.gguf": b"q" * 700}
    merged = {"model.safetensors": b"w" * 1500, "config.json": b"{}"}
    (folder / "merged").mkdir(parents=True)
    (folder / "adapter").mkdir()
    (folder / "adapter" / "adapter.gguf").write_bytes(b"is not pushed")
    for name, data in [*contents.items(), *((f"merged/{name}", data) for name, data in merged.items())]:
        (folder / name).write_bytes(data)
    files = [
        ExportedFile(file=name, type="f16", sha256=sha256(data), size_bytes=len(data), tensor_types={})
        for name, data in contents.items()
    ]
    hashes = {"sha256": {name: sha256(data) for name, data in merged.items()}}
    manifest = ExportRecord(
        run=folder.name, base={}, adapter={}, merged=hashes, files=files, versions={}, warnings=[], folder=folder
    )
    (folder / "manifest.json").write_text(manifest.model_dump_json(exclude={"folder"}))
    (folder / "recipe.json").write_text(load_recipe("smoke", [f"hub.repo={REPO}"]).recipe.model_dump_json())
    certify(folder)
    return folder


def certify(folder: Path, *, passed: bool = True) -> None:
    def result(name: str, digest: str | None) -> FileResult:
        return FileResult(file=name, type="f16", sha256=digest, size_bytes=1, passed=passed, checks=[], seconds=0)

    files = [result(path.name, sha256(path.read_bytes())) for path in sorted(folder.glob("*.gguf"))]
    merged = result("merged", None)
    record = VerifyRecord(run="a", passed=passed, files=files, merged=merged, reference={}, versions={}, seconds=0)
    write_json(folder / "verify.json", record.model_dump(mode="json"))


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as hub:
        yield hub


@pytest.fixture
def push(export: Path, hub: Hub, tmp_path: Path) -> Push:
    """`toolkit push` in a process of its own: it speaks with the stand-in and knows no token of this machine."""

    def run(*words: str, **changes: str | None) -> subprocess.CompletedProcess[str]:
        kept = {key: value for key, value in child_environment().items() if not key.startswith(("HF_", "HUGGING"))}
        # HF_HUB_DISABLE_XET: xet is spoken by compiled code with a server of its own; the stand-in speaks LFS.
        given = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "HF_TOKEN": TOKEN, "NO_PROXY": "*"}
        given |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
        env = kept | given | changes
        command = [sys.executable, "-m", "toolkit", "push", *words]
        done = subprocess.run(
            command, env={key: value for key, value in env.items() if value is not None}, cwd=export.parents[1],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert TOKEN not in done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done

    return run


def everything(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_export_arrives_whole_in_a_private_repository_and_may_be_pushed_again(
    push: Push, hub: Hub, export: Path
) -> None:
    done = push()
    assert done.returncode == 0, done.stderr
    assert hub.private == {REPO: True}
    assert hub.files == {name: data for name, data in everything(export).items() if not name.startswith("adapter/")}
    assert hub.messages == ["a-20260101-120000, verified"]
    assert f"7 files, 0 MB, in the private repository {hub.url}/{REPO}" in done.stdout
    assert "as tester" in done.stderr and "(the newest)" in done.stderr
    hub.files["old.gguf"] = b"from elsewhere"
    again = push(str(export))
    assert again.returncode == 0 and "from elsewhere: old.gguf" in again.stderr


def test_the_option_wins_over_the_recipe_and_is_taken_literally(push: Push, hub: Hub) -> None:
    assert push("--repo", "Other-Org/My.Model").returncode == 0
    assert list(hub.private) == ["Other-Org/My.Model"]


def test_a_private_model_does_not_go_into_a_public_repository(push: Push, hub: Hub) -> None:
    hub.private[REPO] = False
    done = push()
    assert done.returncode == 2 and "is public" in done.stderr
    assert hub.files == {}


@pytest.mark.parametrize(
    ("route", "status", "headers", "said"),
    [
        ("create", 403, {}, "may not write to org"),
        ("create", 404, {"X-Error-Code": "RepoNotFound"}, "no such place"),
        ("preupload", 403, {"X-Error-Code": "GatedRepo"}, "is gated"),
        ("part", 400, {}, "the Hub answered 400"),
        ("commit", 413, {"X-Error-Message": f"too large for {TOKEN}"}, "the Hub answered 413: too large for …"),
    ],
)
def test_a_refusal_is_one_sentence_with_the_command_to_try_again(
    push: Push, hub: Hub, export: Path, route: str, status: int, headers: dict[str, str], said: str
) -> None:
    before = everything(export)
    hub.faults[route] = (status, headers)
    done = push()
    assert done.returncode == 2
    assert said in done.stderr and f"toolkit push exports/{export.name} --repo {REPO}" in done.stderr
    assert everything(export) == before


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"HF_TOKEN": None}, "there is no token for the Hub"),
        ({"HF_TOKEN": "hf_somethingElse"}, "does not accept the token"),
        ({"HF_HUB_OFFLINE": "1"}, "unset HF_HUB_OFFLINE"),
        ({"HF_ENDPOINT": "http://127.0.0.1:9"}, "ConnectError"),
    ],
)
def test_without_token_or_network_nothing_is_sent(
    push: Push, hub: Hub, changes: dict[str, str | None], said: str
) -> None:
    done = push(**changes)
    assert done.returncode == 2 and said in done.stderr and "toolkit push" in done.stderr
    assert hub.private == {} and hub.files == {}


def test_a_file_that_is_lost_on_the_way_is_noticed_and_the_next_push_mends_it(
    push: Push, hub: Hub, export: Path
) -> None:
    hub.lost = "merged/config.json"
    done = push()
    assert done.returncode == 2 and "merged/config.json did not arrive whole" in done.stderr
    hub.lost = None
    assert push(f"exports/{export.name}", "--repo", REPO).returncode == 0  # the command that was printed
    assert set(hub.files) == set(verified_files(ExportDir(export)))


@pytest.mark.parametrize("name", ["a-q8_0.gguf", "merged/model.safetensors", "merged/new.json", "new.gguf"])
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
        verified_files(ExportDir(export))
    assert caught.value.hint == f"toolkit verify {export}"


def _no_certificate(folder: Path) -> None:
    (folder / "verify.json").unlink()


def _failed(folder: Path) -> None:
    certify(folder, passed=False)


def _one_failed(folder: Path) -> None:
    record: dict[str, Any] = json.loads((folder / "verify.json").read_text())
    record["files"][1]["passed"] = False
    (folder / "verify.json").write_text(json.dumps(record))


@pytest.mark.parametrize("spoil", [_no_certificate, _failed, _one_failed])
def test_what_was_not_verified_is_not_pushed(export: Path, spoil: Callable[[Path], None]) -> None:
    spoil(export)
    with pytest.raises(ToolkitError, match=r"not verified|did not pass"):
        verified_files(ExportDir(export))


@pytest.mark.parametrize("given", [None, "name", "org/name/more"])
def test_without_a_whole_repository_name_nothing_is_asked(export: Path, given: str | None) -> None:
    (export / "recipe.json").write_text(load_recipe("smoke").recipe.model_dump_json())
    with pytest.raises(ToolkitError) as caught:
        push_export(export, repo=given)
    assert caught.value.hint == f"toolkit push {export} --repo ORG/NAME"
