"""Unsloth's `load_lora`, the toolkit's module on top of it, and a real vLLM (on a processor) together; facts as JSON.

What a GPU would add is that Unsloth starts the engine and shares the weights; here the engine reads the same checkpoint. Run
by test_unsloth_vllm.py in a process and a folder of its own, with the checkpoint as its argument.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "0", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "UNSLOTH_FORCE_CPU": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
}  # fmt: skip
PROMPTS = [list(range(65, 80)), list(range(70, 75)), list(range(60, 99))]
STOP = 256


def loaded(checkpoint: str) -> tuple[Any, Any]:
    """A policy with a fresh adapter and the engine beside it, put together as Unsloth does it on a GPU."""
    from models import small_recipe
    from toolkit.engine import load

    asked = {"lora": {"r": 4, "lora_alpha": 8}, "fast_inference": False}
    recipe = small_recipe(checkpoint, model=asked)
    policy = load.load_policy(recipe)
    import unsloth_zoo.vllm_utils as zoo
    import vllm  # type: ignore[import-not-found]

    zoo.LORA_REQUEST_ID = 1  # as patch_vllm does
    zoo.patch_vllm_lora_load_tensors()
    engine = vllm.LLM(
        checkpoint, enforce_eager=True, max_model_len=128, enable_lora=True, max_lora_rank=8, max_loras=1, max_num_seqs=32,
        dtype="float32", logprobs_mode="processed_logprobs", max_logprobs=0,
    )  # fmt: skip
    policy.setting = replace(policy.setting, generator="unsloth")
    load.add_adapter(policy, recipe)
    model = policy.model
    model.vllm_engine, model.fast_generate = engine, engine.generate
    model.load_lora = functools.partial(zoo.load_lora, model)
    return policy, recipe


def set_adapter(model: Any, change: Any) -> None:
    """Apply a function to every `lora_B` in place."""
    import torch

    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                change(weight)


def apart(model: Any, drawn: list[Any], *, adapted: bool) -> float:
    """The largest difference of vLLM's log-probabilities to the trained model's."""
    import torch

    model.eval()
    worst = 0.0
    for said in drawn:
        prompt = PROMPTS[said.prompt_index]
        ids = torch.tensor([[*prompt, *said.token_ids]])
        with torch.no_grad(), nullcontext() if adapted else model.disable_adapter():
            scores = torch.log_softmax(model(ids).logits.float(), dim=-1)[0, len(prompt) - 1 : -1]
        found = scores.gather(1, ids[0, len(prompt) :, None])[:, 0]
        worst = max(worst, float((found - torch.tensor(said.logprobs)).abs().max()))
    return worst


def error(function: Any) -> str:
    """What it complains about."""
    from toolkit.errors import EngineError

    try:
        function()
    except EngineError as found:
        return found.message
    return ""


def main() -> None:
    from toolkit.engine import adapter_guard, load, unsloth_vllm
    from toolkit.engine.completions import Sampling
    from toolkit.engine.sampler import draw

    policy, recipe = loaded(sys.argv[1])
    model = policy.model
    before = load.adapter_fingerprint(model)
    agreement = adapter_guard.require_trained_adapter(policy)
    facts: dict[str, Any] = {
        "guard": [agreement.apart, agreement.apart_from_base],
        "guard leaves": load.adapter_fingerprint(model) == before,
        "read back": [change.key for change in unsloth_vllm.read_back(policy, recipe).changes],
    }
    set_adapter(model, lambda weight: weight.normal_(std=0.05))
    greedy = Sampling(8, temperature=0.0, stop_token_ids=(STOP,))
    tuned, bare = draw(policy, "default", PROMPTS, greedy), draw(policy, None, PROMPTS, greedy)
    facts["apart"] = [apart(model, tuned, adapted=True), apart(model, bare, adapted=False)]
    facts["adapter changes"] = [said.token_ids for said in tuned] != [said.token_ids for said in bare]
    filtered = Sampling(8, 0.9, 0.95, 40, 0.01, 1.1, (STOP,))
    live = load.adapter_fingerprint(model)
    every = draw(policy, "default", PROMPTS, filtered, samples=2, seed=7, greedy_too=True)
    alone = draw(policy, "default", PROMPTS[:1], filtered, samples=2, seed=7)
    other = draw(policy, "default", PROMPTS[:1], filtered, samples=2, seed=8)
    facts["order"] = [said.prompt_index for said in every]
    facts["greedy first"] = [said.token_ids for said in every[::3]] == [said.token_ids for said in tuned]
    facts["whatever is beside it"] = [said.token_ids for said in every[1:3]] == [said.token_ids for said in alone]
    facts["seeds differ"] = [said.token_ids for said in other] != [said.token_ids for said in alone]
    facts["live weights stay"] = load.adapter_fingerprint(model) == live
    facts["stops"] = _stops(policy, tuned[0].token_ids[3])
    load.save_adapter(policy, recipe, Path("saved"))
    unsloth_vllm.serve(policy, Path("saved"), "tuned")
    saved = draw(policy, "tuned", PROMPTS, greedy)
    facts["saved as live"] = [said.logprobs for said in saved] == [said.logprobs for said in tuned]
    set_adapter(model, lambda weight: weight.mul_(-1))
    moved = draw(policy, "default", PROMPTS, greedy)
    facts["follows training"] = [
        apart(model, moved, adapted=True),
        [m.token_ids for m in moved] != [t.token_ids for t in tuned],
    ]
    facts |= _sabotaged(policy)
    sys.stdout.write("\nFACTS " + json.dumps(facts))


def _stops(policy: Any, token: int) -> list[Any]:
    """The sample that ends at a stop token of ours which is not the checkpoint's."""
    from toolkit.engine.completions import Sampling
    from toolkit.engine.sampler import draw

    (said,) = draw(policy, "default", PROMPTS[:1], Sampling(8, temperature=0.0, stop_token_ids=(token,)))
    return [said.token_ids[-1] == token, len(said.token_ids) <= 4, said.truncated]


def _sabotaged(policy: Any) -> dict[str, str]:
    """What the guard says where vLLM does not get the adapter, and where it gets one on another scale."""
    from toolkit.engine import adapter_guard, unsloth_vllm

    real, load_lora = policy.model.fast_generate, policy.model.load_lora
    policy.model.fast_generate = lambda *a, **given: real(*a, **(given | {"lora_request": None}))
    found = {
        "adapter lost": error(lambda: adapter_guard.require_trained_adapter(policy)),
        "saved adapter lost": error(lambda: unsloth_vllm.serve(policy, Path("saved"), "tuned")),
    }
    policy.model.fast_generate = real

    def shrunk(*asked: Any, **given: Any) -> Any:
        request = load_lora(*asked, **given)
        request.lora_config = request.lora_config | {"lora_alpha": 0.5}
        return request

    policy.model.load_lora = shrunk
    found["other scale"] = error(lambda: adapter_guard.require_trained_adapter(policy))
    policy.model.load_lora = lambda *asked, **given: load_lora(*asked, **given, lora_request_id=1)
    set_adapter(policy.model, lambda weight: weight.zero_())
    list(adapter_guard.batches(policy, "default", PROMPTS[:1], _one_token()))
    found["stale id"] = error(lambda: adapter_guard.require_trained_adapter(policy))
    return found


def _one_token() -> Any:
    from toolkit.engine.completions import Sampling

    return Sampling(1, temperature=0.0, stop_token_ids=(STOP,))


if __name__ == "__main__":
    from toolkit.engine.load import import_unsloth

    import_unsloth()
    main()
