"""What is wrong with this machine: versions, hardware, Hub, llama.cpp, and which recipes can run. It changes nothing.

The run doctor's rules stand in `toolkit.health`; here its findings are shown, and written beside the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from toolkit import console
from toolkit.atomic import read_json, write_json
from toolkit.doctor import hardware, versions
from toolkit.doctor.abilities import LIBRARIES, Ability, what_runs
from toolkit.doctor.hardware import Hardware
from toolkit.errors import ToolkitError
from toolkit.health import Finding as RunFinding
from toolkit.health import diagnose
from toolkit.preflight import Finding
from toolkit.rundir import SCHEMA, RunDir, is_held
from toolkit.versions import build, installed

_COLOURS = {
    "ok": "green",
    "warning": "yellow",
    "failed": "red",
    "error": "red",
    "note": "green",
    "yes": "green",
    "no": "red",
}


@dataclass(frozen=True, slots=True)
class MachineReport:
    """All that was looked at, and what each recipe would need."""

    findings: tuple[Finding, ...]
    recipes: tuple[Ability, ...]

    @property
    def is_well(self) -> bool:
        """Whether nothing is missing or deviates. That a recipe is too large for a machine is no fault of it."""
        return all(finding.status == "ok" for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        """The report for a program."""
        findings, recipes = map(asdict, self.findings), map(asdict, self.recipes)
        return {"schema": SCHEMA, "well": self.is_well, "findings": list(findings), "recipes": list(recipes)}


def examine_machine(*, ask_hub: bool = False) -> MachineReport:
    """This machine. Only `ask_hub` uses the network: it asks the Hub whose token is here."""
    found = hardware.look()
    return MachineReport(tuple(_findings(found, ask_hub=ask_hub)), tuple(what_runs(found)))


def _findings(found: Hardware, *, ask_hub: bool) -> Iterator[Finding]:
    yield from hardware.findings(found)
    yield from versions.findings(versions.tested_set(gpu=bool(found.gpus)), gpu=found.usable_gpu is not None)
    for library in LIBRARIES:
        if installed(library) is None:
            yield Finding("training", library, "not installed", "failed", versions.MAKE_IT_SO)
    yield _login()
    if ask_hub:
        yield _account()
    yield from _llama_cpp()


def _login() -> Finding:
    """Whether there is a token. The token itself is never shown."""
    try:
        from huggingface_hub import get_token
    except ImportError:
        return Finding("hub", "login", "huggingface_hub is not installed", "warning", versions.MAKE_IT_SO)
    there = get_token() is not None
    hint = None if there else "only for gated models and for pushing: hf auth login, or set HF_TOKEN"
    return Finding("hub", "login", "a token is here" if there else "no token", "ok", hint)


def _account() -> Finding:
    from toolkit.hubapi import asking, client

    try:
        name = asking(lambda: client().whoami()["name"], where="the Hub", retry="toolkit doctor --hub")
        return Finding("hub", "account", str(name))
    except ToolkitError as error:
        return Finding("hub", "account", error.message, "warning", error.hint)


def _llama_cpp() -> Iterator[Finding]:
    from toolkit.llamacpp import versions as converter_versions
    from toolkit.llamacpp.library import library

    try:
        library()
        yield Finding("llama.cpp", "library", build("llama-cpp-python"))
    except (ToolkitError, OSError, RuntimeError) as error:
        hint = getattr(error, "hint", None) or versions.MAKE_IT_SO
        yield Finding("llama.cpp", "library", str(getattr(error, "message", error)), "failed", hint)
    try:
        made_with = converter_versions()
        yield Finding("llama.cpp", "converter, of commit", made_with["llama.cpp"])
        yield Finding("llama.cpp", "gguf", made_with["gguf"])
    except ToolkitError as error:
        yield Finding("llama.cpp", "converter", error.message, "failed", error.hint)


def show_machine(report: MachineReport) -> None:
    """Two tables: what is here, and what it can run."""
    rows = [
        (
            finding.part,
            console.untrusted(finding.what),
            console.untrusted(finding.value),
            _coloured(finding.status),
            console.untrusted(finding.hint or ""),
        )
        for finding in report.findings
    ]
    console.table("this machine", ("part", "what", "found", "", "way out"), rows)
    able = [(one.recipe, _coloured(one.can_run), console.untrusted(one.why)) for one in report.recipes]
    console.table("what it can run", ("recipe", "", "why, or what it still needs"), able)


def examine_run(folder: Path) -> list[RunFinding]:
    """The findings about a run, which are also written beside it, for the report."""
    run = RunDir(folder)
    findings = diagnose(run)
    write_json(run.doctor, run_json(folder, findings))
    return findings


def run_json(folder: Path, findings: Sequence[RunFinding]) -> dict[str, Any]:
    """The findings for a program."""
    alarms = sum(finding.is_alarm for finding in findings)
    return {
        "schema": SCHEMA,
        "run": folder.resolve().name,
        "alarms": alarms,
        "findings": [one.as_json() for one in findings],
    }


def show_run(folder: Path, findings: Sequence[RunFinding]) -> None:
    """Each finding in a few lines: what, how much against which threshold, what to try, where to read."""
    _say_killed(RunDir(folder))
    for finding in findings:
        console.say(f"{_coloured(finding.severity)} [bold]{finding.rule}[/]: {console.untrusted(finding.message)}")
        figures = f"{finding.value:.3g}; a finding is: {finding.means}"
        console.say(f"  {console.untrusted(finding.signal)}: {figures}")
        if finding.knob:
            console.say(f"  try: [green]{console.untrusted(finding.knob)}[/]")
        console.say(f"  more: {finding.read_more}, docs/doctor.md")
    alarms = sum(finding.is_alarm for finding in findings)
    verdict = (
        f"[yellow]{alarms} finding{'s' if alarms > 1 else ''}[/]" if alarms else "[green]nothing wrong was found[/]"
    )
    console.say(f"{console.untrusted(folder)}: {verdict}")


def _say_killed(run: RunDir) -> None:
    """A process that was killed cannot say why. The usual reason is the system's want of memory, so the estimate stands beside."""
    if not run.state.is_file() or read_json(run.state).get("state") != "running" or is_held(run):
        return
    known = (read_json(run.manifest) if run.manifest.is_file() else {}).get("preflight", {}).get("memory")
    figures = f" (estimated {known['peak_gib']:.1f} of {known['memory_gib']:g} GiB)" if known else ""
    console.warn(
        f"its process was killed; by the system for want of memory{figures}? `dmesg` or `journalctl -k` says so. "
        f"What to change: toolkit check {console.untrusted(run.recipe)}; "
        f"to go on: toolkit train --resume {console.untrusted(run.path)}"
    )


def _coloured(word: str) -> str:
    return f"[{_COLOURS[word]}]{word}[/]"
