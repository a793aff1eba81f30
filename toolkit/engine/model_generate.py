"""Batched generation through the model's own `generate`: the plain way on a GPU. It draws tokens by `generate`'s formulas.

There Unsloth puts forward passes of its own in place of the model's. They take transformers' cache for a tuple and hand a
new one back, so the toolkit's decoder would answer from an empty cache; Unsloth's `generate` knows how to drive them. It is
asked for nothing but logits: repetition penalty, filters, temperature and the draw are the toolkit's, so that the
log-probabilities are those of the distribution that was drawn from and the seed decides what is drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from toolkit.engine.completions import Completion, Drawn, Draws, Prompts, Sampling
from toolkit.engine.generate import Numbers, column, draw_tokens, in_batches

if TYPE_CHECKING:
    import torch

NOTHING_ADDED = {
    "do_sample": False,
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "num_beams": 1,
    "min_length": 0,
}
"""What a checkpoint's generation config may add to the logits, off: what is passed is stronger than what it says."""


def batches(
    model: Any, prompts: Prompts, sampling: Sampling, *, done: Sequence[Drawn] = (), **draws: Unpack[Draws]
) -> Iterator[Drawn]:
    """As `generate.batches`, with the same random numbers."""

    def answer(batch: list[int], numbers: list[Numbers], greedy: torch.Tensor) -> list[Completion]:
        rows = [Completion(index) for index in batch for _ in range(len(numbers) // len(batch))]
        drawer = _Drawer(sampling, numbers, greedy.to(model.device))
        _generate(model, [prompts[row.prompt_index] for row in rows], sampling, drawer)
        drawer.write(rows)
        return rows

    return in_batches(prompts, answer, done=done, **draws)


def _generate(model: Any, prompts: Prompts, sampling: Sampling, drawer: _Drawer) -> None:
    """Prompts padded on the left, with their own first token: one that a repetition penalty has seen anyway."""
    import torch
    from transformers import LogitsProcessorList

    length = max(map(len, prompts))
    ids = [[prompt[0]] * (length - len(prompt)) + list(prompt) for prompt in prompts]
    mask = [[0] * (length - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    stops = list(sampling.stop_token_ids) or [-1]  # without any the model's own would stop
    with torch.no_grad():
        model.generate(
            input_ids=torch.tensor(ids, device=model.device),
            attention_mask=torch.tensor(mask, device=model.device),
            logits_processor=LogitsProcessorList([drawer]),
            max_new_tokens=sampling.max_new_tokens,
            eos_token_id=stops,
            pad_token_id=max(0, stops[0]),
            **NOTHING_ADDED,
        )


class _Drawer:
    """A logits processor that draws: it leaves the token it drew as the only one, which `generate` then takes."""

    def __init__(self, sampling: Sampling, numbers: Sequence[Numbers], greedy: torch.Tensor) -> None:
        self.sampling, self.numbers, self.greedy = sampling, numbers, greedy
        self.tokens: list[torch.Tensor] = []
        self.logprobs: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        import torch

        uniform = column(self.numbers, len(self.tokens), scores.device)
        tokens, logprobs = draw_tokens(scores.float(), input_ids, self.sampling, greedy=self.greedy, uniform=uniform)
        self.tokens.append(tokens)
        self.logprobs.append(logprobs)
        return torch.full_like(scores, -float("inf")).scatter(1, tokens[:, None], 0.0)

    def write(self, rows: Sequence[Completion]) -> None:
        """Each row up to its stop token; what was drawn after it is nobody's."""
        import torch

        tokens, logprobs = torch.stack(self.tokens, dim=1).tolist(), torch.stack(self.logprobs, dim=1).tolist()
        for row, ids, values in zip(rows, tokens, logprobs, strict=True):
            end = next((at + 1 for at, token in enumerate(ids) if token in self.sampling.stop_token_ids), None)
            row.token_ids, row.logprobs, row.truncated = ids[:end], values[:end], end is None
