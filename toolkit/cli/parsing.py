"""Words of the command line -> options and a recipe. It calls no step; folders are found in `lookup`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from toolkit import console
from toolkit.errors import ToolkitError, nearest

if TYPE_CHECKING:
    from toolkit.recipe import Loaded

RUN_HELP = "a run's folder or id, or a recipe for its newest run; default: the newest of all"
EXPORT_HELP = "an export's folder or id, or a recipe for its newest export; default: the newest of all"
FILE_HELP = "a GGUF file of the export, by name or type; default: the one its certificate recommends, else q8_0"
_RECIPE_HELP = "a name from `toolkit recipes` or a path to a YAML file; then any number of key=value overrides"


class Parser(argparse.ArgumentParser):
    """Argparse whose errors are ours: one panel, exit code 2, and the nearest option."""

    def error(self, message: str) -> NoReturn:
        raise ToolkitError(message, hint=f"{self.prog} --help")

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Options may stand anywhere among the words."""
        arguments, unknown = self.parse_known_intermixed_args(list(words))
        if unknown:
            near = nearest(unknown[0].split("=")[0], self._option_string_actions)
            hint = f"did you mean {near}?" if near else f"{self.prog} --help"
            raise ToolkitError(f"unknown option {unknown[0][:60]}", hint=hint)
        return arguments


@dataclass(frozen=True, slots=True)
class Verb:
    """One command: its line in the help, its arguments, and what it calls. `run` returns the exit code."""

    summary: str
    add_arguments: Callable[[Parser], object]
    run: Callable[[argparse.Namespace], int]


def count(word: str) -> int:
    """A word as a number from 1 on."""
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"a number from 1 on is needed, not {word[:20]}")
    return int(word)


def recipe_words(parser: Parser, *more: str) -> None:
    parser.add_argument("words", nargs="*", metavar=" ".join(["RECIPE", *more]), help=_RECIPE_HELP)


def with_recipe(words: Sequence[str]) -> list[str]:
    """The words of a command with its recipe in front. Without one it is the default, which is said."""
    from toolkit.recipe import DEFAULT_RECIPE

    if words and ("=" not in words[0] or os.path.isfile(words[0])):
        return list(words)
    console.err.print(f"recipe: {DEFAULT_RECIPE} (the default)")
    return [DEFAULT_RECIPE, *words]


def load(words: Sequence[str]) -> Loaded:
    """The recipe that the words of a command mean."""
    from toolkit.recipe import load_recipe

    name, *overrides = with_recipe(words)
    return load_recipe(name, overrides)
