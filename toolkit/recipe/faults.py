"""Pydantic's errors -> faults with place, what was expected, nearest name. It finds no errors itself."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from toolkit.errors import Fault, KeyFault, nearest
from toolkit.recipe.checks import Problem, way_out
from toolkit.recipe.layers import describe
from toolkit.recipe.tree import Node, shorten
from toolkit.tasks.hub import NO_STREAMING

Loc = Sequence[int | str]
_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "a text",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping (key: value)",
    "model_type": "a mapping (key: value)",
    "model_attributes_type": "a mapping (key: value)",
}
_LIMIT = {"greater_than": "gt", "greater_than_equal": "ge", "less_than": "lt", "less_than_equal": "le"}
_LIMIT_WORD = {
    "greater_than": "above",
    "greater_than_equal": "at least",
    "less_than": "below",
    "less_than_equal": "at most",
}


class FaultFinder:
    """Places and words for the errors of one validation of `model` against the tree `root`."""

    def __init__(self, model: type[BaseModel], root: Node) -> None:
        self.model = model
        self.root = root

    def fault(self, error: ErrorDetails) -> Fault:
        """The fault that a pydantic error means."""
        cause = error.get("ctx", {}).get("error")
        inside = cause.at if isinstance(cause, KeyFault) else ()
        nodes, keys = self._walk([*error["loc"], *inside])
        kind, node, key = error["type"], nodes[-1], dotted(keys)
        if kind == "extra_forbidden" and key == "task.streaming":
            return node.key_place.fault(key, *NO_STREAMING)
        if kind == "extra_forbidden":
            return node.key_place.fault(key, f"unknown key {shorten(str(keys[-1]))}", self._near_key(error["loc"]))
        if kind == "missing":
            return self._missing(node, key, str(error["loc"][-1]), None)
        if kind == "union_tag_not_found":
            return self._missing(node, key, "name", _tags(error))
        if kind == "union_tag_invalid":
            return self._wrong_tag(node, key, error)
        message, hint = _words(error)
        hint = hint or way_out(key, error["input"])
        if inside and len(keys) and keys[-1] == inside[-1]:
            return node.key_place.fault(key, message, hint)
        # A block mapping or list begins a line below its key: the key is the better place to look.
        place = node.place if node.place.line == node.key_place.line else node.key_place
        return place.fault(key, message, hint)

    def problem(self, problem: Problem) -> Fault:
        """The fault of a rule over several keys, at the one of them that was written last."""
        rank = {"command line": 2, "recipe": 1, "base recipe": 0}
        placed = [(rank[node.place.kind], key, node.place) for key in problem.keys if (node := self.at(key))]
        _, key, place = max(placed, key=lambda item: item[0], default=(0, problem.keys[0], self.root.place))
        return place.fault(dotted(_parts(key)), problem.message, problem.hint)

    def at(self, key: str) -> Node | None:
        """The node of a dotted key, or None where nobody wrote it."""
        node = self.root
        for part in _parts(key):
            inner = _child(node, part)
            if inner is None:
                return None
            node = inner
        return node

    def unknown_means(self, error: ErrorDetails) -> str | None:
        """For an unknown key, the dotted key that was probably meant."""
        near = nearest(str(error["loc"][-1]), self._fields_at(error["loc"][:-1]))
        return ".".join(map(str, [*error["loc"][:-1], near])) if near else None

    def _walk(self, loc: Loc) -> tuple[list[Node], list[int | str]]:
        """The nodes on the way, as far as it was written, and the keys without pydantic's union tags."""
        nodes, keys, untagged = [self.root], [], None
        for part in loc:
            if _is_tag(nodes[-1], part) and untagged is not nodes[-1]:
                untagged = nodes[-1]  # pydantic puts the tag between an item and its key; a key may have its name
                continue
            inner = _child(nodes[-1], part)
            if inner is None:
                break
            nodes.append(inner)
            keys.append(part)
        return nodes, keys

    def _missing(self, node: Node, key: str, missing: str, tags: list[str] | None) -> Fault:
        if isinstance(node.value, list):
            return node.key_place.fault(key, f"has {len(node.value)} items, and more are needed")
        written = list(node.value) if isinstance(node.value, dict) else []
        known = self._fields_at(_parts_of(key))
        near = nearest(missing, [name for name in written if name not in known])
        hint = f"is {near} meant to be {missing}?" if near else None
        if tags and not near:
            hint = f"one of: {', '.join(tags)}"
        return node.key_place.fault(key, f"the key {missing} is missing", hint)

    def _wrong_tag(self, node: Node, key: str, error: ErrorDetails) -> Fault:
        tag, tags = str(error.get("ctx", {}).get("tag", "")), _tags(error)
        name = node.value.get("name", node) if isinstance(node.value, dict) else node
        if not isinstance(name.value, str):
            return name.place.fault(f"{key}.name", f"expected a text, got {describe(name.value)}", _one_of(tags))
        near = nearest(tag, tags)
        noun = "reward" if key.startswith("rewards") else key
        hint = f"did you mean {near}?" if near else _one_of(tags)
        return name.place.fault(f"{key}.name", f"there is no {noun} called {shorten(tag)}", hint)

    def _near_key(self, loc: Loc) -> str:
        wrong, here = str(loc[-1]), self._fields_at(loc[:-1])
        elsewhere = [key for key in all_keys(self.model) if key.rsplit(".", 1)[-1] == wrong]
        near = nearest(wrong, here)
        if elsewhere or near:
            where = " at the top level" if elsewhere and "." not in elsewhere[0] else ""
            return f"did you mean {' or '.join(elsewhere or [str(near)])}{where}?"
        return f"keys here: {', '.join(here)}" if len(here) < 12 else "docs/recipes.md lists all keys"

    def _fields_at(self, loc: Loc) -> list[str]:
        """The keys that may stand in the mapping at `loc` (with or without union tags)."""
        models: list[type[BaseModel]] = [self.model]
        for part in loc:
            tagged = [model for model in models if _tag_of(model) == part]
            deeper = [inner for model in models for inner in _field_models(model, part)]
            models = deeper or tagged or (models if isinstance(part, int) else [])
        return list(dict.fromkeys(name for model in models for name in model.model_fields))


def _child(node: Node, part: int | str) -> Node | None:
    if isinstance(node.value, dict):
        return node.value.get(str(part))
    if isinstance(node.value, list) and isinstance(part, int) and part < len(node.value):
        return node.value[part]
    return None


def _is_tag(node: Node, part: int | str) -> bool:
    name = node.value.get("name") if isinstance(node.value, dict) else None
    return name is not None and name.value == part


def _parts(key: str) -> list[int | str]:
    return [int(part) if part.isdecimal() else part for part in key.split(".")] if key else []


def _parts_of(key: str) -> list[int | str]:
    return _parts(key.replace("[", ".").replace("]", ""))


def dotted(keys: Loc) -> str:
    """`rewards[2].weight`."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).lstrip(".")


def _tags(error: ErrorDetails) -> list[str]:
    expected = str(error.get("ctx", {}).get("expected_tags", ""))
    return [tag.strip().strip("'") for tag in expected.split(",")] if expected else []


def _one_of(names: Sequence[str]) -> str | None:
    return f"one of: {', '.join(names)}" if names else None


def _words(error: ErrorDetails) -> tuple[str, str | None]:
    """What was expected and what was found; and a way out, where there is one."""
    kind, given, ctx = error["type"], error["input"], error.get("ctx", {})
    got = describe(given)
    if kind in _EXPECTED:
        return f"expected {_EXPECTED[kind]}, got {got}", _way_out(kind, given)
    if kind in _LIMIT:
        return f"must be {_LIMIT_WORD[kind]} {bare_number(ctx[_LIMIT[kind]])}, got {got}", None
    if kind == "literal_error":
        choices = [choice.strip().strip("'") for choice in str(ctx["expected"]).replace(" or ", ", ").split(",")]
        near = nearest(given, choices) if isinstance(given, str) else None
        return f"expected one of {', '.join(choices)}; got {got}", f"did you mean {near}?" if near else None
    if kind == "value_error":
        cause = ctx.get("error", error["msg"])
        return str(cause), cause.hint if isinstance(cause, KeyFault) else None
    if kind == "too_long":
        return f"takes at most {ctx['max_length']} items, got {ctx['actual_length']}", None
    if kind == "string_too_short":
        return "must not be empty", None
    return f"{error['msg'][:1].lower()}{error['msg'][1:]}, got {got}", None


def bare_number(number: float) -> str:
    """A limit as a person writes it: 0, not 0.0, and all digits."""
    return str(int(number)) if number == int(number) else str(number)


def _way_out(kind: str, given: Any) -> str | None:
    if given is None:
        return "leave the key out to keep the default"
    if isinstance(given, str) and kind.startswith(("int", "float")):
        try:
            return f"write {given} without quotes" if math.isfinite(float(given)) else "a finite number"
        except ValueError:
            return None
    if kind == "bool_type" and isinstance(given, str):
        return {"yes": "true", "on": "true", "no": "false", "off": "false"}.get(given.lower())
    if kind == "model_attributes_type" and isinstance(given, str):
        return f"name: {shorten(given)}"
    return None


def annotated_models(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models inside an annotation: a section, the items of a list, the members of a union."""
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        if issubclass(annotation, BaseModel):
            yield annotation
        return
    for inner in typing.get_args(annotation):
        yield from annotated_models(inner)


def _field_models(model: type[BaseModel], part: int | str) -> list[type[BaseModel]]:
    field = model.model_fields.get(str(part))
    return list(annotated_models(field.annotation)) if field else []


def _tag_of(model: type[BaseModel]) -> str | None:
    field = model.model_fields.get("name")
    tags = typing.get_args(field.annotation) if field else ()
    return tags[0] if tags and isinstance(tags[0], str) else None


def all_keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Every dotted key of a model that does not depend on a `name`."""
    keys: list[str] = []
    for name, field in model.model_fields.items():
        inner = [item for item in annotated_models(field.annotation) if "name" not in item.model_fields]
        keys.append(prefix + name)
        for section in inner:
            keys += all_keys(section, f"{prefix}{name}.")
    return keys
