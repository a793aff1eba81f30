"""Which run or export a word means, what is said of it, and what is said where there is none."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from toolkit.cli.lookup import export_folder, resumable_run, run_folder
from toolkit.errors import ToolkitError

Find = Callable[[str], Path]
HARD = "sums-hard-20260104-100000"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two recipes whose names begin alike, one of them with a run that was begun last and not ended."""
    monkeypatch.chdir(tmp_path)
    Path("recipes").mkdir()
    for name in ("sums", "sums-hard", "never-run"):
        Path("recipes", f"{name}.yaml").touch()
    run("sums-20260101-100000", ended_at=400)  # interrupted, resumed, ended last
    run("sums-20260102-100000", ended_at=200)
    run("sums-20260103-100000-2", ended_at=None)
    run(HARD, ended_at=500)
    export("sums-20260102-100000", at=300)
    export("sums-20260101-100000", at=600)


def run(name: str, *, ended_at: float | None) -> None:
    folder = Path("runs", name)
    folder.mkdir(parents=True)
    (folder / "recipe.json").touch()
    (folder / "manifest.json").touch()
    if ended_at is not None:
        (folder / "adapter").mkdir()
        os.utime(folder / "adapter", (ended_at, ended_at))


def export(name: str, *, at: float) -> None:
    folder = Path("exports", name)
    (folder / "merged").mkdir(parents=True)
    for file in ("recipe.json", "manifest.json"):
        (folder / file).touch()
        os.utime(folder / file, (at, at))


@pytest.mark.parametrize(
    ("find", "given", "found"),
    [
        (run_folder, "sums", "runs/sums-20260101-100000"),
        (run_folder, "recipes/sums.yaml", "runs/sums-20260101-100000"),
        (run_folder, None, f"runs/{HARD}"),
        (run_folder, "sums-20260102-100000", "runs/sums-20260102-100000"),
        (run_folder, "exports/sums-20260102-100000/", "runs/sums-20260102-100000"),
        (resumable_run, "sums", "runs/sums-20260103-100000-2"),
        (resumable_run, "sums-hard", f"runs/{HARD}"),
        (export_folder, "sums", "exports/sums-20260101-100000"),
        (export_folder, None, "exports/sums-20260101-100000"),
        (export_folder, "runs/sums-20260102-100000", "exports/sums-20260102-100000"),
    ],
)
def test_a_recipe_an_id_or_nothing_means_a_folder_which_is_said_on_stderr(
    find: Find, given: str, found: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert find(given) == Path(found)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.split()[1] == found


@pytest.mark.parametrize("given", ["runs/sums-20260102-100000", "runs/sums-20260103-100000-2/"])
def test_a_path_is_taken_as_it_is_and_without_a_word(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_folder(given) == Path(given)
    assert capsys.readouterr().err == ""


def test_a_folder_that_only_has_the_name_of_a_recipe_is_not_taken_for_a_run() -> None:
    Path("sums").mkdir()
    assert run_folder("sums") == Path("runs/sums-20260101-100000")


@pytest.mark.parametrize(
    ("find", "given", "said", "hint"),
    [
        (run_folder, "never-run", "there is no run of never-run yet", "toolkit train never-run"),
        (run_folder, "recipes/never-run.yaml", "there is no run of never-run yet", "toolkit train never-run"),
        (resumable_run, "never-run", "there is no run of never-run yet", "toolkit train never-run"),
        (run_folder, "sums-hart", "sums-hart is no run and no recipe", "did you mean sums-hard?"),
        (run_folder, "recipes", "recipes is no run and no recipe", None),
        (export_folder, "sums-hard", "there is no export of sums-hard yet", f"toolkit export runs/{HARD}"),
        (export_folder, f"runs/{HARD}", f"there is no export of runs/{HARD} yet", f"toolkit export runs/{HARD}"),
        (export_folder, "never-run", "there is no export of never-run yet", "toolkit train never-run"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_an_error_with_the_command_that_makes_it(
    find: Find, given: str, said: str, hint: str | None
) -> None:
    with pytest.raises(ToolkitError, match=f"^{re.escape(said)}") as caught:
        find(given)
    assert caught.value.hint == hint


@pytest.mark.parametrize("given", ["begun", None])
def test_a_run_that_was_only_begun_is_to_be_resumed(
    given: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(ToolkitError, match=r"there is no run yet|no run and no recipe"):
        run_folder(given)
    run("begun-20260101-100000", ended_at=None)
    with pytest.raises(ToolkitError, match="was trained to its end") as caught:
        run_folder(given)
    assert caught.value.hint == "toolkit train --resume runs/begun-20260101-100000"
