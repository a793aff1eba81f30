"""TRL's GRPO loss with less arithmetic and the same gradient, for machines where arithmetic is the bottleneck (a CPU).

- Completions whose advantage is zero are left out: with `beta` 0 they add nothing to the gradient.
- The prompt of a group is computed once: prompt and completions form one sequence in which every completion sees the
  prompt and itself. Their logged entropy and clip ratios are those of the completions that are left.

It is used where it is exact: no KL term, and full attention in every layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from toolkit.engine.lean_packed import Packed, hidden_states, pack

HEAD_ROWS = 128
"""Tokens whose logits over the whole vocabulary are worked on at once, so that they stay in the cache."""


def lean_trainer(base: Any) -> Any:
    """A subclass of the trainer class `base` (trl.GRPOTrainer)."""

    class LeanGRPOTrainer(base):
        def _prepare_inputs(self, generation_batch: Any) -> Any:
            """As TRL's, but rows keep their order: a backward pass then holds whole groups, which share their prompts.

            TRL shuffles them for optimiser steps on parts of a generation batch; here every step takes all of it.
            """
            if not self.model.training:
                return super()._prepare_inputs(generation_batch)
            if (
                self._step % (self.args.steps_per_generation * self.num_iterations) == 0
                or self._buffered_inputs is None
            ):
                scored = self._generate_and_score_completions(generation_batch)
                self._buffered_inputs = list(_slices(scored, self.args.per_device_train_batch_size))
            return self._buffered_inputs[self._step % self.args.steps_per_generation]

        def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
            import torch

            live = (inputs["advantages"] != 0) & inputs["completion_mask"].any(dim=1)  # cut rows may be masked out
            if not live.any():
                return torch.zeros((), device=live.device, requires_grad=True)
            share = _share(self.loss_type, live, inputs["completion_mask"])
            return super()._compute_loss(model, _only(inputs, live)) * share

        def _get_per_token_logps_and_entropies(
            self, model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: int, *args: Any, **kwargs: Any
        ) -> tuple[Any, Any, None]:
            packed = pack(input_ids, attention_mask, logits_to_keep)
            language_model = self.accelerator.unwrap_model(model)
            if hasattr(language_model, "get_base_model"):  # without an adapter it is the base itself
                language_model = language_model.get_base_model()
            shape = (len(input_ids), logits_to_keep)
            return *log_probabilities(language_model, packed, shape, self.temperature), None

    return LeanGRPOTrainer


def exact_for(model: Any) -> bool:
    """Whether every layer of the model attends to all earlier tokens, so that a custom mask says everything."""
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    return kinds == {"full_attention"} and getattr(config, "sliding_window", None) is None


def _slices(batch: dict[str, Any], rows: int) -> Iterator[dict[str, Any]]:
    import torch

    total = len(batch["advantages"])
    for start in range(0, total, rows):
        yield {
            name: value[start : start + rows] if isinstance(value, torch.Tensor) and value.dim() else value
            for name, value in batch.items()
        }


def _share(loss_type: str, live: Any, mask: Any) -> Any:
    """What a mean over the live completions must be multiplied by to be the mean over all of them."""
    if loss_type == "dapo":  # divides by the tokens of the whole generation batch, which stay what they are
        return 1.0
    if loss_type == "bnpo":  # a mean over tokens
        return mask[live].sum() / mask.sum()
    return live.float().mean()  # means over completions


def _only(inputs: dict[str, Any], live: Any) -> dict[str, Any]:
    """The live rows, without columns that are padding in all of them."""
    import torch

    rows = len(live)
    kept = {
        name: value[live] if isinstance(value, torch.Tensor) and value.dim() and value.shape[0] == rows else value
        for name, value in inputs.items()
    }
    prompt, completion = kept["prompt_mask"].any(dim=0), kept["completion_mask"].any(dim=0)
    for name, value in kept.items():
        if isinstance(value, torch.Tensor) and value.dim() == 2:
            kept[name] = value[:, prompt] if name.startswith("prompt_") else value[:, completion]
    return kept


def log_probabilities(model: Any, packed: Packed, shape: tuple[int, int], temperature: float) -> tuple[Any, Any]:
    """Log-probability and entropy of every completion token: two tensors of `shape` [rows, completion], 0 where there is padding."""
    import torch

    from toolkit.engine.lean_layers import scores

    real = packed.completions >= 0
    hidden = hidden_states(model, packed)[packed.predecessors()[real]]
    ids = packed.ids[packed.completions[real]]
    found = scores(hidden, model.lm_head.weight, ids, temperature, at_once=HEAD_ROWS)
    columns = torch.arange(packed.completions.shape[1])
    places = (packed.rows[:, None] * shape[1] + columns)[real]
    return tuple(torch.zeros(shape[0] * shape[1]).index_put((places,), column).view(shape) for column in found)  # type: ignore[return-value]
