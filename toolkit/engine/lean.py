"""TRL's GRPO loss with less arithmetic and the same gradient, for machines where arithmetic is the bottleneck (a CPU).

- Completions whose advantage is zero are left out: with `beta` 0 they add nothing to the gradient.
- The prompt of a group is computed once: prompt and completions form one sequence in which every completion sees the
  prompt and itself. Their logged entropy and clip ratios are those of the completions that are left.

It is used where it is exact: no KL term, and full attention in every layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

HEAD_TOKENS = 1024
"""Tokens whose logits over the whole vocabulary are held at once."""


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
            groups = packed_groups(input_ids, attention_mask, logits_to_keep)
            language_model = self.accelerator.unwrap_model(model)
            if hasattr(language_model, "get_base_model"):  # without an adapter it is the base itself
                language_model = language_model.get_base_model()
            return *log_probabilities(language_model, groups, input_ids, logits_to_keep, self.temperature), None

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


@dataclass
class Group:
    """Completions of one prompt, packed: `ids` [tokens] = prompt, completion, completion, …"""

    prompt: int
    rows: list[int]
    lengths: list[int]
    ids: torch.Tensor

    def positions(self) -> torch.Tensor:
        """Every completion continues the prompt's positions."""
        import torch

        after = [torch.arange(self.prompt, self.prompt + length) for length in self.lengths]
        return torch.cat([torch.arange(self.prompt), *after])

    def segments(self) -> torch.Tensor:
        """0 for the prompt, 1, 2, … for its completions."""
        import torch

        lengths = torch.tensor([self.prompt, *self.lengths])
        return torch.repeat_interleave(torch.arange(len(lengths)), lengths)

    def predecessors(self, row: int) -> list[int]:
        """Where the tokens stand that predict the tokens of the group's `row`-th completion."""
        start, length = self.prompt + sum(self.lengths[:row]), self.lengths[row]
        return [self.prompt - 1, *range(start, start + length - 1)][:length]


def packed_groups(input_ids: torch.Tensor, attention_mask: torch.Tensor, completion: int) -> list[Group]:
    """Rows [rows, prompt + completion], prompts padded on the left, completions on the right -> one group a prompt."""
    import torch

    mask, split = attention_mask.bool(), input_ids.shape[1] - completion
    by_prompt: dict[tuple[int, ...], list[int]] = {}
    for row in range(len(input_ids)):
        by_prompt.setdefault(tuple(input_ids[row, :split][mask[row, :split]].tolist()), []).append(row)
    groups = []
    for prompt, rows in by_prompt.items():
        texts = [input_ids[row, split:][mask[row, split:]] for row in rows]
        ids = torch.cat([input_ids.new_tensor(prompt), *texts])
        groups.append(Group(len(prompt), rows, [len(text) for text in texts], ids))
    return groups


def log_probabilities(
    model: Any, groups: Sequence[Group], input_ids: torch.Tensor, completion: int, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability and entropy of every completion token: two tensors [rows, completion], 0 where there is padding."""
    import torch

    hidden = _hidden_states(model, groups)
    size = hidden.shape[1]
    sources, targets, places = [], [], []
    for number, group in enumerate(groups):
        for at, (row, length) in enumerate(zip(group.rows, group.lengths, strict=True)):
            sources += [number * size + position for position in group.predecessors(at)]
            start = group.prompt + sum(group.lengths[:at])
            targets.append(group.ids[start : start + length])
            places += [row * completion + column for column in range(length)]
    chosen = hidden.reshape(-1, hidden.shape[-1])[torch.tensor(sources, dtype=torch.long)]
    parts = [
        _scores(model, states, ids, temperature)
        for states, ids in zip(chosen.split(HEAD_TOKENS), torch.cat(targets).split(HEAD_TOKENS), strict=True)
    ]
    index = torch.tensor(places, dtype=torch.long)
    shape = (len(input_ids), completion)
    return tuple(  # type: ignore[return-value]
        torch.zeros(shape[0] * shape[1]).index_put((index,), torch.cat(column)).view(shape)
        for column in zip(*parts, strict=True)
    )


def _hidden_states(model: Any, groups: Sequence[Group]) -> torch.Tensor:
    """Last hidden states [groups, tokens, size] of the packed sequences, padded on the right."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    ids = pad_sequence([group.ids for group in groups], batch_first=True)
    positions = pad_sequence([group.positions() for group in groups], batch_first=True)
    segments = pad_sequence([group.segments() for group in groups], batch_first=True, padding_value=-1)
    of_query, of_key = segments[:, :, None], segments[:, None, :]
    earlier = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
    seen = ((of_key == of_query) | (of_key == 0)) & earlier
    return model.model(
        input_ids=ids, position_ids=positions, attention_mask=seen[:, None], use_cache=False
    ).last_hidden_state


def _scores(
    model: Any, states: torch.Tensor, ids: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability of `ids` and entropy under the model's head, each [tokens], in float32."""
    import torch

    logits = model.lm_head(states).float() / temperature
    log_p = torch.log_softmax(logits, dim=-1)
    with torch.no_grad():  # logged only
        entropy = -(log_p.exp() * log_p).sum(dim=-1)
    return log_p.gather(1, ids[:, None])[:, 0], entropy
