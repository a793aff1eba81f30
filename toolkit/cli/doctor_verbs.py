"""The verb that says what is wrong with a run or with this machine: what it accepts and which step it calls."""

from __future__ import annotations

import argparse

from toolkit import console
from toolkit.cli.lookup import begun_run
from toolkit.cli.parsing import Parser, Verb
from toolkit.errors import ToolkitError


def _doctor_arguments(parser: Parser) -> None:
    what = "a run's folder or id, or a recipe for the run that began last; without it this machine is examined"
    parser.add_argument("run", nargs="?", metavar="RUN", help=what)
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument("--hub", action="store_true", help="machine: also ask the Hub whose token is here")


def _doctor(arguments: argparse.Namespace) -> int:
    """0: nothing wrong; 1: findings."""
    if arguments.run is None:
        return _machine(arguments)
    if arguments.hub:
        raise ToolkitError("--hub is about this machine, not about a run", hint="toolkit doctor --hub")
    run = begun_run(arguments.run)
    from toolkit.doctor import examine_run, run_json, show_run

    findings = examine_run(run)
    if arguments.json:
        console.raw_json(run_json(run, findings), indent=2)
    else:
        show_run(run, findings)
    return int(any(finding.is_alarm for finding in findings))


def _machine(arguments: argparse.Namespace) -> int:
    from toolkit.doctor import examine_machine, show_machine

    report = examine_machine(ask_hub=arguments.hub)
    if arguments.json:
        console.raw_json(report.as_json(), indent=2)
    else:
        show_machine(report)
    return 0 if report.is_well else 1


DOCTOR = Verb("say what is wrong with a run; without one, with this machine", _doctor_arguments, _doctor)
