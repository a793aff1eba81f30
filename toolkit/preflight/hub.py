"""What a recipe needs of the Hugging Face Hub: what is in the cache, what must be fetched and may be, where it pushes.

The Hub is asked once for each repository that is not here, briefly. Where it does not answer, nothing else waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolkit.engine.source import is_hub_name
from toolkit.errors import ToolkitError
from toolkit.preflight.finding import Finding, Status
from toolkit.tasks import gsm8k, tldr
from toolkit.tasks.table import Table

if TYPE_CHECKING:
    from toolkit.hubapi.reading import Kind, Reading
    from toolkit.recipe import Recipe
    from toolkit.tasks.base import TaskBase


@dataclass(frozen=True, slots=True)
class Wanted:
    """A repository that the recipe reads from, and what of it is missing here."""

    name: str
    kind: Kind
    revision: str | None
    missing: tuple[str, ...]
    copy: str | None = None
    """A 4-bit copy that is in the cache, with which Unsloth trains instead."""


@dataclass
class HubState:
    """What the check found out, for what follows: whether the Hub answers, and how much is to be fetched."""

    reachable: bool | None = None
    """None: it was not asked."""
    fetch_bytes: int = 0


def wanted(recipe: Recipe) -> list[Wanted]:
    """The base model and the data set, where they are the Hub's."""
    from toolkit.engine.sixteen_bit import four_bit_copy
    from toolkit.hubapi.reading import missing_data, missing_model_files

    found, model, dataset = [], recipe.model, dataset_of(recipe.task)
    if is_hub_name(model.source):
        missing = tuple(missing_model_files(model.source, model.revision))
        copy = four_bit_copy(model.source) if model.load_in_4bit and missing else None
        here = copy if copy and not list(missing_model_files(copy, None)) else None
        found.append(Wanted(model.source, "model", model.revision, missing, here))
    if dataset:
        found.append(Wanted(dataset, "dataset", None, tuple(missing_data(dataset))))
    return found


def dataset_of(task: TaskBase) -> str | None:
    """The data set on the Hub that a task would read."""
    if isinstance(task, Table):
        return task.dataset
    if isinstance(task, gsm8k.GSM8K):
        return gsm8k.HUB_NAME if task.local_file("train") is None else None
    return tldr.HUB_NAME if isinstance(task, tldr.TLDR) and task.train_file is None else None


def hub_findings(recipe: Recipe, state: HubState) -> Iterator[Finding]:
    """Each repository that is read from. `state` is filled in."""
    try:
        repositories = wanted(recipe)
    except ImportError:
        yield Finding("hub", "huggingface_hub", "not installed", "failed", "make setup")
        return
    for each in repositories:
        if not each.missing:
            yield Finding("hub", each.name, "in the cache")
        else:
            yield _missing(each, state)


def _missing(each: Wanted, state: HubState) -> Finding:
    from huggingface_hub import constants

    from toolkit.hubapi.reading import reading

    lacks = f"not in the cache ({_listed(each.missing)})"
    # Reading the rows says itself where it cannot; and an export needs the original, which training does not.
    stops: Status = "warning" if each.kind == "dataset" or each.copy else "failed"
    lacks += f", but its 4-bit copy {each.copy} is: the export will want the original" if each.copy else ""
    by_hand = f"where there is a network: hf download {each.name}{' --repo-type dataset' * (each.kind == 'dataset')}"
    if constants.HF_HUB_OFFLINE:
        hint = f"unset HF_HUB_OFFLINE; or, {by_hand}"
        return Finding("hub", each.name, f"{lacks}, and HF_HUB_OFFLINE is set", stops, hint)
    if state.reachable is not False:
        answer = reading(each.name, kind=each.kind, revision=each.revision)
        state.reachable = answer.state != "unreachable"
        if state.reachable:
            state.fetch_bytes += answer.size_bytes or 0
            return _answered(each, answer)
    hint = f"connect this machine; or, {by_hand}, then copy the cache"
    return Finding("hub", each.name, f"{lacks}, and the Hub does not answer", stops, hint)


def _answered(each: Wanted, answer: Reading) -> Finding:
    if answer.state == "open":
        size = f", {answer.size_bytes / 1e9:.1f} GB" if answer.size_bytes else ""
        return Finding("hub", each.name, f"will be fetched{size}")
    return Finding("hub", each.name, answer.what, "failed", answer.way_out)


def _listed(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return ", ".join(names[:2]) + more


def push_findings(recipe: Recipe, state: HubState) -> Iterator[Finding]:
    """Whether this machine's token may write where the recipe pushes."""
    from toolkit.hubapi import require_access

    hub = recipe.hub
    if not (hub.push or hub.push_checkpoints):
        return
    what = f"permission to push to {', '.join(hub.repos)}"
    if state.reachable is False:
        yield Finding(
            "hub", what, "not known: the Hub does not answer", "failed", "hub.push=false hub.push_checkpoints=false"
        )
        return
    try:
        require_access(recipe)
    except ToolkitError as error:
        yield Finding("hub", what, error.message, "failed", error.hint)
    else:
        yield Finding("hub", what, "given")


@contextmanager
def without_waiting(state: HubState) -> Iterator[None]:
    """Where the Hub did not answer, the libraries of this process take their caches at once instead of waiting for it again."""
    if state.reachable is not False:
        yield
        return
    from huggingface_hub import constants

    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
