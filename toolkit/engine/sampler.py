"""Answers of the model that is being trained: the one door for rollouts, evaluation and probes, whatever generates here.

It chooses between the ways of generating, each of which has a module of its own, and holds none of their details.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Unpack

from toolkit.engine.completions import Completion, Drawn, Draws, Prompts, Sampling, in_order
from toolkit.engine.load import Policy, for_generation, in_place


def prepare(policy: Policy) -> None:
    """Start what generates in training. Where it does not start another way is taken, and `policy.setting` says so."""
    if policy.beside:
        policy.beside.start(policy)
    if policy.remote:
        policy.remote.start()


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
    if policy.setting.generator == "unsloth":
        from toolkit.engine import unsloth_vllm

        yield from unsloth_vllm.batches(policy, adapter, prompts, sampling, done=done, **draws)
        return
    if policy.remote and policy.remote.takes(policy, adapter, prompts, sampling):
        with in_place(policy, adapter):
            yield from policy.remote.batches(policy, adapter, prompts, sampling, done=done, **draws)
        return
    completions = draws.get("samples", 1) + draws.get("greedy_too", False)
    engine = policy.beside and policy.beside.engine_for(policy, adapter, prompts, sampling, completions)
    if engine:
        with in_place(policy, adapter):
            yield from engine.batches(adapter, prompts, sampling, done=done, **draws)
        return
    if policy.machine.device == "cuda":
        from toolkit.engine.model_generate import batches
    else:
        from toolkit.engine.generate import batches
    with for_generation(policy, adapter) as model:
        yield from batches(model, prompts, sampling, done=done, **draws)
