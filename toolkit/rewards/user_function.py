"""Finds the function that the reward `python` names, loads it once and says what it takes. It calls no reward.

What a user's code raises while it is imported becomes a ToolkitError that names the place.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import reduce
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

from toolkit.errors import ToolkitError, nearest

_SPELLING = re.compile(
    r"(?:(?P<file>[^:]+\.py)|(?P<module>[^\W\d]\w*(?:\.[^\W\d]\w*)*)):(?P<name>[^\W\d]\w*(?:\.[^\W\d]\w*)*)"
)
_HERE = Path(__file__).parent
_FILES: dict[Path, tuple[str, ModuleType]] = {}
"""Loaded files, each with the hash of its text: its functions may keep state from call to call."""
_MADE: dict[str, tuple[Callable[..., Any], Any]] = {}
"""What factories returned, with the factory: a product may keep state, too."""


@dataclass(frozen=True, slots=True)
class UserFunction:
    """A callable with its parameters. `by_row`: it takes one text and its row, else TRL's lists."""

    spelled: str
    call: Callable[..., Any]
    parameters: Mapping[str, inspect.Parameter]

    @property
    def by_row(self) -> bool:
        return {"text", "row"} <= set(self.parameters) and "completions" not in self.parameters

    @property
    def takes_anything(self) -> bool:
        return any(parameter.kind is parameter.VAR_KEYWORD for parameter in self.parameters.values())

    @property
    def named(self) -> list[str]:
        """Parameters that can be given by name."""
        by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        return [name for name, parameter in self.parameters.items() if parameter.kind in by_name]

    @property
    def required(self) -> list[str]:
        return [name for name in self.named if self.parameters[name].default is inspect.Parameter.empty]

    def takes(self, name: str) -> bool:
        return self.takes_anything or name in self.named


def is_spelled_right(spelled: str) -> bool:
    """`file.py:function` or `package.module:function`. Nothing is looked up."""
    return _SPELLING.fullmatch(spelled) is not None


def user_function(spelled: str, factory_arguments: Mapping[str, Any] | None, *, fresh: bool = False) -> UserFunction:
    """The function; with `factory_arguments`, what it returns when it is called with them once.

    A file that is loaded stays as it is, its state too, whatever happens to it on the disk: `fresh` looks, and loads it
    again where its text has changed.
    """
    found = _SPELLING.fullmatch(spelled)
    assert found is not None
    module = _of_file(Path(found["file"]), spelled, fresh) if found["file"] else _of_package(found["module"], spelled)
    target = _member(module, found["name"], spelled)
    if factory_arguments is not None:
        target = _made(target, spelled, factory_arguments)
    return UserFunction(spelled, target, _parameters(target, spelled))


def _of_file(path: Path, spelled: str, fresh: bool) -> ModuleType:
    path = path.expanduser().resolve()
    if path in _FILES and not fresh:
        return _FILES[path][1]
    try:
        source = path.read_bytes()
    except OSError as error:
        raise ToolkitError(f"cannot be read: {error.strerror}", where=spelled, hint=f"ls -l {path}") from error
    digest = hashlib.sha256(source).hexdigest()
    if path not in _FILES or _FILES[path][0] != digest:
        _FILES[path] = digest, _executed(path, source, spelled)
    return _FILES[path][1]


def _executed(path: Path, source: bytes, spelled: str) -> ModuleType:
    """The file as a module of a name that nobody else has. Compiled here, not by the import system: that would take an
    older compilation for this text when both were written in the same second."""
    name = f"user_reward_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}_{path.stem}"
    loader = SourceFileLoader(name, str(path))
    spec = spec_from_loader(name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look a class's module up by its name
    try:
        with _importable(path.parent), _users_faults(spelled):
            exec(loader.source_to_code(source, str(path)), module.__dict__)
    except ToolkitError:
        del sys.modules[name]
        raise
    return module


def _of_package(name: str, spelled: str) -> ModuleType:
    _make_importable(Path.cwd())
    with _users_faults(spelled):
        return importlib.import_module(name)


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """The folder is searched first meanwhile, and last ever after: a user's `utils.py` must not take the place of what a
    library imports later."""
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        _make_importable(folder)


def _make_importable(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


@contextmanager
def _users_faults(spelled: str) -> Iterator[None]:
    try:
        with prints_aside():
            yield
    except (Exception, SystemExit) as error:
        raise ToolkitError(f"cannot be loaded: {what_was_raised(error)}", where=spelled) from error


def prints_aside() -> AbstractContextManager[Any]:
    """What a user's code prints goes to standard error: standard output holds results that programs read."""
    return redirect_stdout(sys.stderr)


def what_was_raised(error: BaseException) -> str:
    """Kind, text and place of an exception in somebody else's code, on one line of limited length."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    place = f", at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    if isinstance(error, SyntaxError):
        place = f", at {Path(error.filename or '').name}:{error.lineno}"
    text = repr(error.msg if isinstance(error, SyntaxError) else str(error))[1:-1]
    return f"{type(error).__name__}: {text[:200]}{place}"


def _is_users(file: str) -> bool:
    return Path(file).parent != _HERE and not file.startswith("<frozen ")


def _member(module: ModuleType, name: str, spelled: str) -> Any:
    try:
        return reduce(getattr, name.split("."), module)
    except AttributeError as error:
        near = nearest(name, [key for key, value in vars(module).items() if callable(value)])
        hint = f"did you mean {near}?" if near else None
        raise ToolkitError(f"there is no {name} in it", where=spelled, hint=hint) from error


def _made(factory: Any, spelled: str, arguments: Mapping[str, Any]) -> Any:
    key = json.dumps([spelled, str(Path.cwd()), arguments], sort_keys=True, default=repr)
    if key not in _MADE or _MADE[key][0] is not factory:
        with _users_faults(spelled):
            _MADE[key] = factory, factory(**arguments)
    return _MADE[key][1]


def a_kind(value: object) -> str:
    """A value's type in words: `an int`, `nothing`."""
    name = type(value).__name__
    return "nothing" if value is None else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _parameters(target: Any, spelled: str) -> Mapping[str, inspect.Parameter]:
    if not callable(target):
        raise ToolkitError(f"is no function but {a_kind(target)}", where=spelled)
    try:
        return inspect.signature(target).parameters
    except (TypeError, ValueError) as error:
        raise ToolkitError("tells nobody what it takes; write a function around it", where=spelled) from error
