"""How long the recipe will take here: from the records of earlier runs on this machine, or, where there are none, not known."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from toolkit.estimate.pace import Range, evaluation_seconds, files_seconds, recorded_pace, training_seconds
from toolkit.preflight.finding import Finding
from toolkit.preflight.plan import answers

if TYPE_CHECKING:
    from toolkit.engine.machine import Machine
    from toolkit.recipe import Recipe


def time_findings(
    recipe: Recipe, machine: Machine, *, heldout: int, export_bytes: int
) -> tuple[list[Finding], dict[str, Any]]:
    """One line a stage with its range, and the same for programs."""
    stages, why = {}, "no earlier run of this base model on this machine"
    pace = recorded_pace(recipe, machine)
    if pace is not None:
        why = f"from {len(pace.seconds_per_token)} steps of {len(pace.runs)} earlier run{'s' * (len(pace.runs) > 1)}"
        stages = {
            "train": training_seconds(recipe, pace),
            "eval": evaluation_seconds(recipe, pace, answers(recipe, heldout)),
        }
    stages |= files_seconds(export_bytes)
    findings = [Finding("time", stage, said(span)) for stage, span in stages.items()]
    hint = None if pace else "toolkit check RECIPE --probe 4 measures it"
    findings.insert(0, Finding("time", "where it is from", why, "ok", hint))
    return findings, {"source": why, "stages_s": {stage: asdict(span) for stage, span in stages.items()}}


def said(span: Range) -> str:
    """Likely, and from where to where."""
    return f"{clock(span.likely)} ({clock(span.low)} to {clock(span.high)})"


def clock(seconds: float) -> str:
    """Hours, minutes, seconds."""
    return str(timedelta(seconds=round(seconds)))
