"""Which run or export a word means: a path, an id, or a recipe, of which the newest is taken. It opens no file.

What was chosen is printed on stderr, unless it is the path that was given.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from toolkit import console
from toolkit.errors import ToolkitError, nearest
from toolkit.rundir import EXPORTS, RUNS, ExportDir, RunDir, newest_export, newest_run, newest_unfinished


def run_folder(given: str | None) -> Path:
    """A run by path or id; or the run, of a recipe or of all, that was trained to its end last."""
    named = _named(given, RUNS, _is_run)
    recipe = _recipe_name(given)
    found = named or newest_run(recipe=recipe)
    if found is None:
        raise _no_run(given, recipe)
    return _said("run", found, given, recipe=None if named else recipe)


def resumable_run(given: str) -> Path:
    """A run by path or id; or of a recipe the run that began last and did not end, else the newest."""
    named = _named(given, RUNS, _is_run)
    recipe = _recipe_name(given)
    found = named or newest_unfinished(recipe=recipe) or newest_run(recipe=recipe)
    if found is None:
        raise _nothing("run", given, recipe, RUNS, make=f"toolkit train {recipe}")
    return _said("run", found, given, recipe=None if named else recipe)


def export_folder(given: str | None) -> Path:
    """An export by path or id (a run's path will do); or the newest export, of a recipe or of all."""
    named = _named(given, EXPORTS, _is_export)
    recipe = _recipe_name(given)
    found = named or newest_export(recipe=recipe)
    if found is None:
        run = _named(given, RUNS, _is_run) or newest_run(recipe=recipe)
        make = f"toolkit export {run}" if run else f"toolkit train {recipe or ''}".rstrip() + " --to verify"
        raise _nothing("export", given, recipe, EXPORTS, make=make, known=run is not None)
    return _said("export", found, given, recipe=None if named else recipe)


def _is_run(path: Path) -> bool:
    return RunDir(path).recipe.is_file() and not ExportDir(path).merged.exists()


def _is_export(path: Path) -> bool:
    return ExportDir(path).manifest.is_file() and ExportDir(path).merged.is_dir()


def _named(given: str | None, parent: Path, is_one: Callable[[Path], bool]) -> Path | None:
    """The folder at this path, with this id, or of the same id: an export is called as its run."""
    places = [] if given is None else [Path(given), parent / given, parent / Path(given).name]
    return next((path for path in places if is_one(path)), None)


def _recipe_name(given: str | None) -> str | None:
    """The recipe that a name or the path of a file means: runs are called after it."""
    return Path(given).stem if given and given.endswith((".yaml", ".yml")) else given


def _said(noun: str, found: Path, given: str | None, *, recipe: str | None) -> Path:
    if given is None:
        console.note(f"{noun}: {console.untrusted(found)} (the newest)")
    elif recipe is not None:
        console.note(f"{noun}: {console.untrusted(found)} (the newest of recipe {console.untrusted(recipe)})")
    elif found != Path(given):
        console.note(f"{noun}: {console.untrusted(found)}")
    return found


def _no_run(given: str | None, recipe: str | None) -> ToolkitError:
    """Why there is no run to work on: perhaps one was begun."""
    begun = newest_unfinished(recipe=recipe)
    if begun is not None:
        whose = f"of recipe {recipe} " if recipe else ""
        return ToolkitError(f"no run {whose}was trained to its end", where=str(begun), hint=f"toolkit train --resume {begun}")
    return _nothing("run", given, recipe, RUNS, make=f"toolkit train {recipe or ''}".rstrip())


def _nothing(
    noun: str, given: str | None, recipe: str | None, parent: Path, *, make: str, known: bool = False
) -> ToolkitError:
    """There is none yet, or the word means nothing; then the nearest that does."""
    from toolkit.recipe import list_recipes

    if given is None:
        return ToolkitError(f"there is nothing in {parent}/ yet", hint=make)
    if Path(given).is_dir() and not known:
        return ToolkitError(f"the folder is no finished {noun}", where=given, hint=make_anew(noun))
    recipes = [entry.name for entry in list_recipes()]
    if known or recipe in recipes or Path(given).is_file():
        return ToolkitError(f"there is no {noun} of {given} yet", hint=make)
    ids = [path.name for path in parent.iterdir()] if parent.is_dir() else []
    near = nearest(Path(given).name, [*ids, *recipes])
    return ToolkitError(f"there is no {noun} and no recipe {given}", hint=f"did you mean {near}?" if near else None)
