"""What a library offers, read in its source: parameters and attributes behind a dotted name. Nothing of it is imported or run."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from contract_uses import LIBRARIES


@dataclass(frozen=True)
class Offer:
    """What stands behind a name: what a call takes, and what the object has."""

    parameters: tuple[str, ...] = ()
    positional: int = 0
    """How many can be passed without their name."""
    more_words: bool = False
    """It takes any keyword (`**kwargs`)."""
    more_values: bool = False
    words: tuple[str, ...] = ()
    """Keywords that it takes out of `**kwargs` by name."""


@dataclass
class Source:
    """The modules of libraries as syntax trees. `read` gives a module's text by its path, `vllm/v1/outputs.py`."""

    read: Callable[[str], str | None]
    trees: dict[str, ast.Module | None] = field(default_factory=dict)
    packages: dict[str, bool] = field(default_factory=dict)

    def tree(self, module: str) -> ast.Module | None:
        if module.partition(".")[0] not in LIBRARIES:
            return None
        if module not in self.trees:
            path = module.replace(".", "/")
            text = self.read(f"{path}/__init__.py")
            self.packages[module] = text is not None
            text = text if text is not None else self.read(f"{path}.py")
            self.trees[module] = None if text is None else ast.parse(text)
        return self.trees[module]

    def offer(self, dotted: str) -> Offer | None:
        """What is behind a dotted name; None where there is nothing."""
        found = self.find(dotted)
        if found is None:
            return None
        module, node, owner = found
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return _of_function(node, method=owner)
        return self._of_class(module, node) if isinstance(node, ast.ClassDef) else Offer()

    def find(self, dotted: str, _seen: frozenset[str] = frozenset()) -> tuple[str, ast.AST, bool] | None:
        """Module and node of a name, through imports and base classes; whether it is a method."""
        if dotted in _seen:
            return None
        seen = _seen | {dotted}
        parts = dotted.split(".")
        for cut in range(len(parts), 0, -1):
            module, rest = ".".join(parts[:cut]), parts[cut:]
            tree = self.tree(module)
            if tree is None:
                continue
            if not rest:
                return module, tree, False
            node = self._named(module, tree, rest[0], seen)
            return self._inside(*node, rest[1:], seen) if node else None
        return None

    def _named(self, module: str, tree: ast.Module, name: str, seen: frozenset[str]) -> tuple[str, ast.AST] | None:
        stars = []
        for node in _statements(tree):
            if getattr(node, "name", None) == name and isinstance(
                node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
            ):
                return module, node
            if isinstance(node, ast.ImportFrom):
                origin = self._absolute(module, node)
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        if found := self.find(f"{origin}.{alias.name}", seen):
                            return found[:2]
                    elif alias.name == "*":
                        stars.append(origin)
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and name in _targets(node):
                return module, node
        found = next((found for star in stars if (found := self.find(f"{star}.{name}", seen))), None)
        return found[:2] if found else None

    def _absolute(self, module: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        above = module.split(".")
        above = above[: len(above) - node.level + (1 if self.packages.get(module) else 0)]
        return ".".join([*above, *([node.module] if node.module else [])])

    def _inside(
        self, module: str, node: ast.AST, rest: list[str], seen: frozenset[str]
    ) -> tuple[str, ast.AST, bool] | None:
        if not rest or not isinstance(node, ast.ClassDef):
            return (module, node, False) if not rest else None
        for where, kind in self.bases(module, node):
            for each in _statements(kind):
                named = isinstance(each, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)) and each.name == rest[0]
                if named or rest[0] in _targets(each):
                    return (where, each, isinstance(each, ast.FunctionDef)) if len(rest) == 1 else None
            if rest[0] in _set_on_self(kind):
                return (where, ast.Pass(), False) if len(rest) == 1 else None
        return None

    def bases(self, module: str, node: ast.ClassDef) -> Iterator[tuple[str, ast.ClassDef]]:
        """The class and what it inherits from, as far as it can be found."""
        yield module, node
        for base in node.bases:
            inner = base.value if isinstance(base, ast.Subscript) else base
            name = ast.unparse(inner)
            tree = self.tree(module)
            assert tree is not None
            found = self._named(module, tree, name.split(".")[0], frozenset())
            if found and isinstance(found[1], ast.ClassDef):
                yield from self.bases(*found)  # type: ignore[arg-type]

    def _of_class(self, module: str, node: ast.ClassDef) -> Offer:
        line = list(self.bases(module, node))
        for at, (_, kind) in enumerate(line):
            maker = next((each for each in kind.body if getattr(each, "name", None) == "__init__"), None)
            if isinstance(maker, ast.FunctionDef):
                return _of_function(maker, method=True)
            if _has_fields(kind):
                fields = [name for _, each in reversed(line[at:]) for name in _fields(each)]
                return Offer(tuple(dict.fromkeys(fields)), len(fields))
        return Offer(more_values=True)  # made as what it inherits from, which is no library's: a list, an exception


def _of_function(node: ast.FunctionDef | ast.AsyncFunctionDef, *, method: bool) -> Offer:
    static = any(ast.unparse(each) == "staticmethod" for each in node.decorator_list)
    places = [each.arg for each in [*node.args.posonlyargs, *node.args.args]][1 if method and not static else 0 :]
    words = [each.arg for each in node.args.kwonlyargs]
    taken = {each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)}
    named = tuple(sorted(each for each in taken if each.isidentifier())) if node.args.kwarg else ()
    return Offer((*places, *words), len(places), node.args.kwarg is not None, node.args.vararg is not None, named)


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Of a module or class, also below `if` and `try`, not inside its functions and classes."""
    for each in ast.iter_child_nodes(node):
        yield each
        if isinstance(each, (ast.If, ast.Try, ast.With, ast.ExceptHandler)):
            yield from _statements(each)


def _targets(node: ast.AST) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}


def _fields(kind: ast.ClassDef) -> list[str]:
    return [each.target.id for each in kind.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
            and "ClassVar" not in ast.unparse(each.annotation)]  # fmt: skip


def _has_fields(kind: ast.ClassDef) -> bool:
    """A dataclass, a named tuple, or a Struct of msgspec, which get their `__init__` from their fields."""
    makers = [ast.unparse(each).partition("(")[0].rpartition(".")[2] for each in [*kind.decorator_list, *kind.bases]]
    return bool({"dataclass", "config", "NamedTuple", "Struct"} & set(makers))


def _set_on_self(kind: ast.ClassDef) -> set[str]:
    found = (each for each in ast.walk(kind) if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store))
    return {each.attr for each in found if isinstance(each.value, ast.Name) and each.value.id == "self"}


def installed(path: str) -> str | None:
    """The text of an installed library's module. Looking up the library itself imports nothing."""
    top, _, rest = path.partition("/")
    spec = importlib.util.find_spec(top) if rest else None
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (file := Path(folder, rest)).is_file():
            return file.read_text(encoding="utf-8")
    return None
