"""YAML text -> a tree of values that know where they stand. It knows nothing of recipes.

YAML 1.2 through ruamel.yaml's node graph, not through its constructors: nodes carry line and column, and
aliases can be counted while they are expanded, so that no small file becomes a big tree.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from toolkit.errors import Fault

Kind = Literal["recipe", "base recipe", "command line"]
MAX_BYTES = 64 * 1024
MAX_NODES = 20_000
MAX_DEPTH = 20
_PLAIN_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str", "timestamp")}
_TEXT_TAGS = {"tag:yaml.org,2002:str", "tag:yaml.org,2002:timestamp"}
_DIRECTIVE = re.compile(r"^%", re.MULTILINE)
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a key or a value was written. Line and column count from 1; None on the command line."""

    file: str
    line: int | None
    column: int | None
    kind: Kind

    def fault(self, key: str, message: str, hint: str | None = None) -> Fault:
        return Fault(self.file, self.line, self.column, key, message, hint)

    def __str__(self) -> str:
        if self.kind == "command line":
            return self.kind
        return f"{self.kind} {self.file}" + (f":{self.line}" if self.line else "")


@dataclass(frozen=True, slots=True)
class Node:
    """A scalar, or a dict or list of nodes, with its place and, in a mapping, the place of its key."""

    value: Any
    place: Place
    key_place: Place

    def plain(self) -> Any:
        """The value as ordinary Python data."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value


class YamlStop(Exception):
    """The text cannot be read any further. Carries the one fault that stopped it."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault


def read_text(path: Path, shown: str, kind: Kind) -> str:
    """The text of a recipe file. A folder, an unreadable file, or bytes that are not UTF-8 are a fault."""
    start = Place(shown, None, None, kind)
    try:
        if not path.is_file():
            what = "not a plain file" if path.exists() else "no such file"
            what = "a folder, not a YAML file" if path.is_dir() else what
            raise YamlStop(start.fault("", what, "toolkit recipes lists the recipes by name"))
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise YamlStop(start.fault("", f"cannot be read: {reason}")) from error
    if len(data) > MAX_BYTES:
        raise YamlStop(start.fault("", f"larger than {MAX_BYTES // 1024} KiB: a recipe is a short file"))
    return _decode(data, start)


def _decode(data: bytes, start: Place) -> str:
    try:
        return data.removeprefix(codecs.BOM_UTF8).decode("utf-8")
    except UnicodeDecodeError as error:
        head = error.object[: error.start].decode("utf-8")
        line, column = head.count("\n") + 1, len(head) - (head.rfind("\n") + 1) + 1
        place = Place(start.file, line, column, start.kind)
        message = f"not UTF-8 text (byte 0x{error.object[error.start]:02x})"
        raise YamlStop(place.fault("", message, "save the file as UTF-8")) from error


def parse(text: str, file: str, kind: Kind) -> tuple[Node | None, list[Fault]]:
    """The tree of a text (None if empty) and the faults that do not stop it. YamlStop where one does."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    reader = _Reader(file, kind)
    directive = _DIRECTIVE.search(text)
    if directive:
        line = text.count("\n", 0, directive.start()) + 1
        raise YamlStop(reader.at_position(line, 1).fault("", "YAML directives (%) are not supported"))
    try:
        yaml = YAML(typ="safe", pure=True)
        reader.guard_depth(yaml.composer)
        root = yaml.compose(text)
        if root is None:
            return None, []
        return reader.node(root, key_place=reader.place(root), path="", depth=0), reader.faults
    except YAMLError as error:
        raise YamlStop(reader.syntax_fault(error, text)) from None


class _Reader:
    """Turns ruamel's nodes of one text into ours, collecting faults on the way."""

    def __init__(self, file: str, kind: Kind) -> None:
        self.file = file
        self.kind: Kind = kind
        self.faults: list[Fault] = []
        self.count = 0

    def at_position(self, line: int, column: int) -> Place:
        on_file = self.kind != "command line"
        return Place(self.file, line if on_file else None, column if on_file else None, self.kind)

    def place(self, node: Any) -> Place:
        return self.at_position(node.start_mark.line + 1, node.start_mark.column + 1)

    def guard_depth(self, composer: Any) -> None:
        """Stop ruamel's recursive composer early: ten thousand brackets cost it seconds and all the stack."""
        compose_node, depth = composer.compose_node, 0

        def guarded(parent: Any, index: Any) -> Any:
            nonlocal depth
            if depth > MAX_DEPTH:
                mark = composer.parser.peek_event().start_mark
                raise self.too_deep(self.at_position(mark.line + 1, mark.column + 1))
            depth += 1
            node = compose_node(parent, index)
            depth -= 1
            return node

        composer.compose_node = guarded

    def too_deep(self, place: Place) -> YamlStop:
        return YamlStop(place.fault("", f"nested deeper than {MAX_DEPTH} levels"))

    def node(self, raw: Any, *, key_place: Place, path: str, depth: int) -> Node:
        place = self.place(raw)
        self.count += 1
        if self.count > MAX_NODES:
            raise YamlStop(place.fault("", f"more than {MAX_NODES:,} values once its aliases are expanded"))
        if depth > MAX_DEPTH:  # only an alias to its own parent comes here
            raise self.too_deep(place)
        if raw.id == "mapping":
            return Node(self._mapping(raw, path, depth), place, key_place)
        if raw.id == "sequence":
            return Node(self._sequence(raw, path, depth), place, key_place)
        return Node(self._scalar(raw, place, path), place, key_place)

    def _mapping(self, raw: Any, path: str, depth: int) -> dict[str, Node]:
        entries: dict[str, Node] = {}
        for raw_key, raw_value in raw.value:
            place = self.place(raw_key)
            key = raw_key.value if raw_key.id == "scalar" else None
            inner = f"{path}.{key}" if path else str(key)
            if key is None or raw_key.tag not in _TEXT_TAGS or key == "<<" or _SURROGATE.search(key):
                self.faults.append(_bad_key(place, path, key))
            elif key in entries:
                first = entries[key].key_place.line
                seen = f" (first on line {first})" if first else ""
                self.faults.append(place.fault(inner, f"the key {shorten(key)} stands here twice{seen}"))
            else:
                entries[key] = self.node(raw_value, key_place=place, path=inner, depth=depth + 1)
        return entries

    def _sequence(self, raw: Any, path: str, depth: int) -> list[Node]:
        return [
            self.node(item, key_place=self.place(item), path=f"{path}[{index}]", depth=depth + 1)
            for index, item in enumerate(raw.value)
        ]

    def _scalar(self, raw: Any, place: Place, path: str) -> Any:
        if raw.tag not in _PLAIN_TAGS:
            self.faults.append(place.fault(path, f"YAML tags are not supported: {shorten(str(raw.tag))}"))
            return None
        if raw.tag in _TEXT_TAGS:
            if _SURROGATE.search(raw.value):
                self.faults.append(place.fault(path, "half of a surrogate pair is not text"))
                return None
            return raw.value
        try:
            return _construct(raw)
        except (ValueError, OverflowError, KeyError):
            self.faults.append(
                place.fault(path, f"cannot be read as a {raw.tag.rsplit(':', 1)[1]}: {shorten(raw.value)}")
            )
            return None

    def syntax_fault(self, error: Any, text: str) -> Fault:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        if mark is None:
            position = getattr(error, "position", 0)
            head = text[:position] if isinstance(position, int) else ""
            place = self.at_position(head.count("\n") + 1, len(head) - head.rfind("\n"))
            return place.fault("", "a control character stands here: not a text file")
        place = self.at_position(mark.line + 1, mark.column + 1)
        line = dict(enumerate(text.split("\n"))).get(mark.line, "")
        if "\t" in line[: mark.column + 1]:
            return place.fault("", "a tab stands where YAML needs spaces", "replace tabs by spaces")
        problem = " ".join(str(getattr(error, part, "") or "") for part in ("context", "problem")).strip()
        return place.fault("", f"not valid YAML: {problem or 'unreadable'}")


def _construct(raw: Any) -> Any:
    from ruamel.yaml import YAML

    return YAML(typ="safe", pure=True).constructor.construct_object(raw)


def _bad_key(place: Place, path: str, key: str | None) -> Fault:
    if key == "<<":
        return place.fault(path, "merge keys (<<) are not supported", "use extends: other-recipe")
    shown = "a list or mapping" if key is None else shorten(key) or "nothing"
    hint = f'"{shorten(key)}" in quotes is text' if key else None
    return place.fault(path, f"a key must be text, got {shown}", hint)


def shorten(text: str, limit: int = 60) -> str:
    """One short line of a foreign text, for an error message."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
