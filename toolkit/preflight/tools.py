"""The programs beside the training: the tracker, llama.cpp's library and converter, and the port of `toolkit serve`."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING

from toolkit.engine.trackers import require_tracker
from toolkit.errors import ToolkitError
from toolkit.llamacpp import USUAL_PORT
from toolkit.preflight.finding import Finding, Status

if TYPE_CHECKING:
    from toolkit.recipe import Recipe


def tracker_findings(recipe: Recipe) -> Iterator[Finding]:
    """Whether the tracker that the recipe names is installed."""
    if recipe.report_to != "none":
        try:
            require_tracker(recipe.report_to)
            yield Finding("recipe", "report_to", recipe.report_to)
        except ToolkitError as error:
            yield Finding("recipe", "report_to", error.message, "failed", error.hint)


def llama_cpp(recipe: Recipe, *, soon: bool) -> Iterator[Finding]:
    """What the export needs: a training without it is no loss, so it stops one only where the export follows at once (`soon`)."""
    from toolkit.llamacpp import converter_dir, versions
    from toolkit.llamacpp.library import library

    if not (recipe.export.gguf or recipe.export.lora_gguf):
        return
    missing: Status = "failed" if soon else "warning"
    for what, needed in (("library", library), ("converter", converter_dir)):
        try:
            needed()
        except (ToolkitError, OSError, RuntimeError) as error:
            way_out = getattr(error, "hint", None) or "make setup"
            yield Finding("llama.cpp", what, str(getattr(error, "message", error)), missing, way_out)
            return
    yield Finding("llama.cpp", "library and converter", versions()["llama-cpp-python"])


def serve_port() -> Iterator[Finding]:
    """Whether the usual port of `toolkit serve` is free; it is asked for long after the training, so that is no fault."""
    with socket.socket() as ours:
        ours.settimeout(0.5)
        taken = ours.connect_ex(("127.0.0.1", USUAL_PORT)) == 0
    hint = f"toolkit serve --port {USUAL_PORT + 1}" if taken else None
    yield Finding("ports", f"{USUAL_PORT}, of toolkit serve", "in use" if taken else "free", "ok", hint)
