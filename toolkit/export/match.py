"""Finds the tensors of a checkpoint that were trained, by an adapter or whole: exact, one to one, or an error that shows both
sides.

Names differ in their beginnings only. Output heads that are tied to the embedding get a tensor of their own where the
adapter parts the two, because then the model that was trained was not tied any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from toolkit.errors import ExportError
from toolkit.export.adapter import Adapter, Change
from toolkit.export.checkpoint import DTYPES, Checkpoint, Place

LAYOUTS = (
    ("model.language_model.", "lm_head."),
    ("language_model.model.", "language_model.lm_head."),
    ("model.", "lm_head."),
)
"""How the text part of a model and its output head are named, in memory or in a checkpoint. Gemma 3 from 4B on lies on
the Hub as the second and is the first in memory; Llama and the small Gemmas are the third everywhere
(transformers/conversion_mapping.py)."""

EMBEDDING = "embed_tokens.weight"


@dataclass(frozen=True, slots=True)
class Plan:
    """What a merge does, by names of the checkpoint."""

    changes: dict[str, Change]
    """Stored tensor -> its change."""
    added: dict[str, tuple[str, Change | None]]
    """Tensor of a head that was tied -> the stored tensor that it was, and its change, where it has one."""
    copies: dict[str, Place]
    """Stored tensor -> the adapter's own copy of it, which must not differ."""
    unties: bool = False
    """Whether embedding and output head are two tensors from now on."""

    @property
    def changed(self) -> tuple[str, ...]:
        return tuple(sorted([*self.changes, *self.added]))


def match(adapter: Adapter, checkpoint: Checkpoint) -> Plan:
    """Where every change of the adapter belongs. ExportError where one has no place, or one of another shape or type."""
    places, heads = checkpoint.tensors, dict(_heads(checkpoint.tensors))
    tied = {head: embedding for head, embedding in heads.items() if head not in places}
    wanted: dict[str, Change] = {f"{path}.weight": change for path, change in adapter.changes.items()}
    wanted |= adapter.replaced
    names = _stored_names(sorted(wanted), places, tied)
    copies = {f"{path}.weight": place for path, place in adapter.copies.items()}
    for name, change in [*wanted.items(), *copies.items()]:
        _check(name, change, tied.get(names[name], names[name]), places, checkpoint.folder)
    changes = {names[name]: change for name, change in wanted.items()}
    added, unties = _part_heads(changes, heads, places, ties=adapter.ties)
    return Plan(changes, added, {tied.get(names[name], names[name]): place for name, place in copies.items()}, unties)


def _part_heads(
    changes: dict[str, Change], heads: dict[str, str], places: dict[str, Place], *, ties: bool
) -> tuple[dict[str, tuple[str, Change | None]], bool]:
    """Tensors to add for heads whose embedding is changed without them, or they without it; whether that unties them."""
    touched = [head for head, embedding in heads.items() if head in changes or embedding in changes]
    if not ties:
        return {head: (heads[head], changes.pop(head, None)) for head in touched if head not in places}, bool(touched)
    for head in touched:
        if heads[head] not in changes:
            raise ExportError(f"ensure_weight_tying is set, but the adapter changes {head} alone")
        changes.pop(head, None)  # the embedding's change a second time
        if head in places:
            changes[head] = changes[heads[head]]
    return {}, False


def _heads(places: dict[str, Place]) -> Iterator[tuple[str, str]]:
    """The output head that a checkpoint's embedding may be tied to, and that embedding."""
    for body, head in LAYOUTS:
        if f"{body}{EMBEDDING}" in places:
            yield f"{head}weight", f"{body}{EMBEDDING}"


def _stored_names(names: list[str], places: dict[str, Place], tied: dict[str, str]) -> dict[str, str]:
    """Name in the adapter -> name in the checkpoint, by one rule for all of them; the first is that they are the same."""
    known = places.keys() | tied.keys()
    for rule in _rules(names):
        if all(there in known for there in rule.values()):
            return rule
    missing = [name for name in names if name not in known]
    raise ExportError(
        f"{len(missing)} of the {len(names)} tensors that were trained are not in the base.\n"
        f"trained: {', '.join(missing[:3])}\nbase:    {', '.join(sorted(places)[:3])}"
    )


def _rules(names: list[str]) -> Iterator[dict[str, str]]:
    yield {name: name for name in names}
    for body, head in LAYOUTS:
        if all(name.startswith((body, head)) for name in names):
            for there, head_there in LAYOUTS:
                yield {
                    name: there + name.removeprefix(body)
                    if name.startswith(body)
                    else head_there + name.removeprefix(head)
                    for name in names
                }


def _check(name: str, change: Change, there: str, places: dict[str, Place], folder: Path) -> None:
    place = places[there]
    if place.dtype not in DTYPES:
        what = f"{there} is stored as {place.dtype}: only plain 16- or 32-bit weights can be merged into"
        raise ExportError(what, where=str(folder), hint="name the 16-bit original in export.base")
    if change.shape != place.shape:
        raise ExportError(f"{name} is {change.shape} as it was trained, {place.shape} in the base")
