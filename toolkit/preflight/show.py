"""What a check found, and what a reward lint found, on the terminal. It judges nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from toolkit import console

if TYPE_CHECKING:
    from toolkit.preflight.finding import Report
    from toolkit.rewards.lint import LintReport

_COLOURS = {"ok": "green", "warning": "yellow", "failed": "red"}
_VERDICTS = {"fits": "green", "tight": "yellow", "too large": "red"}


def show(report: Report) -> None:
    """The report as a table on the terminal, the memory term by term, and one line that says what it comes to."""
    rows = [
        (
            finding.part,
            console.untrusted(finding.what),
            console.untrusted(finding.value),
            f"[{_COLOURS[finding.status]}]{finding.status}[/]",
            console.untrusted(finding.hint or ""),
        )
        for finding in report.findings
    ]
    console.table(console.untrusted(report.recipe), ("part", "what", "found", "", "way out"), rows)
    if "memory" in report.details:
        _show_memory(report.details["memory"])
    failed = sum(finding.status == "failed" for finding in report.findings)
    warnings = sum(finding.status == "warning" for finding in report.findings)
    also = f", {warnings} warning{'s' * (warnings > 1)}" if warnings else ""
    console.say(
        f"[green]ready to train[/]{also}" if report.passed else f"[red]{failed} of these stop a training[/]{also}"
    )


def _show_memory(memory: dict[str, Any]) -> None:
    """Terms of this machine, what to change first, and the cards."""
    terms = [
        (term["phase"], term["term"], f"{term['gib']:.2f}", console.untrusted(term["how"])) for term in memory["terms"]
    ]
    title = f"memory on this machine, GiB: what is held always, and the largest of the rest = {memory['peak_gib']:.1f}"
    console.table(title, ("held", "what", "GiB", "how"), terms)
    if memory["change_first"]:
        less = [
            (one["key"], str(one["value"]).lower(), f"{one['saves_gib']:.1f}", f"{one['then_gib']:.1f}")
            for one in memory["change_first"]
        ]
        console.table("what to change first", ("key", "value", "saves", "peak then"), less)
    cards = [
        (
            card["machine"],
            f"{card['memory_gib']:g}",
            f"{card['peak_gib']:.1f}",
            card["batch_rows"],
            _coloured(card["verdict"]),
        )
        for card in memory["cards"]
    ]
    console.table("the same recipe on common GPUs", ("card", "GiB", "peak", "completions a pass", ""), cards)


def _coloured(verdict: str) -> str:
    return f"[{_VERDICTS[verdict]}]{verdict}[/]"


def show_lint(report: LintReport) -> None:
    """What each reward pays for texts that are no answer, then the problems."""
    names = list(report.probes[0].pays) if report.probes else []
    rows = [(probe.name, *map(_rounded, (*probe.pays.values(), probe.total))) for probe in report.probes]
    console.table("what is paid for texts that are no answer", ("text", *names, "total"), rows)
    console.say(f"{report.rows} rows tried; totals from {report.lowest_total:g} to {report.highest_total:g}")
    console.say(f"{report.correctness_share:.0%} of the highest total is for the right answer")
    for name in report.not_tried:
        console.say(f"not tried, since it asks a model: {name}")
    for problem in report.problems:
        colour = "red" if problem.level == "error" else "yellow"
        console.say(f"[{colour}]{problem.level}[/]: {console.untrusted(problem.message)}")
    count = len(report.errors)
    console.say("[green]no errors[/]" if report.ok else f"[red]{count} error{'s' * (count > 1)}[/]")


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
