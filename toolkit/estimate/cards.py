"""Common GPUs, to say on which of them a recipe would fit. They are figures of data sheets; none is asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from toolkit.engine.machine import Machine, Setting, batch_rows, resolve
from toolkit.estimate.terms import Estimate, estimate

if TYPE_CHECKING:
    from toolkit.estimate.shape import Shape
    from toolkit.recipe import Recipe


def _card(name: str, memory_gib: float, capability: tuple[int, int]) -> Machine:
    bf16 = capability >= (8, 0)  # Ampere and newer
    return Machine("cuda", bf16, name, 8, memory_gib, vllm=True, capability=capability)


CARDS = (
    _card("T4", 14.6, (7, 5)),
    _card("L4", 22.0, (8, 9)),
    _card("RTX 3090", 23.7, (8, 6)),
    _card("RTX 4090", 23.6, (8, 9)),
    _card("A100 40 GB", 39.4, (8, 0)),
    _card("A100 80 GB", 79.3, (8, 0)),
    _card("H100 80 GB", 79.2, (9, 0)),
    _card("H200", 139.8, (9, 0)),
)
"""Memory as the driver reports it, in GiB, which is less than what the card is sold as."""


def on_cards(recipe: Recipe, shape: Shape) -> list[Estimate]:
    """The estimate for each of the cards."""
    return [estimate(recipe, shape, card, _setting(recipe, card)) for card in CARDS]


def _setting(recipe: Recipe, card: Machine) -> Setting:
    """As the card would have it, with vLLM where the recipe allows it. Whether vLLM serves the model only its files would tell."""
    model, alone = recipe.model, replace(card, vllm=False)
    setting = resolve(recipe, alone)
    if model.vllm_server or not model.fast_inference:
        return setting
    share = 0.0 if model.standby else model.gpu_memory_utilization
    left = replace(alone, memory_gib=card.memory_gib * (1 - share))
    return replace(setting, generator="unsloth", standby=model.standby, batch_rows=batch_rows(recipe, left))
