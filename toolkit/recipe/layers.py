"""Finds recipe files, follows `extends`, reads overrides, merges all into one tree. It validates no key.

Mappings merge key by key, later over earlier: base recipes, the recipe, the command line. Lists replace. A
mapping whose `name` changes (another task) replaces too: the knobs of one task mean nothing to another.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from toolkit.errors import Fault, nearest
from toolkit.recipe.tree import Kind, Node, Place, YamlStop, parse, read_text, shorten

COMMAND_LINE = Place("command line", None, None, "command line")
_INDEX = re.compile(r"\[(\d+)\]")


def recipe_folders() -> list[Path]:
    """Where names are looked up: ./recipes first, then the recipes of the source checkout."""
    folders = [Path("recipes"), Path(__file__).resolve().parents[2] / "recipes"]
    return [folder for folder in folders if folder.is_dir()]


def recipe_names(folders: Sequence[Path]) -> dict[str, Path]:
    """Every recipe by name; a folder earlier in the list wins."""
    found: dict[str, Path] = {}
    for folder in folders:
        for path in sorted(folder.glob("*.yaml")):
            found.setdefault(path.stem, path)
    return found


def find(name_or_path: str, *, beside: Path | None, asked_at: Place, key: str) -> Path:
    """The file a name or a path means. Paths are relative to `beside` (the file that asks), else to here."""
    if _is_path(name_or_path):
        return (beside or Path()) / Path(name_or_path)
    names = recipe_names(([beside] if beside else []) + recipe_folders())
    if name_or_path in names:
        return names[name_or_path]
    if beside is None and os.path.isfile(name_or_path):
        return Path(name_or_path)
    near = nearest(name_or_path, names)
    hint = f"did you mean {near}?" if near else f"there are: {', '.join(names) or 'none'}"
    raise YamlStop(asked_at.fault(key, f"no recipe is called {shorten(name_or_path)}", hint))


def _is_path(text: str) -> bool:
    return "/" in text or "\\" in text or text.endswith((".yaml", ".yml")) or text in (".", "..", "~", "")


def shown(path: Path) -> str:
    """A path as a person reads it: relative where it lies below the working folder."""
    try:
        whole = path.resolve()
        return str(whole.relative_to(Path.cwd()) if whole.is_relative_to(Path.cwd()) else whole)
    except (OSError, ValueError, RuntimeError):
        return str(path)


def read_file(path: Path, kind: Kind) -> tuple[Node, list[Fault]]:
    """One recipe file as a tree. YamlStop where there is nothing to go on with."""
    name = shown(path)
    root, faults = parse(read_text(path, name, kind), name, kind)
    if root is None or root.value is None:
        raise YamlStop(Place(name, 1, 1, kind).fault("", "the file is empty", "model:, task: and rewards: are needed"))
    if not isinstance(root.value, dict):
        raise YamlStop(root.place.fault("", f"a recipe is a mapping (key: value), got {describe(root.value)}"))
    return root, faults


def read_chain(path: Path) -> tuple[list[tuple[Path, Node]], list[Fault]]:
    """The recipe and the recipes it extends, the recipe first, without their `extends` keys."""
    chain: list[tuple[Path, Node]] = []
    faults: list[Fault] = []
    seen: list[Path] = []
    next_path: Path | None = path
    while next_path is not None:
        root, found = read_file(next_path, "base recipe" if chain else "recipe")
        faults += found
        seen.append(next_path.resolve())
        entries = dict(root.value)
        parent = entries.pop("extends", None)
        chain.append((next_path, replace(root, value=entries)))
        next_path = _parent_path(parent, next_path, seen) if parent else None
    return chain, faults


def _parent_path(parent: Node, asker: Path, seen: list[Path]) -> Path:
    if not isinstance(parent.value, str):
        raise YamlStop(parent.place.fault("extends", f"expected a name or a path, got {describe(parent.value)}"))
    path = find(parent.value, beside=asker.parent, asked_at=parent.place, key="extends")
    if not os.path.exists(path):  # unlike Path.exists, answers for any text
        raise YamlStop(_missing_parent(parent, path))
    if path.resolve() in seen:
        loop = " -> ".join(shown(item) for item in [*seen[seen.index(path.resolve()) :], path])
        raise YamlStop(parent.place.fault("extends", f"recipes extend each other in a circle: {loop}"))
    return path


def _missing_parent(parent: Node, path: Path) -> Fault:
    siblings = [item.name for item in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
    near = nearest(path.name, siblings)
    hint = f"did you mean {Path(parent.value).parent / near}?" if near else None
    return parent.place.fault("extends", f"there is no file {shown(path)}", hint)


def read_overrides(overrides: Sequence[str]) -> tuple[Node, list[Fault]]:
    """`key.sub=value` texts as one tree; of two values for a key the later one counts."""
    tree = Node({}, COMMAND_LINE, COMMAND_LINE)
    faults: list[Fault] = []
    for text in overrides:
        try:
            key, value = _split(text)
            node, found = parse(value, COMMAND_LINE.file, "command line")
            faults += [replace(fault, key=key + fault.key) for fault in found]
        except YamlStop as stop:
            faults.append(replace(stop.fault, key=stop.fault.key or shorten(text.partition("=")[0])))
            continue
        tree = merge(tree, _nest(key.split("."), node or Node(None, COMMAND_LINE, COMMAND_LINE)), faults)
    return tree, faults


def _split(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    key = _INDEX.sub(r".\1", key.strip())
    if not equals:
        hint = f"{key.replace(':', '=')}" if ":" in key else "for example grpo.learning_rate=1e-5"
        raise YamlStop(COMMAND_LINE.fault(shorten(text), "an override is written key=value", hint))
    if not all(key.split(".")):
        raise YamlStop(COMMAND_LINE.fault(shorten(key), "a key has an empty part", "for example model.lora.r=16"))
    if key.split(".")[0] == "extends":
        raise YamlStop(COMMAND_LINE.fault(key, "extends cannot be overridden", "name the other recipe instead"))
    return key, value


def _nest(parts: list[str], leaf: Node) -> Node:
    for part in reversed(parts):
        leaf = Node({part: leaf}, COMMAND_LINE, COMMAND_LINE)
    return leaf


def merge(base: Node, over: Node, faults: list[Fault], key: str = "") -> Node:
    """`over` laid on `base`."""
    if not isinstance(over.value, dict):
        return over
    on_command_line = over.place.kind == "command line"
    if isinstance(base.value, list) and on_command_line:
        return _merge_items(base, over, faults, key)
    if not isinstance(base.value, dict) or _renamed(base, over):
        return over
    entries = dict(base.value)
    for name, node in over.value.items():
        inner = f"{key}.{name}" if key else name
        entries[name] = merge(entries[name], node, faults, inner) if name in entries else node
    return replace(base if on_command_line else over, value=entries)


def _renamed(base: Node, over: Node) -> bool:
    names = [node.value.get("name") for node in (base, over)]
    return names[0] is not None and names[1] is not None and names[0].value != names[1].value


def _merge_items(base: Node, over: Node, faults: list[Fault], key: str) -> Node:
    """Overrides of list items, by the item's `name` or by its index: `rewards.correctness.weight=3`."""
    items = list(base.value)
    places = {str(index): index for index in range(len(items))}
    places |= {label: index for index, label in reversed(list(enumerate(map(_label, items)))) if label}
    for name, node in over.value.items():
        if name in places:
            items[places[name]] = merge(items[places[name]], node, faults, f"{key}.{name}")
            continue
        near = nearest(name, [place for place in places if not place.isdecimal()])
        hint = f"did you mean {near}?" if near else f"the list has: {', '.join(places) or 'nothing'}"
        faults.append(COMMAND_LINE.fault(f"{key}.{shorten(name)}", f"the list has no item {shorten(name)}", hint))
    return replace(base, value=items)


def _label(item: Node) -> str | None:
    name = item.value.get("name") if isinstance(item.value, dict) else None
    return name.value if name is not None and isinstance(name.value, str) else None


def describe(value: Any) -> str:
    """A value as an error message names it."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return "a list"
    if isinstance(value, str):
        return f"the text '{shorten(value)}'"
    return shorten(str(value))
