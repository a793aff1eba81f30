"""The verbs that make the files of an export and prove them: what each accepts and which step it calls."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.cli.lookup import export_folder, run_folder
from toolkit.cli.parsing import EXPORT_HELP, RUN_HELP, Parser, Verb, count
from toolkit.cli.pipeline import as_word, note_folder, run_stages
from toolkit.errors import ToolkitError, VerifyFailed

if TYPE_CHECKING:
    from toolkit.recipe import Recipe

STAGES = ("export", "verify")


def _export_arguments(parser: Parser) -> None:
    words = f"{RUN_HELP}; then any number of export.KEY=VALUE overrides"
    parser.add_argument("words", nargs="*", metavar="RUN", help=words)
    parser.add_argument("--format", choices=("merged", "gguf", "all"), help="default: as the recipe says")
    parser.add_argument("--to", choices=STAGES, default="export", help="go on to the proof of what was written")
    parser.add_argument("--note-folder", metavar="FILE", help=argparse.SUPPRESS)


def _export(arguments: argparse.Namespace) -> int:
    from toolkit.export import export_run

    named, overrides = _run_and_overrides(arguments.words)
    run = run_folder(named)
    recipe = _recipe(run, overrides)
    wanted = recipe.export
    quants: list[str] = [] if arguments.format == "merged" else list(wanted.gguf)
    if arguments.format == "gguf" and not quants:
        raise ToolkitError("this run's recipe names no GGUF type", hint="toolkit export --format merged")
    if arguments.to != "export":
        words = [as_word(run), *overrides, *(["--format", arguments.format] if arguments.format else [])]
        return run_stages(words, to=arguments.to, stages=STAGES)
    # With gguf the merged folder stays where the recipe wants it: verification compares with it.
    merged = wanted.merged or arguments.format in ("merged", "all")
    note_folder(arguments.note_folder, export_run(run, recipe=recipe, merged=merged, quants=quants).folder)
    return 0


def _run_and_overrides(words: Sequence[str]) -> tuple[str | None, Sequence[str]]:
    named = bool(words) and ("=" not in words[0] or os.path.isdir(words[0]))
    return (words[0], words[1:]) if named else (None, words)


def _recipe(run: Path, overrides: Sequence[str]) -> Recipe:
    """The run's, which training is done with: what is left to choose are the files."""
    from toolkit.recipe import load_recipe, load_resolved

    if odd := next((word for word in overrides if not word.startswith("export.")), None):
        what = f"{odd[:60]}: of a trained run only the export section can be another"
        raise ToolkitError(what, hint="toolkit export RUN export.merged_dtype=float32, for example")
    file = run / "recipe.json"
    return (load_recipe(file.absolute(), overrides) if overrides else load_resolved(file)).recipe


def _verify_arguments(parser: Parser) -> None:
    parser.add_argument("export", nargs="?", metavar="EXPORT", help=EXPORT_HELP)
    what = "held-out problems to ask; default: 16 to 64, by the model's size"
    parser.add_argument("--problems", type=count, metavar="N", help=what)


def _verify(arguments: argparse.Namespace) -> int:
    from toolkit.verify import verify_export

    export = export_folder(arguments.export)
    if not verify_export(export, problems=arguments.problems).passed:
        raise VerifyFailed("the shipped files do not answer as the trained model did", where=str(export))
    return 0


EXPORT = Verb("write a run as a merged folder and GGUF files into exports/", _export_arguments, _export)
VERIFY = Verb("show that an export answers as the trained model does", _verify_arguments, _verify)
