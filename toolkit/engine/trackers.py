"""Trackers that GRPO's metrics can go to besides the run's own files: what the trainer is told. They are not ours.

trackio keeps its figures on this machine, in its own cache folder, and TensorBoard in the run's folder; wandb sends them to a
server, as whoever asks for it wants.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

from toolkit.errors import ToolkitError

PROJECT = "grpo-toolkit"
NEEDS = {"trackio": ("trackio",), "tensorboard": ("tensorboard", "tensorboardX"), "wandb": ("wandb",)}
"""Packages of which one must be there."""
INSTALL = {"trackio": "--no-deps --requirement requirements/track.txt", "tensorboard": "tensorboard", "wandb": "wandb"}
"""What pip installs. trackio by its pins: without them pip would put other versions of some of the tested set in their place."""


def require_tracker(report_to: str) -> None:
    """A ToolkitError with the command that installs it, where the tracker of the recipe is not installed."""
    packages = NEEDS.get(report_to, ())
    if packages and not any(importlib.util.find_spec(name) for name in packages):
        hint = f".venv/bin/python -m pip install {INSTALL[report_to]}"
        raise ToolkitError(f"report_to: the package {packages[0]} is not installed", where=report_to, hint=hint)


def tracker_arguments(report_to: str, run: str) -> dict[str, Any]:
    """For `trl.GRPOConfig`. trackio would else copy a finished run to the Hub where a Space is configured."""
    named = {"run_name": run, "project": PROJECT, "trackio_static_space_id": False}
    return {"report_to": report_to} | ({} if report_to == "none" else named)


def prepare_tracker(report_to: str, run: Path) -> None:
    """Names that the trainer's callbacks read from the environment only. What the user has set stays."""
    if report_to == "tensorboard":
        os.environ.setdefault("TENSORBOARD_LOGGING_DIR", str(run / "tensorboard"))
    if report_to == "wandb":
        os.environ.setdefault("WANDB_PROJECT", PROJECT)
