"""Micro-batches as TRL hands them to its loss, made by hand: every shape in which rows can be dead, cut or lopsided."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def batch(
    prompts: Sequence[int], lengths: Sequence[int], advantages: Sequence[float], *, masked: Sequence[int] = ()
) -> dict[str, Any]:
    """A micro-batch as TRL hands it to the loss: prompts padded on the left, completions on the right.

    Rows with equal `prompts` (their lengths) share a prompt. `masked`: rows cut out by mask_truncated_completions.
    """
    import torch

    generator = torch.Generator().manual_seed(4)
    rows, width, long = len(prompts), max(prompts), max(lengths)
    texts = {length: torch.randint(0, 250, (length,), generator=generator) for length in set(prompts)}
    prompt_ids, prompt_mask = torch.full((rows, width), 256), torch.zeros(rows, width, dtype=torch.long)
    completion_ids, mask = torch.full((rows, long), 256), torch.zeros(rows, long, dtype=torch.long)
    for row, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
        prompt_ids[row, width - prompt :], prompt_mask[row, width - prompt :] = texts[prompt], 1
        completion_ids[row, :length] = torch.randint(0, 250, (length,), generator=generator)
        mask[row, :length] = 0 if row in masked else 1
    return {
        "prompt_ids": prompt_ids, "prompt_mask": prompt_mask, "completion_ids": completion_ids, "completion_mask": mask,
        "advantages": torch.tensor(advantages), "num_items_in_batch": torch.tensor(2.0 * sum(lengths)),
    }  # fmt: skip


def _off_policy() -> dict[str, Any]:
    """Ratios far from one, on both sides of every clip."""
    import torch

    inputs = batch([6, 6, 9, 9], [5, 8, 3, 7], [1.0, -0.5, 0.0, 2.0])
    noise = torch.randn(inputs["completion_ids"].shape, generator=torch.Generator().manual_seed(8))
    return inputs | {"old_per_token_logps": -5.0 + noise}


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "all rows live": lambda: batch([6, 6, 9, 9], [5, 8, 3, 7], [1.0, -1.0, 0.5, -0.5]),
    "half of the rows dead": lambda: batch([6, 6, 9, 9], [5, 12, 3, 7], [1.0, 0.0, 0.0, -0.5]),
    "a whole group dead": lambda: batch([6, 6, 14, 14], [5, 8, 13, 7], [1.0, -1.0, 0.0, 0.0]),
    "all rows dead": lambda: batch([6, 6], [5, 8], [0.0, 0.0]),
    "one-token answers": lambda: batch([6, 6, 6], [1, 8, 1], [1.0, -1.0, 0.25]),
    "every prompt once": lambda: batch([6, 7, 8, 9], [5, 8, 3, 7], [1.0, -1.0, 0.5, 0.0]),
    "a truncated row masked": lambda: batch([6, 6, 9, 9], [5, 8, 3, 7], [1.0, -1.0, 0.5, 0.5], masked=[1]),
    "the longest row masked": lambda: batch([6, 6, 9, 9], [5, 12, 3, 7], [1.0, -1.0, 0.0, 0.5], masked=[1]),
    "every live row masked": lambda: batch([6, 6], [5, 8], [1.0, 0.0], masked=[0]),
    "every row masked": lambda: batch([6, 6], [5, 8], [1.0, -1.0], masked=[0, 1]),
    "off policy": _off_policy,
}
