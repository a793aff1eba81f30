"""Which of the recipes this machine can run, and why not. Estimates from the recipes; no model is loaded, no data read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from toolkit.doctor.hardware import Hardware
from toolkit.engine.machine import Machine
from toolkit.engine.source import is_hub_name
from toolkit.errors import ToolkitError
from toolkit.estimate import Estimate, estimate, shape_of
from toolkit.preflight import dataset_of
from toolkit.preflight.installed import has_vllm
from toolkit.recipe import list_recipes, load_recipe
from toolkit.versions import installed

if TYPE_CHECKING:
    from toolkit.recipe import Recipe

LIBRARIES = ("torch", "unsloth", "trl", "transformers", "peft", "datasets")


@dataclass(frozen=True, slots=True)
class Ability:
    """Whether a recipe runs here. `why`: what is missing, else what it still needs."""

    recipe: str
    can_run: Literal["yes", "no"]
    why: str


def what_runs(hardware: Hardware) -> list[Ability]:
    """Every recipe that is shipped or lies here."""
    return [_ability(entry.name, hardware) for entry in list_recipes()]


def _ability(name: str, hardware: Hardware) -> Ability:
    try:
        recipe = load_recipe(name).recipe
    except ToolkitError as error:
        return Ability(name, "no", f"the recipe has faults: toolkit check {name} ({error.message})")
    if missing := list(_missing(recipe, hardware)):
        return Ability(name, "no", "; ".join(missing))
    return Ability(name, "yes", "; ".join(_needs(recipe)))


def _missing(recipe: Recipe, hardware: Hardware) -> Iterator[str]:
    if absent := [name for name in LIBRARIES if installed(name) is None]:
        yield f"not installed: {', '.join(absent)} (make setup)"
    if absent_package := _absent_package(recipe.model.source):
        yield f"its model is in the package {absent_package}, which is not installed (make setup)"
    gpu = hardware.usable_gpu
    if recipe.model.fast_inference is True and gpu is None and not has_vllm():
        yield "made for an NVIDIA GPU (model.fast_inference), and there is no vLLM for the processor"
    need = memory_estimate(recipe, hardware)
    if need is not None and need.verdict == "too large":
        yield f"needs about {need.gib:.1f} GiB of memory, there are {need.machine.memory_gib:.1f}"
    if os.environ.get("HF_HUB_OFFLINE") == "1" and (places := list(_from_hub(recipe))):
        yield f"HF_HUB_OFFLINE is set, and not in the cache: {', '.join(places)}"


def _absent_package(source: str) -> str | None:
    package = source.removeprefix("package:").partition("/")[0]
    return package if source.startswith("package:") and find_spec(package) is None else None


def _needs(recipe: Recipe) -> Iterator[str]:
    if places := list(_from_hub(recipe)):
        yield f"fetches from the Hub: {', '.join(places)}"


def _from_hub(recipe: Recipe) -> Iterator[str]:
    source = recipe.model.source
    if is_hub_name(source) and not _cached("models", source):
        yield source
    if (dataset := dataset_of(recipe.task)) and not _cached("datasets", dataset):
        yield dataset


def _cached(kind: str, name: str) -> bool:
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    return any((hub / f"{kind}--{name.replace('/', '--')}" / "snapshots").glob("*"))


def memory_estimate(recipe: Recipe, hardware: Hardware) -> Estimate | None:
    """Without a GPU's vLLM, which takes what it is given; None where the model's configuration is not here."""
    gpu = hardware.usable_gpu
    machine = (
        Machine("cuda", True, gpu.name, hardware.threads, gpu.memory_gib)
        if gpu
        else Machine("cpu", hardware.bf16, "processor", hardware.threads, hardware.memory_gib, has_vllm())
    )
    try:
        return estimate(recipe, shape_of(recipe.model), machine)
    except ToolkitError:
        return None
