"""The verbs that show what happened: what each accepts and which step it calls."""

from __future__ import annotations

import argparse
from pathlib import Path

from toolkit import console
from toolkit.cli.lookup import begun_run, run_folder
from toolkit.cli.parsing import RUN_HELP, Parser, Verb
from toolkit.errors import ToolkitError, nearest

Arguments = argparse.Namespace
_TO_HELP = "write the page there; default: {}"


def _report_arguments(parser: Parser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help=RUN_HELP)
    parser.add_argument("--to", type=Path, metavar="FILE", help=_TO_HELP.format("report.html in the run's folder"))


def _report(arguments: Arguments) -> int:
    run = begun_run(arguments.run) if arguments.run else run_folder(None)
    from toolkit.report import write_report

    console.say(f"report: {console.untrusted(write_report(run, to=arguments.to))}")
    return 0


def _compare_arguments(parser: Parser) -> None:
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="two runs or more: folders, ids, or recipes for their newest"
    )
    parser.add_argument("--to", type=Path, metavar="FILE", help=_TO_HELP.format("reports/compare.html"))


def _compare(arguments: Arguments) -> int:
    runs = [begun_run(word) for word in arguments.runs]
    from toolkit.report.comparison import write_comparison

    console.say(f"comparison: {console.untrusted(write_comparison(runs, to=arguments.to))}")
    return 0


def _runs_arguments(parser: Parser) -> None:
    parser.add_argument("action", nargs="?", default="list", metavar="list|clean", help="default: list")
    parser.add_argument("--json", action="store_true", help="list: print it as JSON")
    parser.add_argument("--yes", action="store_true", help="clean: remove what it names; without it nothing is removed")
    failed = "clean: also failed and killed runs that `toolkit train --resume` could continue"
    parser.add_argument("--failed", action="store_true", help=failed)


def _runs(arguments: Arguments) -> int:
    actions = {"list": _runs_list, "clean": _runs_clean}
    if arguments.action not in actions:
        near = nearest(arguments.action, actions)
        hint = f"did you mean toolkit runs {near}?" if near else "toolkit runs list|clean"
        raise ToolkitError(f"toolkit runs knows no {arguments.action[:60]}", hint=hint)
    return actions[arguments.action](arguments)


def _runs_list(arguments: Arguments) -> int:
    from toolkit.report.runs import list_runs, runs_json, show_runs

    if arguments.yes or arguments.failed:
        raise ToolkitError("--yes and --failed are for clean", hint="toolkit runs clean")
    lines = list_runs()
    if arguments.json:
        console.raw_json(runs_json(lines), indent=2)
    else:
        show_runs(lines)
    return 0


def _runs_clean(arguments: Arguments) -> int:
    from toolkit.report.runs import clean, removable, show_removals

    removals = removable(failed=arguments.failed)
    if arguments.yes:
        clean(removals)
    command = f"toolkit runs clean{' --failed' if arguments.failed else ''} --yes"
    show_removals(removals, removed=arguments.yes, command=command)
    return 0


REPORT = Verb("write a run's report: one HTML file that needs nothing else", _report_arguments, _report)
COMPARE = Verb("write one page about several runs: keys, curves, paired evaluation", _compare_arguments, _compare)
RUNS = Verb("list the runs, or remove what is not needed any more (clean)", _runs_arguments, _runs)
