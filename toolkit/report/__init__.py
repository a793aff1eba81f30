"""The report step: a run's records become one HTML file that needs nothing else. It runs no model and changes no record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from toolkit.report.completions import answers_table, training_table
from toolkit.report.document import write_document
from toolkit.report.figures import evaluation_figures, training_figures
from toolkit.report.records import Records, read_run
from toolkit.report.summary import certificate, cost, findings, head, recipe_table, stages, verdict
from toolkit.rundir import RunDir

SCHEMA = 1


def write_report(path: Path, *, to: Path | None = None) -> Path:
    """Write the run's report, by default as `report.html` into its folder; the file's path."""
    return write_document(to or RunDir(path).report, report_data(read_run(path)))


def report_data(records: Records) -> dict[str, Any]:
    """All that the page shows."""
    training, answers = training_table(records), answers_table(records)
    return {
        "schema": SCHEMA,
        "title": f"{records.name}: report",
        "graded": records.graded,
        "head": head(records),
        "verdict": verdict(records),
        "stages": stages(records),
        "cost": cost(records),
        "findings": findings(records),
        "certificate": certificate(records),
        "figures": [*training_figures(records, training), *evaluation_figures(records, answers)],
        "training": training,
        "answers": answers,
        "recipe": recipe_table([records]),
    }


__all__ = ["write_report"]
