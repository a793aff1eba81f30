"""What can be known before the first expensive minute: a recipe's data, rewards and plan, this machine, disks, Hub, memory, time.

It loads no model. `check` looks at everything; `require_ready` is the start of a training, which stops on what would fail.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from toolkit import console
from toolkit.errors import ToolkitError
from toolkit.preflight.data import chat_template, data, prompt_text, prompt_tokens
from toolkit.preflight.disk import disk_findings, needs, path_findings, writable_findings
from toolkit.preflight.finding import Finding, Report, Status
from toolkit.preflight.hub import HubState, dataset_of, hub_findings, push_findings, without_waiting
from toolkit.preflight.installed import version_findings, vllm_finding
from toolkit.preflight.plan import planned
from toolkit.preflight.rewards import bound_rewards, lint_rewards, linted, ready, require_sound_rewards
from toolkit.preflight.show import show, show_lint
from toolkit.preflight.tools import llama_cpp, serve_port, tracker_findings
from toolkit.preflight.vllm_server import server_findings

if TYPE_CHECKING:
    from toolkit.estimate import Shape
    from toolkit.estimate.disk import Place
    from toolkit.recipe import Loaded, Recipe

ANYWAY = "TOOLKIT_TRAIN_ANYWAY"
"""Set to 1, what would stop a training at its start is a warning: estimates may be wrong, and a disk may be emptied meanwhile."""
EXPORTING = ("export", "verify")
Details = dict[str, Any]


def check(loaded: Loaded) -> Report:
    """Look at everything. Data that cannot be read is a finding, and what needs it is left out."""
    recipe = loaded.recipe
    written = sum(source != "default" for source in loaded.provenance.values())
    state, details = HubState(), Details()
    findings = [
        Finding("recipe", "keys set", written),
        Finding("recipe", "keys left at their default", len(loaded.values) - written),
        *tracker_findings(recipe),
        *version_findings(recipe),
        *server_findings(recipe, details),
        *hub_findings(recipe, state),
        *push_findings(recipe, state),
    ]
    with without_waiting(state):
        rows, heldout = _rows(recipe)
        shape, unknown = _shape(recipe, state)
        findings += [
            *rows,
            *_places(loaded.name, recipe, shape, state, soon=False),
            *serve_port(),
            *_machine(recipe, shape, details, heldout=heldout, cards=True),
            *([] if shape else [unknown]),
        ]
    return Report(loaded.name, tuple(findings), details)


def _rows(recipe: Recipe) -> tuple[list[Finding], int]:
    """What the data and the rewards say, and how many held-out rows there are."""
    try:
        train, heldout = recipe.task.rows("train"), recipe.task.rows("heldout")
    except ToolkitError as error:
        return [Finding("data", error.where or "rows", error.message, "failed", error.hint)], recipe.eval.rows
    findings = [
        *data(recipe, train, heldout),
        *ready(recipe, train),
        *linted(lint_rewards(recipe, [*train, *heldout]), graded=recipe.task.graded),
        *planned(recipe, train, heldout),
    ]
    return findings, len(heldout)


def _shape(recipe: Recipe, state: HubState) -> tuple[Shape | None, Finding]:
    """The base model's shape; or None, and why nothing is estimated."""
    from toolkit.estimate import shape_of

    try:
        shape = shape_of(recipe.model, ask_hub=bool(state.reachable))
    except ToolkitError as error:
        what = f"{error.where or recipe.model.source}: {error.message}"
        return None, Finding("memory", "not estimated", what, "warning", error.hint)
    return shape, Finding("memory", "from", shape.origin)


def _places(name: str, recipe: Recipe, shape: Shape | None, state: HubState, *, soon: bool) -> Iterator[Finding]:
    """Disks and programs. `soon`: whether the export follows at once, so that what it lacks stops the training."""
    if shape is not None:
        wanted = needs(recipe, shape, fetch_bytes=state.fetch_bytes)
        now: list[Place] = ["hub", "cache", "runs"]
        yield from disk_findings(wanted, now=frozenset([*now, "exports"] if soon else now))
    places: list[Place] = ["runs", "exports", "cache"]
    yield from writable_findings([*places, "hub"] if state.fetch_bytes else places)
    yield from path_findings(name)
    yield from llama_cpp(recipe, soon=soon)


def _machine(recipe: Recipe, shape: Shape | None, details: Details, *, heldout: int, cards: bool) -> Iterator[Finding]:
    """Device, a processor's vLLM, memory, time; this loads torch."""
    from toolkit.estimate.disk import export_needs
    from toolkit.preflight.machine import machine_findings, memory_findings
    from toolkit.preflight.timing import time_findings
    from toolkit.preflight.vllm_server import way_findings

    try:
        from toolkit.engine.machine import this_machine

        machine = this_machine()
    except ImportError as error:
        yield Finding("machine", "device", f"not known: {error.name} is not installed", "failed", "make setup")
        return
    found = list(machine_findings(recipe, machine))
    details["machine"] = {finding.what: finding.value for finding in found}
    yield from found
    yield from way_findings(recipe, machine)
    if machine.device == "cpu":
        yield vllm_finding()
    if shape is None:
        return
    memory, details["memory"] = memory_findings(recipe, shape, machine, cards=cards)
    size = sum(need.size for need in export_needs(recipe, shape))
    times, details["time"] = time_findings(recipe, machine, heldout=heldout, export_bytes=size)
    yield from [*memory, *times]


def require_ready(loaded: Loaded, *, then: str = "train") -> Details:
    """The start of a training: ToolkitError where the check finds what would fail in it, or in the stages up to `then` that
    follow at once. Versions, permissions, data and rewards have their own errors there.

    Returns what the machine made of the recipe, and the figures of memory and time, for the run's manifest.
    """
    recipe, state, details = loaded.recipe, HubState(), Details()
    _stop_on(server_findings(recipe, details), loaded.name)
    hub = list(hub_findings(recipe, state))
    with without_waiting(state):
        shape, _ = _shape(recipe, state)
        _stop_on([*hub, *_places(loaded.name, recipe, shape, state, soon=then in EXPORTING)], loaded.name)
        from toolkit.engine.load import import_unsloth

        import_unsloth(standby=recipe.model.standby)  # before torch, which says what machine this is
        _stop_on(_machine(recipe, shape, details, heldout=recipe.eval.rows, cards=False), loaded.name)
    return details


def _stop_on(findings: Iterable[Finding], name: str) -> None:
    """Warnings are said; what stops a training is an error."""
    told = list(findings)
    failed = [finding for finding in told if finding.status == "failed"]
    anyway = os.environ.get(ANYWAY) == "1"
    for finding in told:
        if finding.status == "warning" or (finding in failed and anyway):
            console.warn(console.untrusted(_line(finding)))
    if failed and not anyway:
        hint = f"toolkit check {name} shows everything; {ANYWAY}=1 trains nevertheless"
        raise ToolkitError("\n".join(map(_line, failed)), where=name, hint=hint)


def _line(finding: Finding) -> str:
    way_out = f" ({finding.hint})" if finding.hint else ""
    return f"{finding.part}: {finding.what}: {finding.value}{way_out}"


__all__ = [
    "Finding",
    "Report",
    "Status",
    "bound_rewards",
    "chat_template",
    "check",
    "dataset_of",
    "lint_rewards",
    "prompt_text",
    "prompt_tokens",
    "require_ready",
    "require_sound_rewards",
    "show",
    "show_lint",
]
