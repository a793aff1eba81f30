"""Answers of the model that is being trained: the one door for rollouts, evaluation and probes, whatever generates here.

It chooses between the ways of generating, each of which has a module of its own, and holds none of their details.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Unpack

from toolkit.engine.completions import Completion, Drawn, Draws, Prompts, Sampling, in_order
from toolkit.engine.load import Policy, for_generation


def draw(
    policy: Policy, adapter: str | None, prompts: Prompts, sampling: Sampling, **draws: Unpack[Draws]
) -> list[Completion]:
    """The answers of the model with this adapter (None: the bare base) to prompts (token ids), in prompt order."""
    return in_order(draw_batches(policy, adapter, prompts, sampling, **draws))


def draw_batches(
    policy: Policy,
    adapter: str | None,
    prompts: Prompts,
    sampling: Sampling,
    *,
    done: Sequence[Drawn] = (),
    **draws: Unpack[Draws],
) -> Iterator[Drawn]:
    """What `draw` gives, batch by batch. `done`: the first batches of an equal call, which are not drawn again."""
    from toolkit.engine.generate import batches

    with for_generation(policy, adapter) as model:
        yield from batches(model, prompts, sampling, done=done, **draws)
