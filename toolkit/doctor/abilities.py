"""Which of the recipes this machine can run, and why not. Estimates from the recipes; no model is loaded, no data read."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from toolkit.doctor.hardware import Hardware
from toolkit.doctor.versions import installed
from toolkit.engine.machine import TOKENS_PER_GIB
from toolkit.engine.source import is_hub_name
from toolkit.errors import ToolkitError
from toolkit.recipe import list_recipes, load_recipe
from toolkit.tasks import gsm8k, tldr
from toolkit.tasks.table import Table

if TYPE_CHECKING:
    from toolkit.recipe import Recipe
    from toolkit.tasks.base import TaskBase

LIBRARIES = ("torch", "unsloth", "trl", "transformers", "peft", "datasets")
LIBRARIES_GIB = 1.5
"""What a process that has imported them holds before it has a model (measured here)."""
_SIZE = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)\s*([bm])(?![a-z0-9])", re.IGNORECASE)


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
    if recipe.model.fast_inference is True and gpu is None:
        yield "made for an NVIDIA GPU (model.fast_inference)"
    have, need = gpu.memory_gib if gpu else hardware.memory_gib, least_memory_gib(recipe, hardware)
    if need is not None and need > have:
        yield f"needs about {need:.1f} GiB of memory, there are {have:.1f}"
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
    if (dataset := _dataset(recipe.task)) and not _cached("datasets", dataset):
        yield dataset


def _dataset(task: TaskBase) -> str | None:
    """The data set on the Hub that a task would read."""
    if isinstance(task, Table):
        return task.dataset
    if isinstance(task, gsm8k.GSM8K):
        return gsm8k.HUB_NAME if task.local_file("train") is None else None
    return tldr.HUB_NAME if isinstance(task, tldr.TLDR) and task.train_file is None else None


def _cached(kind: str, name: str) -> bool:
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    return any((hub / f"{kind}--{name.replace('/', '--')}" / "snapshots").glob("*"))


def parameters(source: str) -> float | None:
    """How many weights a model has, by its name (`…-1b-it`, `…-135M-…`); None where it does not say."""
    found = _SIZE.search(source.rpartition("/")[2].replace("-", " ").replace("_", " "))
    return float(found[1]) * (1e9 if found[2].lower() == "b" else 1e6) if found else None


def least_memory_gib(recipe: Recipe, hardware: Hardware) -> float | None:
    """Libraries, weights, and one completion in the backward pass; None where the model's size is not known."""
    weights = parameters(recipe.model.source)
    if weights is None:
        return None
    device = "cuda" if hardware.usable_gpu else "cpu"
    wide = 4.0 if device == "cpu" and not hardware.bf16 else 2.0
    each = 0.75 if recipe.model.load_in_4bit else wide  # the embeddings stay 16-bit
    tokens = recipe.grpo.max_prompt_length + recipe.grpo.max_completion_length
    return LIBRARIES_GIB + weights * each / 2**30 + tokens / TOKENS_PER_GIB[device]
