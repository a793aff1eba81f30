"""What the tests of vLLM run in the process that imported unsloth first (`unsloth_process`). Answers are plain data.

A policy and its engine are made once per recipe and kept: an engine costs some seconds.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import unsloth_side
from toolkit.engine.completions import Completion, Drawn, Sampling, in_order
from toolkit.recipe import Recipe

PROMPTS = ([5, 6, 7], [9] * 40, [250, 3], [11, 12, 13], list(range(70)), [77])
_kept: dict[str, Any] = {}


def policy_of(recipe: Recipe) -> Any:
    """A policy with an adapter that changes much, and vLLM beside it."""
    key = recipe.model_dump_json()
    if key not in _kept:
        for other in _kept.values():
            other.beside.close()
        _kept.clear()
        policy = unsloth_side.loaded(recipe, strength=0.2)
        engine = policy.beside.start(policy)
        assert engine, policy.setting.changes
        _kept[key] = policy
    return _kept[key]


def engine_of(recipe: Recipe) -> Any:
    policy = policy_of(recipe)
    return policy.beside.start(policy)


def drawn(recipe: Recipe, sampling: Sampling, prompts: Any = PROMPTS, **draws: Any) -> list[Completion]:
    """With vLLM, the adapter on."""
    return in_order(engine_of(recipe).batches("default", prompts, sampling, **draws))


def resumed(recipe: Recipe, sampling: Sampling, kept: int, **draws: Any) -> list[Completion]:
    """A draw that was killed after so many batches, and goes on."""
    engine = engine_of(recipe)
    batches = engine.batches("default", PROMPTS, sampling, **draws)
    done: list[Drawn] = [next(batches) for _ in range(kept)]
    batches.close()
    return in_order([*done, *engine.batches("default", PROMPTS, sampling, done=done, **draws)])


def change_adapter(policy: Any, seed: int) -> None:
    """As an optimiser does, in place."""
    import torch

    torch.manual_seed(seed)
    with torch.no_grad():
        for name, weight in policy.model.named_parameters():
            if "lora_B" in name:
                weight.add_(torch.randn_like(weight), alpha=0.2)


def disagreement(recipe: Recipe, adapter: str | None, prompts: Any = PROMPTS, tokens: int = 24) -> dict[str, Any]:
    """Greedy texts of vLLM and of transformers: how many differ, and how close the two likeliest tokens are at worst there."""
    import torch

    from toolkit.engine.generate import generate
    from toolkit.engine.load import for_generation

    policy, sampling = policy_of(recipe), Sampling(tokens, temperature=0.0)
    ours = in_order(engine_of(recipe).batches(adapter, prompts, sampling))
    gaps, different = [0.0], 0
    with for_generation(policy, adapter) as model, torch.no_grad():
        for mine, theirs in zip(ours, generate(model, prompts, sampling), strict=True):
            pairs = enumerate(zip(mine.token_ids, theirs.token_ids, strict=True))
            at = next((at for at, (one, other) in pairs if one != other), None)
            if at is None:
                continue
            different += 1
            ids = [*prompts[mine.prompt_index], *theirs.token_ids[:at]]
            logits = model(input_ids=torch.tensor([ids])).logits[0, -1].float()
            gaps.append(float(logits.max() - logits[mine.token_ids[at]]))
    return {"different": different, "gap": max(gaps), "texts": [row.token_ids for row in ours]}


def followed(recipe: Recipe, changes: int, *, handed_over: bool = True, prompts: Any = PROMPTS) -> list[dict[str, Any]]:
    """`disagreement` for the bare base and after each of some changes of the adapter. Sabotage: nothing is handed over."""
    policy = policy_of(recipe)
    found = [disagreement(recipe, None, prompts), disagreement(recipe, "default", prompts)]
    with mock.patch("toolkit.engine.vllm_engine.VllmEngine.hand_over") if not handed_over else mock.MagicMock():
        for seed in range(changes):
            change_adapter(policy, seed)
            found.append(disagreement(recipe, "default", prompts))
    return found


def two_adapters(recipe: Recipe) -> dict[str, Any]:
    """A second adapter under a name of its own, asked in turn with the first and the base."""
    policy = policy_of(recipe)
    if "other" not in policy.model.peft_config:
        import torch

        policy.model.add_adapter("other", policy.model.peft_config["default"])
        with torch.no_grad():
            for name, weight in policy.model.named_parameters():
                if ".other." in name and "lora_B" in name:
                    weight.normal_(std=0.3)
        policy.model.set_adapter("default")
    try:
        return {str(name): disagreement(recipe, name) for name in ("other", None, "default")}
    finally:
        policy.model.delete_adapter("other")


def logprob_differences(recipe: Recipe, sampling: Sampling, samples: int, prompts: Any = PROMPTS) -> list[float]:
    """|vLLM's log-probability of a drawn token - the model's in a full forward pass|, token by token."""
    import torch

    from toolkit.engine.load import for_generation

    policy, found = policy_of(recipe), []
    rows = drawn(recipe, sampling, prompts, samples=samples, seed=3)
    with for_generation(policy, "default") as model, torch.no_grad():
        for row in rows:
            prompt = prompts[row.prompt_index]
            logits = model(input_ids=torch.tensor([[*prompt, *row.token_ids]])).logits[0, len(prompt) - 1 : -1].float()
            expected = torch.log_softmax(logits / (sampling.temperature or 1.0), dim=-1)
            expected = expected.gather(1, torch.tensor(row.token_ids)[:, None])[:, 0]
            found += (expected - torch.tensor(row.logprobs)).abs().tolist()
    return found


def first_tokens(recipe: Recipe, sampling: Sampling, count: int) -> dict[str, Any]:
    """Many first tokens of one prompt, and the distribution that they should have."""
    import torch

    from toolkit.engine.generate import truncate
    from toolkit.engine.load import for_generation

    rows = drawn(recipe, sampling, [[5, 6, 7]], samples=count, seed=11)
    with for_generation(policy_of(recipe), "default") as model, torch.no_grad():
        logits = model(input_ids=torch.tensor([[5, 6, 7]])).logits[:, -1].float()
    probabilities = torch.softmax(truncate(logits / sampling.temperature, sampling), dim=-1)[0]
    return {"tokens": [row.token_ids[0] for row in rows], "probabilities": probabilities.tolist()}


def penalised(recipe: Recipe, sampling: Sampling) -> dict[str, Any]:
    """Greedy with a repetition penalty: vLLM's text and transformers'."""
    from toolkit.engine.generate import generate
    from toolkit.engine.load import for_generation

    ours = drawn(recipe, sampling)
    with for_generation(policy_of(recipe), "default") as model:
        theirs = generate(model, PROMPTS, sampling)
    return {"ours": [row.token_ids for row in ours], "theirs": [row.token_ids for row in theirs]}


def _state() -> dict[str, Any]:
    import numpy
    import torch

    return {
        "threads": torch.get_num_threads(),
        "set_num_threads": id(torch.set_num_threads),
        "torch": torch.get_rng_state().tolist(),
        "numpy": str(numpy.random.get_state()),
        "random": random.getstate(),
        "distributed": torch.distributed.is_initialized(),
        "interrupt": id(signal.getsignal(signal.SIGINT)),
        "terminate": id(signal.getsignal(signal.SIGTERM)),
        "excepthook": id(sys.excepthook),
        "grad": torch.is_grad_enabled(),
        "dtype": str(torch.get_default_dtype()),
        "affinity": sorted(os.sched_getaffinity(0)),
        "folder": tempfile.gettempdir(),
        "left": sorted(path.name for path in Path(tempfile.gettempdir()).glob("vllm*")),
    }


def left_as_it_was(recipe: Recipe) -> list[str]:
    """What of the process is another after an engine was started and drew."""
    policy = unsloth_side.loaded(recipe)
    before = _state()
    engine = policy.beside.start(policy)
    list(engine.batches("default", PROMPTS, Sampling(4), samples=2))
    after = _state()
    policy.beside.close()
    return [name for name in before if before[name] != after[name]]


def refused(recipe: Recipe) -> dict[str, Any]:
    """What is drawn, and recorded, where vLLM does not take the model."""
    from toolkit.engine.sampler import draw, prepare

    policy = unsloth_side.loaded(recipe)
    prepare(policy)
    rows = draw(policy, "default", PROMPTS, Sampling(4, temperature=0.0))
    changes = [(change.key, change.asked, change.used, change.why) for change in policy.setting.changes]
    return {"generator": policy.setting.generator, "changes": changes, "rows": len(rows)}


def counted_draws(recipe: Recipe, *sizes: tuple[str | None, int, int]) -> list[str]:
    """Which way draws of (adapter, prompts, tokens) go, one after the other, without an engine at first."""
    from toolkit.engine.sampler import draw

    policy, ways = unsloth_side.loaded(recipe), []
    for adapter, prompts, tokens in sizes:
        with mock.patch("toolkit.engine.generate.batches", return_value=iter([])) as plain:
            draw(policy, adapter, [[1, 2]] * prompts, Sampling(tokens, stop_token_ids=tuple(range(259))))
        ways.append("transformers" if plain.called else "vllm")
    policy.beside.close()
    return ways
