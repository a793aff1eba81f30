"""What the tests of a vLLM server run in the process that imported unsloth first (`unsloth_process`). Answers are plain data."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any
from unittest import mock

import unsloth_side
from toolkit.engine.completions import Completion, Sampling, in_order
from toolkit.errors import ToolkitError
from toolkit.recipe import Recipe

PROMPTS = ([5, 6, 7], [9] * 40, [250, 3], [11, 12, 13], list(range(70)), [77])
GREEDY = Sampling(max_new_tokens=16, temperature=0.0)


def policy_of(recipe: Recipe) -> Any:
    """A policy with an adapter that changes much, and the server that the recipe names."""
    policy = unsloth_side.loaded(recipe, strength=0.2)
    assert policy.setting.generator == "server" and policy.remote, policy.setting.changes
    policy.remote.start()
    return policy


def change_adapter(policy: Any, seed: int) -> None:
    """As an optimiser does, in place."""
    import torch

    torch.manual_seed(seed)
    with torch.no_grad():
        for name, weight in policy.model.named_parameters():
            if "lora_B" in name:
                weight.add_(torch.randn_like(weight), alpha=0.2)


def gap(policy: Any) -> float:
    """How far, at worst, the server's greedy tokens are from the likeliest ones of the model with its adapter, in logits."""
    import torch

    worst = 0.0
    for row in in_order(policy.remote.batches(policy, "default", PROMPTS, GREEDY)):
        prompt = PROMPTS[row.prompt_index]
        with torch.no_grad():
            logits = policy.model(input_ids=torch.tensor([[*prompt, *row.token_ids]])).logits[0, len(prompt) - 1 : -1]
        picked = logits.gather(1, torch.tensor(row.token_ids)[:, None])[:, 0]
        worst = max(worst, float((logits.max(dim=1).values - picked).max()))
    return worst


def followed(recipe: Recipe, changes: int) -> list[float]:
    """`gap` with the first adapter and after each of some changes of it, and for a draw without any change."""
    policy = policy_of(recipe)
    policy.model.eval()
    found = [gap(policy), gap(policy)]
    for seed in range(changes):
        change_adapter(policy, seed)
        found.append(gap(policy))
    return found


def stale(recipe: Recipe) -> float:
    """Sabotage: `gap` where nothing is handed over after a change of the adapter."""
    policy = policy_of(recipe)
    policy.model.eval()
    gap(policy)
    change_adapter(policy, 1)
    with mock.patch("toolkit.engine.vllm_remote.Remote.hand_over"):
        return gap(policy)


def logprob_differences(recipe: Recipe, sampling: Sampling) -> list[float]:
    """Of each token that the server drew, the distance to the log-probability that the model in training gives it."""
    import torch

    from toolkit.engine.generate import truncate

    policy = policy_of(recipe)
    policy.model.eval()
    found = []
    for row in in_order(policy.remote.batches(policy, "default", PROMPTS, sampling, samples=3, seed=5)):
        prompt = PROMPTS[row.prompt_index]
        with torch.no_grad():
            logits = policy.model(input_ids=torch.tensor([[*prompt, *row.token_ids]])).logits[0, len(prompt) - 1 : -1]
        known = torch.log_softmax(truncate(logits.float() / sampling.temperature, sampling), dim=-1)
        mine = known.gather(1, torch.tensor(row.token_ids)[:, None])[:, 0]
        found += (mine - torch.tensor(row.logprobs)).abs().tolist()
    return found


def drawn(recipe: Recipe, sampling: Sampling, calls: list[dict[str, Any]]) -> list[list[Completion]]:
    """Each call's answers; `part`: which prompts it is about."""
    policy = policy_of(recipe)
    answers = []
    for call in calls:
        prompts = PROMPTS[slice(*call.pop("part", (0, None)))]
        answers.append(in_order(policy.remote.batches(policy, "default", prompts, sampling, **call)))
    return answers


def resumed(recipe: Recipe, sampling: Sampling, kept: int, **draws: Any) -> list[Completion]:
    """A draw that was stopped after so many batches, and goes on."""
    policy = policy_of(recipe)
    batches = policy.remote.batches(policy, "default", PROMPTS, sampling, **draws)
    done = [next(batches) for _ in range(kept)]
    batches.close()
    return in_order([*done, *policy.remote.batches(policy, "default", PROMPTS, sampling, done=done, **draws)])


def proven(recipe: Recipe) -> tuple[float, float] | str:
    """What the proof before a training finds, and that the adapter is what it was."""
    from toolkit.engine.adapter_guard import require_handed_over
    from toolkit.engine.load import adapter_fingerprint

    policy = policy_of(recipe)
    before = adapter_fingerprint(policy.model)
    found = refusal(lambda: require_handed_over(policy))
    assert adapter_fingerprint(policy.model) == before
    return found if isinstance(found, str) else (found.apart, found.apart_from_base)


def refusal(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except ToolkitError as error:
        return str(error)


def after(recipe: Recipe, change: Callable[[], None]) -> Any:
    """What a draw says after something has happened to the server between two of them."""
    policy = policy_of(recipe)
    gap(policy)
    change()
    return refusal(lambda: gap(policy))


def taken(recipe: Recipe) -> dict[str, bool]:
    """What the server draws during a training, and before there is an adapter in training."""
    from toolkit.engine.load import load_policy

    long = Sampling(max_new_tokens=recipe.model.max_seq_length)
    policy, bare = policy_of(recipe), load_policy(recipe)
    assert bare.remote
    return {
        "adapter": policy.remote.takes(policy, "default", PROMPTS, GREEDY),
        "base meanwhile": policy.remote.takes(policy, None, PROMPTS, GREEDY),
        "base alone": bare.remote.takes(bare, None, PROMPTS, GREEDY),
        "too long": policy.remote.takes(policy, "default", PROMPTS, long),
    }


def second_process(recipe: Recipe) -> list[Any]:
    """Process 1 of 2 draws while the server has its weights, and when it has others. Which it never hands over."""
    from toolkit.engine import vllm_weights

    policy = policy_of(recipe)
    mine = [row.token_ids for row in in_order(policy.remote.batches(policy, "default", PROMPTS, GREEDY))]
    others = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    with mock.patch.dict(os.environ, others), mock.patch("toolkit.engine.vllm_remote.LONGEST_S", 0.5):
        same = [row.token_ids for row in in_order(policy.remote.batches(policy, "default", PROMPTS, GREEDY))]
        change_adapter(policy, 3)
        waited = refusal(lambda: gap(policy))
    return [mine == same, waited, vllm_weights.fingerprint(policy.model, "default")]


def without(recipe: Recipe) -> tuple[str, list[tuple[str, Any]]]:
    """What a policy draws with where the server does not answer, and what is said of it."""
    from toolkit.engine.load import load_policy

    policy = load_policy(recipe)
    assert policy.remote is None
    return policy.setting.generator, [(change.key, change.used) for change in policy.setting.changes]
