"""How vLLM draws the next token here: by the formulas of `generate`, with random numbers that belong to the row alone.

vLLM's own sampler fills a vocabulary of exponentials for every row, sorts for top-p, and writes the log-probabilities of the
whole vocabulary down. Here one uniform number a token inverts the distribution. The numbers of a row follow from the seed,
its prompt and its sample, so its text does not depend on what is drawn beside it, but for rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolkit.engine.completions import Sampling
from toolkit.engine.generate import Numbers, invert, truncate


class Dice:
    """The uniform numbers of the rows that are being drawn, and how they are used."""

    def __init__(self) -> None:
        self.sampling = Sampling(max_new_tokens=1)
        self.rows: dict[str, Numbers] = {}
        """By the row's key: numbers in [0, 1), one a token."""

    def throw(self, key: str, seed: int, prompt: int, sample: int) -> None:
        """Numbers for one row, as `generate` draws them."""
        self.rows[key] = Numbers(seed, prompt, sample)


def install(worker: Any, dice: Dice) -> None:
    """Put this way of drawing into a vLLM worker (`collective_rpc`)."""
    worker.model_runner.sampler = _sampler_kind()(worker.model_runner, dice)


def _sampler_kind() -> Any:
    import torch
    from vllm.v1.outputs import LogprobsTensors, SamplerOutput  # type: ignore[import-not-found]
    from vllm.v1.sample.sampler import Sampler  # type: ignore[import-not-found]

    class RowSampler(Sampler):
        """vLLM's sampler up to the penalties; from there on `generate`'s."""

        def __init__(self, runner: Any, dice: Dice) -> None:
            super().__init__("processed_logprobs")
            self.runner, self.dice = runner, dice

        def forward(self, logits: Any, sampling_metadata: Any, *_: Any, **__: Any) -> Any:
            logits = self.apply_logits_processors(logits.float(), sampling_metadata, False)
            tokens, logprobs = draw_rows(logits, sampling_metadata.temperature, self.dice.sampling, self._uniform())
            ids = tokens.to(torch.int32)[:, None]
            return SamplerOutput(
                sampled_token_ids=ids,
                logprobs_tensors=LogprobsTensors(ids, logprobs[:, None], torch.zeros(len(ids), dtype=torch.int32)),
            )

        def _uniform(self) -> Any:
            """Each row's number for its next token; 0 where vLLM tries itself out."""
            requests: Mapping[str, Any] = self.runner.requests
            states = [requests[name] for name in self.runner.input_batch.req_ids]
            keyed = [(state.sampling_params.extra_args["row"], len(state.output_token_ids)) for state in states]
            return torch.tensor([self.dice.rows[key][at] for key, at in keyed])[:, None]

    return RowSampler


def draw_rows(logits: Any, temperatures: Any, sampling: Sampling, uniform: Any) -> tuple[Any, Any]:
    """The next token of every row and its log-probability. A row of temperature 0 takes the likeliest; None: all do."""
    import torch

    if temperatures is None or sampling.greedy:
        tokens = logits.argmax(dim=-1)
        return tokens, torch.log_softmax(logits, dim=-1).gather(1, tokens[:, None])[:, 0]
    greedy = temperatures == 0
    likeliest = logits.argmax(dim=-1) if greedy.any() else None
    scaled = logits if sampling.temperature == 1 else logits / sampling.temperature
    probabilities = torch.softmax(truncate(scaled, sampling), dim=-1)
    tokens = invert(probabilities, uniform)
    if likeliest is not None:
        tokens = tokens.where(~greedy, likeliest)
    return tokens, probabilities.gather(1, tokens[:, None])[:, 0].log()
