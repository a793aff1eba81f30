"""From a name or a path and overrides to a frozen recipe that knows where each value came from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from toolkit.errors import Fault, RecipeError, ToolkitError
from toolkit.recipe.checks import RULES, cross_problems
from toolkit.recipe.faults import FaultFinder, dotted
from toolkit.recipe.layers import (
    COMMAND_LINE,
    find,
    merge,
    read_chain,
    read_file,
    read_overrides,
    recipe_folders,
    recipe_names,
    shown,
)  # fmt: skip
from toolkit.recipe.schema import Recipe
from toolkit.recipe.tree import Node, Place, YamlStop

DEFAULT_RECIPE = "smollm2-arithmetic"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A resolved recipe, its name (for the run's folder) and file, per dotted key the value and its source.

    A source is `default`, `recipe FILE:LINE`, `base recipe FILE:LINE` or `command line`.
    """

    recipe: Recipe
    provenance: dict[str, str]
    values: dict[str, Any]
    path: Path
    name: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of `toolkit recipes`."""

    name: str
    description: str
    path: Path


def load_recipe(name_or_path: str | Path, overrides: Sequence[str] = ()) -> Loaded:
    """Read, merge, validate once. RecipeError carries every fault of the files and of the overrides."""
    path, root, faults = _merged_tree(str(name_or_path), overrides)
    plain = root.plain()
    recipe: Recipe | None = None
    try:
        # As JSON, strictly: "5" is not 5 and "yes" is not true, yet a list may become a tuple.
        recipe = Recipe.model_validate_json(json.dumps(plain), strict=True)
    except ValidationError as error:
        # A value that could not be read is null by now: what validation says of it is no second fault.
        unread = {(fault.place, fault.key) for fault in faults}
        found = _validation_faults(error, FaultFinder(Recipe, root), plain)
        faults += [fault for fault in found if (fault.place, fault.key) not in unread]
    if faults or recipe is None:
        raise RecipeError(_ordered(faults))
    return _loaded(recipe, root, path, path.stem)


def load_resolved(path: Path) -> Loaded:
    """The recipe of a run, which is complete JSON. Nothing is looked up, merged or defaulted by hand."""
    try:
        recipe = Recipe.model_validate_json(path.read_bytes(), strict=True)
    except OSError as error:
        raise ToolkitError(f"cannot be read: {error.strerror}", where=shown(path), hint="toolkit train") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        message = f"not a resolved recipe: {dotted(first['loc'])}: {first['msg']} ({error.error_count()} faults)"
        raise ToolkitError(message, where=shown(path), hint="it was made by another version; train anew") from error
    place = Place(shown(path), None, None, "recipe")
    return _loaded(recipe, _everything(recipe.model_dump(mode="json"), place), path, path.parent.name)


def list_recipes() -> list[Entry]:
    """The recipes that a name can mean, by name. A file that cannot be read says so in its description."""
    entries = []
    for name, path in sorted(recipe_names(recipe_folders()).items()):
        try:
            root, _ = read_file(path, "recipe")
            text = root.value.get("description")
            description = text.value if text is not None and isinstance(text.value, str) else ""
        except YamlStop as stop:
            description = f"cannot be read: {stop.fault.message}"
        entries.append(Entry(name, description, path))
    return entries


def _merged_tree(name_or_path: str, overrides: Sequence[str]) -> tuple[Path, Node, list[Fault]]:
    laid, faults = read_overrides(overrides)
    try:
        path = find(name_or_path, beside=None, asked_at=COMMAND_LINE, key="")
        chain, found = read_chain(path)
    except YamlStop as stop:
        raise RecipeError(_ordered([stop.fault, *faults])) from None
    faults += found
    root = chain[-1][1]
    for _, layer in reversed(chain[:-1]):
        root = merge(root, layer, faults)
    return path, merge(root, laid, faults), faults


def _validation_faults(error: ValidationError, finder: FaultFinder, plain: dict[str, Any]) -> list[Fault]:
    details = error.errors(include_url=False)
    if [item["loc"] for item in details] == [()]:  # the fields are right, only the rules over several keys are not
        return [finder.problem(problem) for problem in cross_problems(_filled(plain))]
    faulty = {".".join(map(str, item["loc"][:3])) for item in details}
    faulty |= {meant for item in details if (meant := finder.unknown_means(item))}
    doubtful = {key for key in _rule_keys() for bad in faulty if key == bad or key.startswith(bad + ".")}
    doubtful |= {key for key in _rule_keys() for bad in faulty if bad.startswith(key + ".")}
    rules = cross_problems(_filled(plain), doubtful)
    return [finder.fault(item) for item in details] + [finder.problem(problem) for problem in rules]


def _rule_keys() -> set[str]:
    return {key for _, keys in RULES for key in keys}


def _filled(plain: dict[str, Any]) -> dict[str, Any]:
    """Plain data with the defaults of the sections that rules read. A section of a wrong type is empty."""
    filled = dict(plain)
    for name in {key.split(".")[0] for key in _rule_keys()}:
        section = Recipe.model_fields[name].annotation
        assert isinstance(section, type) and issubclass(section, BaseModel)
        defaults = {key: field.default for key, field in section.model_fields.items()}
        written = plain.get(name)
        filled[name] = defaults | (written if isinstance(written, dict) else {})
    return filled


def _ordered(faults: Sequence[Fault]) -> list[Fault]:
    """By file in the order met, then by line and column."""
    files = list(dict.fromkeys(fault.file for fault in faults))
    return sorted(faults, key=lambda fault: (files.index(fault.file), fault.line or 0, fault.column or 0))


def _loaded(recipe: Recipe, root: Node, path: Path, name: str) -> Loaded:
    leaves = list(_leaves(recipe.model_dump(mode="json"), root, ""))
    sources = {key: "default" if node is None else str(node.place) for key, _, node in leaves}
    return Loaded(recipe, sources, {key: value for key, value, _ in leaves}, path, name)


def _leaves(value: Any, node: Node | None, key: str) -> Iterator[tuple[str, Any, Node | None]]:
    """Every leaf of the resolved recipe with what wrote it. List items with a `name` are called by it."""
    if isinstance(value, dict) and value:
        inner = node.value if node is not None and isinstance(node.value, dict) else {}
        for name, item in value.items():
            yield from _leaves(item, inner.get(name), f"{key}.{name}" if key else name)
    elif isinstance(value, list) and value and all(isinstance(item, dict) and "name" in item for item in value):
        nodes = node.value if node is not None and isinstance(node.value, list) else []
        for item, inner in zip_longest(value, nodes[: len(value)]):
            yield from _leaves(item, inner, f"{key}.{item['name']}")
    else:
        yield key, value, node


def _everything(value: Any, place: Place) -> Node:
    """Plain data as a tree that was all written in one place."""
    if isinstance(value, dict):
        return Node({key: _everything(item, place) for key, item in value.items()}, place, place)
    if isinstance(value, list):
        return Node([_everything(item, place) for item in value], place, place)
    return Node(value, place, place)
