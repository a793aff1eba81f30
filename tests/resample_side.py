"""What the tests of drawing groups again run in the process that imported unsloth first. Answers are plain data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from toolkit.recipe import Recipe
from unsloth_side import PAID, loaded, norm


def drawn_again_and_at_once(recipe: Recipe) -> dict[str, Any]:
    """A step whose dead groups were drawn again, and TRL's own batch of the groups that came out of it: their gradients."""
    import torch

    from toolkit.engine.rollout import RewardRecorder
    from toolkit.engine.trainers import build_grpo_trainer

    policy = loaded(recipe)
    rows = recipe.task.rows("train")
    recorder = RewardRecorder(PAID["spread"], {row.id: row for row in rows})
    trainer = build_grpo_trainer(policy, recipe, rows, recorder, Path("again"), [])
    policy.model.train()
    again = trainer._generate_and_score_completions(next(iter(trainer.get_train_dataloader())))
    replaced = sum(not entry["used"] for entry in recorder.take())
    once = _at_once(policy, recipe, rows, recorder, again)
    found = [_gradient(policy.model, trainer, batch) for batch in (again, once)]
    return {
        "replaced": replaced,
        "size": norm(found[1].values()),
        "apart": norm(found[0][name] - found[1][name] for name in found[1]),
        "advantages apart": float((again["advantages"] - once["advantages"]).abs().max()),
        "items": [int(batch["num_items_in_batch"]) for batch in (again, once)],
        "keys": [sorted(name for name, value in batch.items() if torch.is_tensor(value)) for batch in (again, once)],
    }


def _at_once(policy: Any, recipe: Recipe, rows: Any, recorder: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """The batch that the trainer without resampling makes of the completions in `batch`."""
    from toolkit.engine.trainers import build_grpo_trainer

    plain = recipe.model_copy(update={"grpo": recipe.grpo.model_copy(update={"resample_rounds": 0})})
    trainer = build_grpo_trainer(policy, plain, rows, recorder, Path("once"), [])
    of_prompt = {tuple(policy.prompt_ids(recipe.task.messages(row))): row for row in rows}
    prompts, answers, logprobs = (
        [value[row][mask[row].bool()].tolist() for row in range(len(value))]
        for value, mask in (
            (batch["prompt_ids"], batch["prompt_mask"]),
            (batch["completion_ids"], batch["completion_mask"]),
            (batch["sampling_per_token_logps"], batch["completion_mask"]),
        )
    )
    trainer.rollout_func = lambda *_: {"prompt_ids": prompts, "completion_ids": answers, "logprobs": logprobs}
    asked = [of_prompt[tuple(prompt)] for prompt in prompts]
    return trainer._generate_and_score_completions(
        [{"prompt": recipe.task.messages(row), "row_id": row.id} for row in asked]
    )


def _gradient(model: Any, trainer: Any, batch: dict[str, Any]) -> dict[str, Any]:
    from toolkit.engine.lean import _slices

    size = trainer.args.per_device_train_batch_size
    trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
    model.zero_grad()
    for part in _slices(batch, size):
        trainer._compute_loss(model, part).backward()
    named = model.named_parameters()
    return {name: weight.grad.clone() for name, weight in named if ".default." in name and weight.grad is not None}


def log_probabilities_at_their_tokens() -> dict[str, Any]:
    """Two batches in the layout of Unsloth's GPU trainer, put together: each log-probability is its token's id."""
    import torch
    from unsloth_zoo.rl_replacements import (
        calculate_pad_tokens_in_prompt,
        create_completion_attention_mask,
        left_pack_padding,
    )

    from toolkit.engine.resample import merged

    def window(prompt_ids: Any, ids: Any, left: int | None) -> tuple[Any, Any, int]:
        """Ids and mask of the part of the packed rows in which Unsloth looks for answers."""
        whole, width = torch.cat([prompt_ids, ids], dim=1), ids.shape[1]
        pads = calculate_pad_tokens_in_prompt(whole, width, 0)
        left = int(pads.max()) if left is None else left
        seen = left_pack_padding(whole, 0)[:, -(width + left) :]
        return seen, create_completion_attention_mask(seen, pads, left, 0), left

    def batch(prompts: list[int], lengths: list[int], start: int) -> dict[str, Any]:
        rows = range(len(prompts))
        longest, width = max(prompts), max(lengths)
        prompt_ids = torch.tensor([[0] * (longest - prompts[row]) + [7] * prompts[row] for row in rows])
        ids = torch.tensor(
            [[start + 10 * row + i for i in range(lengths[row])] + [0] * (width - lengths[row]) for row in rows]
        )
        seen, _, left = window(prompt_ids, ids, None)
        return {
            "prompt_ids": prompt_ids, "prompt_mask": prompt_ids != 0, "completion_ids": ids, "completion_mask": ids != 0,
            "advantages": torch.ones(len(prompts)), "num_items_in_batch": (ids != 0).sum(),
            "old_per_token_logps": seen.float(), "ref_per_token_logps": seen.float(),
            "max_left_pad": torch.tensor([[left]] * len(prompts)),
        }  # fmt: skip

    apart, tokens = 0.0, 0
    for first, second in (((4, 9), (6, 2)), ((3, 5), (11, 2)), ((8, 8), (1, 1))):
        found = merged(batch(list(first), [3, 2], 100), batch(list(second), [1, 4], 500), [0, 1], pad_token_id=0)
        one = merged(batch(list(first), [3, 2], 100), batch([second[0]], [5], 500), [1], pad_token_id=0)
        for result in (found, one):
            left = int(result["max_left_pad"].max())
            seen, mask, _ = window(result["prompt_ids"], result["completion_ids"], left)
            for name in ("old_per_token_logps", "ref_per_token_logps"):
                assert result[name].shape == seen.shape
                apart += float(((result[name] - seen) * mask).abs().sum())
            tokens += int(mask.sum())
    return {"apart": apart, "tokens": tokens}
