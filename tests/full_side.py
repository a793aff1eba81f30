"""What the test of full fine-tuning runs in the process that imported unsloth first; answers are plain data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

PROMPTS = ([5, 6, 7], [9] * 20, [250, 3], [11, 12, 13])
TOKENS = 16


def answers(recipe: Any, folders: dict[str, Path]) -> dict[str, Any]:
    """Greedy texts of the base, of each folder's weights, and of the base once more, all from one loaded policy."""
    import torch

    from toolkit.engine.completions import Sampling
    from toolkit.engine.load import load_adapter, load_policy
    from toolkit.engine.sampler import draw

    policy = load_policy(recipe)
    for name, folder in folders.items():
        load_adapter(policy, folder, name)
    before = [weight.detach().clone() for weight in policy.model.parameters()]
    sampling = Sampling(TOKENS, temperature=0.0)
    asked = {"base": None, **{name: name for name in folders}, "again": None}
    texts = {
        name: [row.token_ids for row in draw(policy, model, PROMPTS, sampling, samples=1)]
        for name, model in asked.items()
    }
    same = all(torch.equal(mine, was) for mine, was in zip(policy.model.parameters(), before, strict=True))
    if policy.beside:
        policy.beside.close()
    return {"texts": texts, "unchanged": same, "generator": policy.setting.generator, "plain": plain(folders)}


def plain(folders: dict[str, Path]) -> dict[str, list[list[int]]]:
    """What transformers answers from each folder."""
    import torch
    from transformers import AutoModelForCausalLM

    texts = {}
    for name, folder in folders.items():
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        model.generation_config.eos_token_id = None
        drawn = [
            model.generate(torch.tensor([prompt]), max_new_tokens=TOKENS, do_sample=False, pad_token_id=0)[0]
            for prompt in PROMPTS
        ]
        texts[name] = [ids[len(prompt) :].tolist() for ids, prompt in zip(drawn, PROMPTS, strict=True)]
    return texts
