"""The verbs that make the files of an export and prove them: what each accepts and which step it calls."""

from __future__ import annotations

import argparse
from pathlib import Path

from toolkit.cli.lookup import export_folder, run_folder
from toolkit.cli.parsing import EXPORT_HELP, RUN_HELP, Parser, Verb, count
from toolkit.cli.pipeline import note_folder, run_stages
from toolkit.errors import ToolkitError, VerifyFailed

STAGES = ("export", "verify")


def _export_arguments(parser: Parser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help=RUN_HELP)
    parser.add_argument("--format", choices=("merged", "gguf", "all"), help="default: as the recipe says")
    parser.add_argument("--to", choices=STAGES, default="export", help="go on to the proof of what was written")
    parser.add_argument("--note-folder", metavar="FILE", help=argparse.SUPPRESS)


def _export(arguments: argparse.Namespace) -> int:
    from toolkit.export import export_run
    from toolkit.recipe import load_resolved

    run = run_folder(arguments.run)
    wanted = load_resolved(run / "recipe.json").recipe.export
    quants: list[str] = [] if arguments.format == "merged" else list(wanted.gguf)
    if arguments.format == "gguf" and not quants:
        raise ToolkitError("this run's recipe names no GGUF type", hint="toolkit export --format merged")
    if arguments.to != "export":
        words = [_no_option(run), *(["--format", arguments.format] if arguments.format else [])]
        return run_stages(words, to=arguments.to, stages=STAGES)
    # With gguf the merged folder stays where the recipe wants it: verification compares with it.
    merged = wanted.merged or arguments.format in ("merged", "all")
    note_folder(arguments.note_folder, export_run(run, merged=merged, quants=quants).folder)
    return 0


def _no_option(folder: Path) -> str:
    """As a word for another process, where a dash at the beginning would make it an option."""
    return f"./{folder}" if str(folder).startswith("-") else str(folder)


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


EXPORT = Verb("write a run as 16-bit folder and GGUF files into exports/", _export_arguments, _export)
VERIFY = Verb("show that an export answers as the trained model does", _verify_arguments, _verify)
