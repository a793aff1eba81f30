"""What is asked of a generator and what comes back: plain values that every way of generating shares."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

Prompts = Sequence[Sequence[int]]
"""Token ids, prompt by prompt."""


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn. temperature 0 is greedy. top_k 0 and min_p None are off."""

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float | None = None
    repetition_penalty: float = 1.0
    stop_token_ids: tuple[int, ...] = ()

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


class Draws(TypedDict, total=False):
    """How often each prompt is answered. A draw depends on the seed, its prompt's number and its sample, and on no batch."""

    samples: int
    """Completions a prompt, 1 where it is left out."""
    seed: int
    first: int
    """The number of the first prompt, 0 where it is left out: processes that share the prompts of a step draw as one would."""
    batch_rows: int
    """Completions generated together: speed and memory."""
    greedy_too: bool
    """One completion more before them, which takes the likeliest token each time."""


@dataclass
class Completion:
    """Sampled token ids, the stop token included where there was one, and each token's log-probability when sampled."""

    prompt_index: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    truncated: bool = True


@dataclass(frozen=True)
class Drawn:
    """The completions of one batch."""

    rows: list[Completion]


def in_order(drawn: Iterable[Drawn]) -> list[Completion]:
    """The completions of all batches in prompt order."""
    return sorted((row for batch in drawn for row in batch.rows), key=lambda row: row.prompt_index)
