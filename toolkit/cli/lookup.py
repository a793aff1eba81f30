"""Which run or export a word means: a path, an id, or a recipe, of which the newest is taken. It opens no file.

What was taken is printed on stderr, unless it is the path that was given.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Protocol

from toolkit import console
from toolkit.errors import ToolkitError, nearest
from toolkit.rundir import EXPORTS, RUNS, ExportDir, RunDir, newest_export, newest_run, newest_unfinished

Noun = Literal["run", "export"]


class _Newest(Protocol):
    def __call__(self, *, recipe: str | None) -> Path | None: ...


def run_folder(given: str | None) -> Path:
    """A run by path or id; else the run, of a recipe or of all, that was trained to its end last."""
    return _find("run", given, newest_run)


def resumable_run(given: str) -> Path:
    """A run by path or id; else of a recipe the run that began last and did not end; else as `run_folder`."""
    return _find("run", given, lambda *, recipe: newest_unfinished(recipe=recipe) or newest_run(recipe=recipe))


def begun_run(given: str) -> Path:
    """A run by path or id; else of a recipe the run that began last, trained to its end or not."""
    return _find("run", given, _newest_begun)


def _newest_begun(*, recipe: str | None) -> Path | None:
    """A run's recipe is written first, and never again."""
    found = [path for path in (newest_run(recipe=recipe), newest_unfinished(recipe=recipe)) if path]
    return max(found, key=lambda path: RunDir(path).recipe.stat().st_mtime, default=None)


def export_folder(given: str | None) -> Path:
    """An export by path or id, which may be its run's; else the newest, of a recipe or of all."""
    return _find("export", given, newest_export)


def _find(noun: Noun, given: str | None, newest: _Newest) -> Path:
    recipe = _recipe_name(given)
    named = _named(noun, given)
    found = named or newest(recipe=recipe)
    if found is None:
        raise _missing(noun, given, recipe)
    if named is None:
        console.note(f"{noun}: {console.untrusted(found)} (the newest{f' of {recipe}' if recipe else ''})")
    elif given is not None and named != Path(given):
        console.note(f"{noun}: {console.untrusted(named)}")
    return found


def _named(noun: Noun, given: str | None) -> Path | None:
    """The folder at this path, or with this id: a run and its export share it, so each finds the other."""
    if given is None:
        return None
    parent, is_one = (RUNS, _is_run) if noun == "run" else (EXPORTS, _is_export)
    return next((path for path in (Path(given), parent / given, parent / Path(given).name) if is_one(path)), None)


def _is_run(path: Path) -> bool:
    return RunDir(path).recipe.is_file() and not ExportDir(path).merged.exists()


def _is_export(path: Path) -> bool:
    return ExportDir(path).manifest.is_file() and ExportDir(path).merged.is_dir()


def _recipe_name(given: str | None) -> str | None:
    """The recipe that a name or a file means; runs are called after it."""
    return Path(given).stem if given and given.endswith((".yaml", ".yml")) else given


def _missing(noun: Noun, given: str | None, recipe: str | None) -> ToolkitError:
    """Why there is none, and the command that makes one: perhaps the stage before was not ended."""
    from toolkit.recipe import list_recipes

    whose = f" of {recipe}" if recipe else ""
    if noun == "run" and (begun := newest_unfinished(recipe=recipe)):
        hint = f"toolkit train --resume {begun}"
        return ToolkitError(f"no run{whose} was trained to its end", where=str(begun), hint=hint)
    if noun == "export" and (run := _named("run", given) or newest_run(recipe=recipe)):
        return ToolkitError(f"there is no export{whose} yet", hint=f"toolkit export {run}")
    recipes = [entry.name for entry in list_recipes()]
    if given is None or recipe in recipes or Path(given).is_file():
        return ToolkitError(f"there is no {noun}{whose} yet", hint=f"toolkit train {recipe or ''}".rstrip())
    ids = [path.name for parent in (RUNS, EXPORTS) if parent.is_dir() for path in parent.iterdir()]
    near = nearest(Path(given).name, [*ids, *recipes])
    return ToolkitError(f"{given} is no {noun} and no recipe", hint=f"did you mean {near}?" if near else None)
