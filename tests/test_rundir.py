"""No half file under a final name, no two runs in one folder, and the newest run is one that was finished."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from toolkit import rundir
from toolkit.atomic import read_json, replacing, sha256_of, write_json, writing
from toolkit.errors import ExportError, ToolkitError
from toolkit.rundir import RunDir, new_run, newest_export, newest_run


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def finished_run(runs: Path, name: str, *, at: float) -> Path:
    run = RunDir(runs / name)
    run.adapter.mkdir(parents=True)
    for path in (run.adapter, run.path):
        os.utime(path, (at, at))
    return run.path


def test_a_failing_writer_leaves_neither_the_file_nor_its_temporary(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), replacing(tmp_path / "file.json") as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert names(tmp_path) == []


def test_a_failing_writer_leaves_the_old_content(tmp_path: Path) -> None:
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "old").touch()
    (tmp_path / "file.json").write_text("old")
    with pytest.raises(RuntimeError), replacing(tmp_path / "adapter") as temporary:
        temporary.mkdir()
        (temporary / "new").touch()
        raise RuntimeError
    with pytest.raises(KeyboardInterrupt), replacing(tmp_path / "file.json") as temporary:
        temporary.write_text("new")
        raise KeyboardInterrupt
    assert names(tmp_path) == ["adapter", "file.json"]
    assert names(tmp_path / "adapter") == ["old"]
    assert (tmp_path / "file.json").read_text() == "old"


def test_a_writer_that_writes_nothing_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "file"):
        pass
    assert (tmp_path / "file").read_text() == "old"


def test_the_final_name_appears_when_the_block_ends(tmp_path: Path) -> None:
    with replacing(tmp_path / "file") as temporary:
        temporary.write_text("whole")
        assert not (tmp_path / "file").exists()
        assert temporary.parent == tmp_path and temporary.name.startswith(".")
    assert names(tmp_path) == ["file"]


def test_a_folder_replaces_a_folder_with_none_of_its_old_files(tmp_path: Path) -> None:
    for name in ("old", "new"):
        with replacing(tmp_path / "adapter") as temporary:
            temporary.mkdir()
            (temporary / name).touch()
    assert names(tmp_path / "adapter") == ["new"]


def test_what_a_killed_writer_left_is_not_mixed_in(tmp_path: Path) -> None:
    left = tmp_path / f".adapter.{os.getpid()}.tmp"
    left.mkdir()
    (left / "stale").touch()
    with replacing(tmp_path / "adapter") as temporary:
        temporary.mkdir()
        (temporary / "fresh").touch()
    assert names(tmp_path / "adapter") == ["fresh"]


def test_json_that_is_no_json_leaves_the_record_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_json(path, {"accuracy": 0.5, "name": "ä"})
    for wrong in ({"accuracy": float("nan")}, {"path": tmp_path}):
        with pytest.raises((ValueError, TypeError)):
            write_json(path, wrong)
    assert read_json(path) == {"accuracy": 0.5, "name": "ä"}
    assert names(tmp_path) == ["record.json"]


@pytest.mark.parametrize("content", [None, "{half"])
def test_a_missing_or_broken_record_is_an_error_that_names_the_file(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "state.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ToolkitError) as caught:
        read_json(path)
    assert caught.value.exit_code == 2 and caught.value.where == str(path)


def test_runs_that_start_in_one_second_get_different_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rundir.time, "strftime", lambda _: "20260101-120000")
    made = [new_run("smoke", tmp_path / "runs").path for _ in range(3)]
    assert [path.name for path in made] == [
        "smoke-20260101-120000", "smoke-20260101-120000-2", "smoke-20260101-120000-3",
    ]  # fmt: skip
    assert all(path.is_dir() for path in made)


def test_a_run_that_cannot_be_made_is_an_error_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file where the folder should be")
    with pytest.raises(ToolkitError) as caught:
        new_run("smoke", tmp_path / "runs")
    assert str(tmp_path / "runs") in str(caught.value)


def test_the_newest_run_is_the_newest_with_an_adapter(tmp_path: Path) -> None:
    assert newest_run(tmp_path / "nothing") is None
    old, new = finished_run(tmp_path, "old", at=1000), finished_run(tmp_path, "new", at=2000)
    for name, folder in (("unfinished", "checkpoints"), ("killed", f".adapter.{os.getpid()}.tmp")):
        (tmp_path / name / folder).mkdir(parents=True)
    (tmp_path / "file").touch()
    assert newest_run(tmp_path) == new
    RunDir(new).adapter.rmdir()
    assert newest_run(tmp_path) == old


def test_evaluating_an_old_run_does_not_make_it_the_newest(tmp_path: Path) -> None:
    old, new = finished_run(tmp_path, "old", at=1000), finished_run(tmp_path, "new", at=2000)
    write_json(RunDir(old).evaluation, {})
    assert newest_run(tmp_path) == new


def test_the_newest_export_is_the_newest_with_a_manifest(tmp_path: Path) -> None:
    for at, name in enumerate(("old", "new", "half"), start=1):
        (tmp_path / name).mkdir()
        if name != "half":
            (tmp_path / name / "manifest.json").write_text(json.dumps({}))
            os.utime(tmp_path / name / "manifest.json", (at, at))
    write_json(tmp_path / "old" / "verify.json", {})
    assert newest_export(tmp_path) == tmp_path / "new"


def test_every_artefact_of_a_run_has_a_place_of_its_own() -> None:
    run = RunDir(Path("run"))
    artefacts = [name for name, value in vars(RunDir).items() if isinstance(value, property)]
    places = {getattr(run, name) for name in artefacts}
    assert len(places) == len(artefacts) >= 10
    assert all(place.parent == run.path for place in places)


def test_sha256_is_of_the_bytes(tmp_path: Path) -> None:
    (tmp_path / "abc").write_bytes(b"abc")
    assert sha256_of(tmp_path / "abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@pytest.mark.parametrize(
    ("number", "inside", "said"),
    [
        (errno.EACCES, False, "read"),
        (errno.EIO, False, "read"),
        (errno.EACCES, True, "written"),
        (errno.ENOSPC, False, "written"),
    ],
)
def test_what_a_disk_refuses_to_give_is_not_said_to_be_written(
    number: int, inside: bool, said: str, tmp_path: Path
) -> None:
    out, base = tmp_path / "out", tmp_path / "base.safetensors"
    out.mkdir()
    for file in (out / "new", base):
        file.write_text("there")
    place = str(out / "new" if inside else base)
    with pytest.raises(ExportError, match=f"cannot be {said}") as caught, writing(out):
        raise OSError(number, os.strerror(number), place)
    assert caught.value.where == place and ("df -h" in str(caught.value.hint)) is (said == "written")
