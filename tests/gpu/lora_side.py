"""On a GPU: what Unsloth's `save_lora` writes and `load_lora` reads back is the adapter in training. Facts as JSON.

Run by test_gpu_lora.py in a process of its own with the checkpoint folder as its argument.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

PROMPT = "How much is 17 plus 25?"


def main() -> None:
    from toolkit.engine.load import import_unsloth

    import_unsloth(standby=False)
    import torch

    from models import small_recipe
    from toolkit.engine import adapter_guard, load, unsloth_vllm
    from toolkit.engine.completions import Sampling
    from toolkit.engine.sampler import draw

    recipe = small_recipe(
        sys.argv[1],
        model={"load_in_4bit": True, "dtype": "auto", "fast_inference": True, "gpu_memory_utilization": 0.4},
    )
    policy = load.load_policy(recipe)
    assert policy.setting.generator == "unsloth", policy.setting.changes
    load.add_adapter(policy, recipe)
    agreement = adapter_guard.require_trained_adapter(policy)
    with torch.no_grad():
        for name, weight in policy.model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.05)
    prompts = [policy.prompt_ids([{"role": "user", "content": PROMPT}])]
    greedy = Sampling(12, temperature=0.0, stop_token_ids=policy.stop_token_ids)
    live, bare = draw(policy, "default", prompts, greedy), draw(policy, None, prompts, greedy)
    policy.model.save_lora("by_unsloth")
    load.save_adapter(policy, recipe, Path("by_toolkit"))
    unsloth_vllm.serve(policy, Path("by_toolkit"), "saved")
    saved = draw(policy, "saved", prompts, greedy)
    facts = {
        "guard": [agreement.apart, agreement.apart_from_base],
        "tensors that differ": _different(policy.model, Path("by_unsloth")),
        "tensors that differ in ours": _different(policy.model, Path("by_toolkit")),
        "adapter changes": live[0].token_ids != bare[0].token_ids,
        "saved as live": saved[0].token_ids == live[0].token_ids,
        "peak_gib": torch.cuda.max_memory_reserved() / 2**30,
    }
    sys.stdout.write("\nFACTS " + json.dumps(facts))


def _different(model: Any, folder: Path) -> list[str]:
    """Names whose tensor in the file is not the trainer's in the file's type."""
    import torch
    from safetensors.torch import load_file

    found = load_file(folder / "adapter_model.safetensors")
    own = {n.replace(".default", ""): w for n, w in model.named_parameters() if ".default." in n}
    assert found.keys() == own.keys()
    return [
        name for name, tensor in found.items() if not torch.equal(tensor, own[name].detach().cpu().to(tensor.dtype))
    ]


if __name__ == "__main__":
    main()
