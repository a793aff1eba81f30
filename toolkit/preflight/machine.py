"""What this machine is, what of a recipe it has to change, and whether the training fits its memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.estimate import Estimate, Shape, changes, estimate, on_cards
from toolkit.preflight.finding import Finding, Status

if TYPE_CHECKING:
    from toolkit.engine.machine import Machine
    from toolkit.recipe import Recipe

GIB = 2**30


def machine_findings(recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """Device, arithmetic, and each value that the machine replaces."""
    from toolkit.engine.machine import resolve

    setting = resolve(recipe, machine)
    if machine.device == "cuda":
        major, minor = machine.capability
        yield Finding("machine", "device", f"{machine.name}, compute capability {major}.{minor}")
    else:
        yield Finding("machine", "device", f"processor {machine.name}, {machine.threads} threads, no GPU")
    native = "native" if machine.bf16 else "not native here"
    yield Finding("machine", "arithmetic", f"{setting.dtype}; bfloat16 is {native}")
    if setting.dtype == "float16" and "gemma" in recipe.model.source.casefold():
        value = "weights in float16, activations in float32: Gemma overflows float16, and Unsloth keeps it wide"
        yield Finding(
            "machine", "Gemma without bfloat16", value, "ok", "it takes more memory and time than on a newer GPU"
        )
    for change in setting.changes:
        wished = change.key == "model.fast_inference" and change.asked is True
        yield Finding(
            "machine",
            change.key,
            f"{change.used} instead of {change.asked}: {change.why}",
            "warning" if wished else "ok",
        )


def memory_findings(
    recipe: Recipe, shape: Shape, machine: Machine, *, cards: bool
) -> tuple[list[Finding], dict[str, Any]]:
    """Whether it fits the whole memory, and what is free now; and the figures of the terms, with `cards` for those as well."""
    found = estimate(recipe, shape, machine)
    less = changes(recipe, shape, found) if found.verdict != "fits" else []
    status: Status = {"fits": "ok", "tight": "warning", "too large": "failed"}[found.verdict]  # type: ignore[assignment]
    hint = "; ".join(map(str, less)) or ("a smaller model" if status != "ok" else None)
    value = f"{found.gib:.1f} GiB ({found.low:.1f} to {found.high:.1f}) of {machine.memory_gib:g}"
    findings = [Finding("memory", "peak of the training, estimated", value, status, hint)]
    free = free_gib(machine)
    if free is not None:
        findings.append(_free(free, found))
    return findings, _figures(found, free, less) | (
        {"cards": [card.as_json() for card in on_cards(recipe, shape)]} if cards else {}
    )


def _free(free: float, found: Estimate) -> Finding:
    enough = free >= found.high
    hint = None if enough else "end what else holds memory, or wait for it; see the estimate for what to change"
    return Finding("memory", "free now", f"{free:.1f} GiB", "ok" if enough else "warning", hint)


def _figures(found: Estimate, free: float | None, less: list[Any]) -> dict[str, Any]:
    return {
        **found.as_json(),
        "free_gib": None if free is None else round(free, 2),
        "terms": [
            {"phase": term.phase, "term": term.name, "gib": round(term.gib, 3), "how": term.how} for term in found.terms
        ],
        "change_first": [
            {
                "key": each.key,
                "value": each.value,
                "saves_gib": round(each.saves_gib, 3),
                "then_gib": round(each.then_gib, 3),
            }
            for each in less
        ],
    }


def free_gib(machine: Machine) -> float | None:
    """Memory that a new process can have now: of the GPU, or of this machine or container."""
    if machine.device == "cuda":
        import torch

        return torch.cuda.mem_get_info()[0] / GIB
    import psutil

    free = psutil.virtual_memory().available
    return min(free, _container_free() or free) / GIB


def _container_free() -> int | None:
    """Where a container has a limit (cgroup v2), what is left of it; file pages that can be dropped count as free."""
    folder = Path("/sys/fs/cgroup")
    try:
        limit, used = (folder / "memory.max").read_text().strip(), int((folder / "memory.current").read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    return int(limit) - used + int(stat.get("inactive_file", 0)) if limit.isdecimal() else None
