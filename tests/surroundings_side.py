"""What test_surroundings.py runs in the process that imported unsloth first. Answers are plain data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from toolkit.engine.surroundings import surroundings
from toolkit.errors import EngineError
from toolkit.recipe import Recipe
from unsloth_side import loaded

CHATS = [[{"role": "user", "content": text}] for text in ("What is 1 + 1?", "Sing.", "What is 1 + 1?")]


def asked(recipe: Recipe) -> dict[str, Any]:
    """The base model's answers: from transformers, then through the surroundings, with and without a policy."""
    import torch

    from toolkit.engine.load import load_policy

    bare = load_policy(recipe)
    straight = [_greedy(bare, chat) for chat in CHATS]
    policy = loaded(recipe, strength=0.5)
    policy.model.train()
    with torch.no_grad():
        before = {name: weight.clone() for name, weight in policy.model.named_parameters()}
        adapted = [_greedy(policy, chat) for chat in CHATS]
    around = surroundings(recipe, policy)
    return {
        "straight": straight,
        "adapted": adapted,
        "with a policy": around.ask_base(CHATS, 12),
        "without one": surroundings(recipe).ask_base(CHATS, 12),
        "shorter": around.ask_base(CHATS[:1], 3),
        "still training": policy.model.training,
        "weights kept": all(torch.equal(before[name], weight) for name, weight in policy.model.named_parameters()),
        "same tokenizer": around.count_tokens("Äh, 12 +  3") == len(policy.tokenizer.encode("Äh, 12 +  3")),
        "too long": _refusal(lambda: around.ask_base(CHATS, recipe.model.max_seq_length)),
    }


def _refusal(ask: Callable[[], Any]) -> str:
    try:
        return f"answered: {ask()}"
    except EngineError as error:
        return str(error)


def _greedy(policy: Any, chat: list[dict[str, str]]) -> str:
    import torch

    was_training = policy.model.training
    policy.model.eval()
    ids = torch.tensor([policy.prompt_ids(chat)])
    with torch.inference_mode():
        out = policy.model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=12,
            eos_token_id=list(policy.stop_token_ids), pad_token_id=policy.tokenizer.pad_token_id,
        )  # fmt: skip
    policy.model.train(was_training)
    return policy.text(out[0, ids.shape[1] :].tolist())
