"""What the toolkit asks of the training libraries, read in its source: names, calls with their arguments, attributes.

It finds a library's names through imports, assignments and base classes, and the objects that a library hands out by the names
of the variables that hold them (RECEIVERS). contract_sources.py has what the libraries offer.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

TOOLKIT = Path(__file__).parent.parent / "toolkit"
LIBRARIES = ("bitsandbytes", "peft", "transformers", "trl", "unsloth", "unsloth_zoo", "vllm")
ENGINE = "vllm.v1.engine.llm_engine.LLMEngine"
RECEIVERS = {
    "_llm": "vllm.LLM",
    "vllm_engine": "vllm.LLM",
    "_core": ENGINE,
    "llm_engine": ENGINE,
    "vllm_config": "vllm.config.VllmConfig",
    "model_config": "vllm.config.ModelConfig",
    "cache_config": "vllm.config.CacheConfig",
    "lora_config": "vllm.config.LoRAConfig",
    "model_runner": "vllm.v1.worker.gpu_model_runner.GPUModelRunner",
    "runner": "vllm.v1.worker.gpu_model_runner.GPUModelRunner",
    "engine_core": "vllm.v1.engine.core_client.EngineCoreClient",
    "_client": "trl.generation.vllm_client.VLLMClient",
    "input_batch": "vllm.v1.worker.gpu_input_batch.InputBatch",
}
"""Names of variables and attributes, in modules that are about vLLM, and what they hold."""
ON_MODEL = {
    "fast_generate": ("vllm.LLM.generate", 0),
    "load_lora": ("unsloth_zoo.vllm_utils.load_lora", 1),
    "save_lora": ("unsloth_zoo.vllm_utils.save_lora", 1),
}
"""Methods that Unsloth puts on a model: the function behind each, and how many arguments it gives to that itself."""
WORKER = "vllm.v1.worker.gpu_worker.Worker"
"""What `collective_rpc` calls by name."""
FACTORY = {"base": "trl.GRPOTrainer"}
"""What a function's parameter holds, where a class is made from it."""

IN_TURN = {
    "vllm.LLM": ("vllm.engine.arg_utils.EngineArgs",),
    "unsloth.FastLanguageModel.get_peft_model": ("unsloth.models.llama.FastLlamaModel.get_peft_model",),
    f"{WORKER}.reload_weights": ("vllm.v1.worker.gpu_model_runner.GPUModelRunner.reload_weights",),
    "transformers.AutoModelForCausalLM.from_pretrained": ("transformers.PreTrainedModel.from_pretrained",),
    "transformers.AutoTokenizer.from_pretrained": ("transformers.PreTrainedTokenizerBase.from_pretrained",),
}
"""Where something hands its keywords on to, as they are."""


@dataclass(frozen=True)
class Use:
    """A place where a name of a library stands; for a call, what is passed."""

    place: str
    target: str
    positional: int = 0
    keywords: frozenset[str] = frozenset()
    called: bool = False
    unread: bool = False
    """Arguments come from a mapping that cannot be read here."""


def uses(folder: Path = TOOLKIT) -> list[Use]:
    """All of them, in all modules of the folder."""
    return [use for path in sorted(folder.rglob("*.py")) for use in _Module(path, folder.parent).uses()]


@dataclass
class _Module:
    path: Path
    root: Path
    known: dict[str, str] = field(default_factory=dict)

    def uses(self) -> Iterator[Use]:
        text = self.path.read_text(encoding="utf-8")
        if not any(library in text for library in LIBRARIES):
            return
        tree = ast.parse(text)
        self.receivers = RECEIVERS if "vllm" in text and self.path.parent.name == "engine" else {}
        self.known = dict(_imported(tree))
        for scope in [tree, *(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))]:
            yield from self._in(scope)
        for kind in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
            for base in kind.bases:
                if dotted := self._dotted(base, FACTORY | self.known):
                    yield from self._inherited(kind, dotted)

    def _inherited(self, kind: ast.ClassDef, base: str) -> Iterator[Use]:
        """What a class takes over from a library's: methods that it replaces, and what it calls of `self` and `super()`."""
        methods = {node.name: node for node in kind.body if isinstance(node, ast.FunctionDef)}
        inside = {id(each): node.name for node in methods.values() for each in ast.walk(node)}
        own = {node.attr for node in ast.walk(kind) if isinstance(node, ast.Attribute) and _is_self(node.value)}
        for name, node in methods.items():
            replaced = not name.startswith("__") and (not name.startswith("_") or name not in own)
            if replaced:
                yield Use(self._place(node), f"{base}.{name}")
        for node in (node for node in ast.walk(kind) if isinstance(node, ast.Call)):
            func = node.func
            if not isinstance(func, ast.Attribute):
                continue
            of_super = isinstance(func.value, ast.Call) and ast.unparse(func.value) == "super()"
            if of_super or (_is_self(func.value) and func.attr not in methods and func.attr not in _set_on_self(kind)):
                use = self._call(node, (f"{base}.{func.attr}", 0), {})
                yield replace(use, unread=use.unread and not (of_super and inside.get(id(node)) == func.attr))

    def _in(self, scope: ast.Module | ast.FunctionDef) -> Iterator[Use]:
        """Of one function, without those inside it."""
        nodes = list(_own(scope))
        names = self.known | dict(self._assigned(nodes))
        literals = {node.targets[0].id: node.value for node in nodes
                    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)}  # fmt: skip
        called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
        for node in nodes:
            if isinstance(node, ast.Call) and (target := self._target(node.func, names)):
                yield self._call(node, target, literals)
                if target[0].endswith(".collective_rpc"):
                    yield from self._by_name(node)
            elif isinstance(node, ast.ImportFrom) and _is_library(node.module):
                yield from (Use(self._place(node), f"{node.module}.{alias.name}") for alias in node.names)
            elif isinstance(node, ast.Import):
                yield from (Use(self._place(node), alias.name) for alias in node.names if _is_library(alias.name))
            elif isinstance(node, ast.Attribute) and id(node) not in called and (target := self._target(node, names)):
                yield Use(self._place(node), target[0])

    def _assigned(self, nodes: list[ast.AST]) -> Iterator[tuple[str, str]]:
        """Variables that hold something of a library, or one of the receivers."""
        for node in nodes:
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                target, value = node.targets[0], node.value
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                target, value = node.target, node.value
            else:
                continue
            if isinstance(target, ast.Name) and (holds := self._held(value)):
                yield target.id, holds

    def _held(self, value: ast.expr) -> str | None:
        if isinstance(value, ast.Attribute) and value.attr in self.receivers:
            return self.receivers[value.attr]
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "getattr":
            name = value.args[1]
            return self.receivers.get(name.value) if isinstance(name, ast.Constant) else None  # type: ignore[arg-type]
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "import_unsloth":
            return "unsloth"
        return next((dotted for each in _choices(value) if (dotted := self._dotted(each, self.known))), None)

    def _target(self, node: ast.expr, names: dict[str, str]) -> tuple[str, int] | None:
        """The dotted name of what stands there, and how many arguments it has got already."""
        if isinstance(node, ast.Attribute) and node.attr in ON_MODEL and self.receivers:
            return ON_MODEL[node.attr]
        dotted = self._dotted(node, names)
        return (dotted, 0) if dotted else None

    def _dotted(self, node: ast.expr, names: dict[str, str]) -> str | None:
        if isinstance(node, ast.Name):
            return names.get(node.id)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "import_unsloth":
            return "unsloth"
        if not isinstance(node, ast.Attribute):
            return None
        before = node.value
        if isinstance(before, ast.Attribute) and before.attr in self.receivers:
            return f"{self.receivers[before.attr]}.{node.attr}"
        if isinstance(before, ast.Name) and before.id in self.receivers and before.id not in names:
            return f"{self.receivers[before.id]}.{node.attr}"
        dotted = self._dotted(before, names)
        return f"{dotted}.{node.attr}" if dotted else None

    def _call(self, node: ast.Call, target: tuple[str, int], literals: dict[str, ast.expr]) -> Use:
        keywords, unread = set(), False
        for word in node.keywords:
            value = literals.get(word.value.id, word.value) if isinstance(word.value, ast.Name) else word.value
            if word.arg is not None:
                keywords.add(word.arg)
            elif keys := _keys(value):
                keywords |= keys
            else:
                unread = True
        starred = any(isinstance(each, ast.Starred) for each in node.args)
        return Use(
            self._place(node),
            target[0],
            len(node.args) + target[1],
            frozenset(keywords),
            called=True,
            unread=unread or starred,
        )

    def _by_name(self, node: ast.Call) -> Iterator[Use]:
        """The worker's method that `collective_rpc` is told to call."""
        named = node.args[0] if node.args else None
        words = {word.arg: word.value for word in node.keywords}
        if isinstance(named, ast.Constant):
            keywords = frozenset(_keys(words["kwargs"])) if "kwargs" in words else frozenset()
            yield Use(self._place(node), f"{WORKER}.{named.value}", 0, keywords, called=True)

    def _place(self, node: ast.AST) -> str:
        return f"{self.path.relative_to(self.root)}:{node.lineno}"  # type: ignore[attr-defined]


def _choices(value: ast.expr) -> list[ast.expr]:
    """What a variable may hold: one of two, or what is made from a class that is handed over."""
    if isinstance(value, ast.IfExp):
        return [*_choices(value.body), *_choices(value.orelse)]
    if isinstance(value, ast.Call):
        return [each for each in value.args if isinstance(each, ast.Attribute)]
    return [value] if isinstance(value, ast.Attribute) else []


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _set_on_self(kind: ast.ClassDef) -> set[str]:
    found = (each for each in ast.walk(kind) if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store))
    return {each.attr for each in found if _is_self(each.value)}


def environment(folder: Path = TOOLKIT) -> set[str]:
    """The environment variables of vLLM and Unsloth that are set or read."""
    texts = [path.read_text(encoding="utf-8") for path in folder.rglob("*.py")]
    return {name for text in texts for name in re.findall(r'"((?:VLLM|UNSLOTH)_[A-Z0-9_]+)"', text)}


def _keys(value: ast.expr) -> set[str]:
    """Of the dict displays in an expression."""
    displays = [node for node in ast.walk(value) if isinstance(node, ast.Dict)]
    return {str(key.value) for display in displays for key in display.keys if isinstance(key, ast.Constant)}


def _own(scope: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(scope):
        yield node
        if not isinstance(node, ast.FunctionDef):
            yield from _own(node)


def _is_library(module: str | None) -> bool:
    return module is not None and module.partition(".")[0] in LIBRARIES


def _imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and _is_library(node.module):
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if _is_library(alias.name):
                    top = alias.name.partition(".")[0]
                    yield (alias.asname, alias.name) if alias.asname else (top, top)
