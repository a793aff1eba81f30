"""Batched text generation with the model that is being trained: the one path for rollouts and evaluation.

It does not load models, grade text or know about trainers. What makes it faster than `model.generate` at the same samples:

- a prompt that is answered n times is prefilled once and its cache repeated, and what all prompts of a batch begin with
  (the system prompt) is prefilled once for all;
- prompts of like lengths share a batch, so that there is little padding and often no attention mask;
- while decoding, the query heads that share a key head are handed to the attention kernel as positions of one head, so
  that grouped-query attention copies no keys or values (PyTorch's CPU kernel repeats them for every query head);
- keys and values are written into buffers of the final size instead of being concatenated anew at every token;
- tokens are drawn by inverting the distribution block by block (one uniform number a row); `torch.multinomial` draws an
  exponential for every entry of the vocabulary;
- rows that have stopped leave the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Unpack

from toolkit.engine.completions import Completion, Drawn, Draws, Prompts, Sampling, in_order
from toolkit.engine.lean import exact_for

if TYPE_CHECKING:
    import torch

SHRINK_AT = 0.75
"""The batch is compacted when less than this share of its rows is still running: a copy of the cache, so not at every stop."""


def generate(model: Any, prompts: Prompts, sampling: Sampling, **draws: Unpack[Draws]) -> list[Completion]:
    """The completions of every prompt (token ids), in prompt order: prompt 0 sample 0, prompt 0 sample 1, …."""
    return in_order(batches(model, prompts, sampling, **draws))


def batches(
    model: Any,
    prompts: Prompts,
    sampling: Sampling,
    *,
    done: Sequence[Drawn] = (),
    **draws: Unpack[Draws],
) -> Iterator[Drawn]:
    """What `generate` draws, batch by batch. `done`: the first batches of an equal call, which are not drawn again.

    A row's random numbers follow from the seed, its prompt's number and its sample, whatever is drawn beside it.
    """
    import torch

    def answer(batch: list[int], numbers: list[Numbers], greedy: torch.Tensor) -> list[Completion]:
        with torch.inference_mode(), _grouped_attention(model):
            chosen = [prompts[index] for index in batch]
            return _Decoder(model, chosen, sampling, numbers, greedy.to(model.device)).run(batch)

    return in_batches(prompts, answer, done=done, **draws)


def in_batches(
    prompts: Prompts,
    answer: Callable[[list[int], list[Numbers], torch.Tensor], list[Completion]],
    *,
    samples: int = 1,
    seed: int = 0,
    first: int = 0,
    batch_rows: int = 128,
    greedy_too: bool = False,
    done: Sequence[Drawn] = (),
) -> Iterator[Drawn]:
    """The batches that `answer` draws, given their prompts' indices, each row's numbers, and which rows [rows] take the
    likeliest token instead."""
    import torch

    order = list(like_lengths(prompts, max(1, batch_rows // (samples + greedy_too))))
    for batch in order[len(done) :]:
        rows = [(index, sample) for index in batch for sample in range(-greedy_too, samples)]
        numbers = [Numbers(seed, first + index, sample) for index, sample in rows]
        yield Drawn(answer(batch, numbers, torch.tensor([sample < 0 for _, sample in rows])))


class Numbers:
    """A row's random numbers in [0, 1), float32, one a token, made as they are asked for: a limit may be any number of tokens.

    `sample` -1 is the greedy answer, which uses none.
    """

    AHEAD = 64

    def __init__(self, seed: int, prompt: int, sample: int) -> None:
        import numpy

        self._source = numpy.random.default_rng([seed, prompt, sample + 1])
        self._known: list[float] = []

    def __getitem__(self, at: int) -> float:
        while at >= len(self._known):
            self._known += self._source.random(self.AHEAD, dtype="float32").tolist()
        return self._known[at]


def column(numbers: Sequence[Numbers], at: int, device: Any) -> torch.Tensor:
    """Every row's number for this token: [rows, 1]."""
    import torch

    return torch.tensor([row[at] for row in numbers], device=device)[:, None]


def like_lengths(prompts: Sequence[Sequence[int]], size: int) -> Iterator[list[int]]:
    """Indices of at most `size` prompts at a time, of lengths as equal as can be, so that little is padding."""
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    yield from (order[start : start + size] for start in range(0, len(order), size))


class _Decoder:
    """One batch from prefill to the last stop token. Shorter prompts are padded on the left and the padding masked."""

    def __init__(
        self,
        model: Any,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        numbers: Sequence[Numbers],
        greedy: torch.Tensor,
    ) -> None:
        import torch

        self.model, self.sampling, self.numbers, self.greedy = model, sampling, numbers, greedy
        self.samples = len(numbers) // len(prompts)
        self.length = max(len(prompt) for prompt in prompts)
        # Padding behind the shared beginning would take up room in a sliding window.
        alike = exact_for(model) or all(len(prompt) == self.length for prompt in prompts)
        self.shared = _shared_beginning(prompts) if alike else 0
        # Padding repeats the prompt's own first token: a token that a repetition penalty has seen anyway.
        padded = [
            [*prompt[: self.shared], *[prompt[0]] * (self.length - len(prompt)), *prompt[self.shared :]]
            for prompt in prompts
        ]
        self.ids = torch.tensor(padded, device=model.device)
        self.padding = torch.tensor([self.length - len(prompt) for prompt in prompts], device=model.device)

    def run(self, batch: Sequence[int]) -> list[Completion]:
        rows = [Completion(prompt_index) for prompt_index in batch for _ in range(self.samples)]
        running = list(range(len(rows)))
        logits = self._prefill()
        for position in range(self.length, self.length + self.sampling.max_new_tokens):
            tokens, logprobs = self._draw(logits, position - self.length)
            alive = self._record(rows, running, tokens.tolist(), logprobs.tolist())
            if not alive or position + 1 == self.length + self.sampling.max_new_tokens:
                break
            if len(alive) < SHRINK_AT * len(running):
                running, tokens = [running[slot] for slot in alive], self._keep(alive, tokens)
            logits = self._next(tokens, position)
        return rows

    def _record(
        self, rows: list[Completion], running: list[int], tokens: list[int], logprobs: list[float]
    ) -> list[int]:
        """Write each running row's new token down; the slots that go on. A stopped row's slot becomes -1."""
        alive = []
        for slot, row in enumerate(running):
            if row < 0:
                continue
            rows[row].token_ids.append(tokens[slot])
            rows[row].logprobs.append(logprobs[slot])
            if tokens[slot] in self.sampling.stop_token_ids:
                rows[row].truncated = False
                running[slot] = -1
            else:
                alive.append(slot)
        return alive

    def _keep(self, slots: list[int], tokens: torch.Tensor) -> torch.Tensor:
        import torch

        keep = torch.tensor(slots, device=tokens.device)
        self.seen, self.padding = self.seen[keep], self.padding[keep]
        self.numbers, self.greedy = [self.numbers[slot] for slot in slots], self.greedy[keep]
        self.cache.batch_select_indices(keep)
        return tokens[keep]

    def _prefill(self) -> torch.Tensor:
        import torch

        self.cache = _cache(self.model, self.length + self.sampling.max_new_tokens)
        places = torch.arange(self.length, device=self.ids.device)
        if self.shared:
            self._forward(self.ids[:1, : self.shared], places[: self.shared])
            self.cache.batch_repeat_interleave(len(self.ids))
        logits = self._forward(self.ids[:, self.shared :], places[self.shared :])
        if self.samples > 1:
            self.cache.batch_repeat_interleave(self.samples)
        self.seen = self.ids.repeat_interleave(self.samples, dim=0)
        self.padding = self.padding.repeat_interleave(self.samples)
        return logits.repeat_interleave(self.samples, dim=0)

    def _next(self, tokens: torch.Tensor, position: int) -> torch.Tensor:
        import torch

        if self.sampling.repetition_penalty != 1:
            self.seen = torch.cat([self.seen, tokens[:, None]], dim=1)
        return self._forward(tokens[:, None], torch.tensor([position], device=tokens.device))

    def _forward(self, ids: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Logits after the last of `ids` [rows, tokens], which stand at `places` [tokens] of the padded row."""
        import torch

        mask, positions = None, places[None]
        if places[-1] >= self.shared and self.padding.any():  # padding stands behind the shared beginning
            columns = torch.arange(int(places[-1]) + 1, device=ids.device)[None]
            mask = (columns < self.shared) | (columns >= self.shared + self.padding[:, None])
            positions = (places[None] - self.padding[:, None]).clamp(min=0)
        output = self.model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=mask,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1].float()

    def _draw(self, logits: torch.Tensor, at: int) -> tuple[torch.Tensor, torch.Tensor]:
        uniform = column(self.numbers, at, logits.device)
        return draw_tokens(logits, self.seen, self.sampling, greedy=self.greedy, uniform=uniform)


def draw_tokens(
    logits: torch.Tensor, seen: torch.Tensor, sampling: Sampling, *, greedy: torch.Tensor, uniform: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The next token of every row and its log-probability under the distribution it was drawn from, two [rows].

    logits [rows, vocabulary] float32; seen [rows, tokens]: what a repetition penalty looks at; greedy [rows]: rows that take
    the likeliest token and draw none; uniform [rows, 1]: the numbers in [0, 1) by which the others draw.
    """
    import torch

    likeliest = logits.argmax(dim=-1)
    if sampling.repetition_penalty != 1:
        logits = _penalise(logits, seen, sampling.repetition_penalty)
    if sampling.greedy:
        tokens = logits.argmax(dim=-1)
        return tokens, torch.log_softmax(logits, dim=-1).gather(1, tokens[:, None])[:, 0]
    probabilities = torch.softmax(truncate(logits / sampling.temperature, sampling), dim=-1)
    tokens = invert(probabilities, uniform).where(~greedy, likeliest)
    return tokens, probabilities.gather(1, tokens[:, None])[:, 0].log()


def _shared_beginning(prompts: Sequence[Sequence[int]]) -> int:
    """How many tokens all prompts begin with, at least one of each left over; 0 for a single prompt."""
    if len(prompts) == 1:
        return 0
    first, last = min(prompts, key=list), max(prompts, key=list)
    limit = min(len(prompt) for prompt in prompts) - 1
    return next((at for at in range(limit) if first[at] != last[at]), limit)


def invert(probabilities: torch.Tensor, uniform: torch.Tensor, block: int = 256) -> torch.Tensor:
    """The token of every row at `uniform` [rows, 1] of its mass: first a block by its mass, then a token inside the block."""
    import torch

    rows, size = probabilities.shape
    padded = (
        torch.nn.functional.pad(probabilities, (0, -size % block)) if size % block else probabilities
    )  # a pad of 0 copies
    blocks = padded.view(rows, -1, block)
    mass = blocks.sum(dim=-1).cumsum(dim=-1)
    target = uniform * mass[:, -1:]
    chosen = torch.searchsorted(mass, target, right=True).clamp(max=mass.shape[1] - 1)
    before = torch.cat([torch.zeros_like(mass[:, :1]), mass], dim=1).gather(1, chosen)
    inside = blocks[torch.arange(rows, device=chosen.device), chosen[:, 0]].cumsum(dim=-1)
    offset = torch.searchsorted(inside, target - before, right=True)
    last = (inside < inside[:, -1:]).sum(dim=-1, keepdim=True)  # never a token without mass, whatever the rounding
    return (chosen * block + torch.minimum(offset, last))[:, 0]


def _penalise(logits: torch.Tensor, seen: torch.Tensor, penalty: float) -> torch.Tensor:
    """Repetition penalty of CTRL (Keskar et al. 2019, arXiv:1909.05858): seen tokens' scores shrink towards unlikely."""
    scores = logits.gather(1, seen)
    return logits.scatter(1, seen, scores.where(scores < 0, scores / penalty).where(scores >= 0, scores * penalty))


def truncate(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """top-k, then nucleus (Holtzman et al. 2019, arXiv:1904.09751), then min-p (Nguyen et al. 2024, arXiv:2407.01082)."""
    if 0 < sampling.top_k < logits.shape[-1]:
        logits = logits.masked_fill(logits < logits.topk(sampling.top_k).values[:, -1:], -float("inf"))
    if sampling.top_p < 1:
        ordered, order = logits.sort(dim=-1, descending=True)
        mass = ordered.softmax(dim=-1).cumsum(dim=-1)
        beyond = mass - ordered.softmax(dim=-1) >= sampling.top_p
        logits = logits.masked_fill(beyond.scatter(1, order, beyond), -float("inf"))
    if sampling.min_p:
        probabilities = logits.softmax(dim=-1)
        floor = sampling.min_p * probabilities.max(dim=-1, keepdim=True).values
        logits = logits.masked_fill(probabilities < floor, -float("inf"))
    return logits


@contextmanager
def _grouped_attention(model: Any) -> Iterator[None]:
    """Decode through `_grouped_query_sdpa` where the model runs on PyTorch's attention; restored on leaving."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    if model.config._attn_implementation != "sdpa":
        yield
        return
    AttentionInterface.register("grouped_sdpa", _grouped_query_sdpa)
    AttentionMaskInterface.register("grouped_sdpa", sdpa_mask)
    model.set_attn_implementation("grouped_sdpa")
    try:
        yield
    finally:
        model.set_attn_implementation("sdpa")


def _grouped_query_sdpa(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of one new token: query [rows, heads, 1, size] becomes [rows, key heads, heads per key head, size]."""
    import torch
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    rows, heads, tokens, size = query.shape
    if tokens != 1:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    grouped = query.reshape(rows, key.shape[1], heads // key.shape[1], size)
    mixed = torch.nn.functional.scaled_dot_product_attention(
        grouped, key, value, attn_mask=attention_mask, scale=kwargs.get("scaling")
    )
    return mixed.reshape(rows, 1, heads, size), None


def _cache(model: Any, capacity: int) -> Any:
    """A transformers cache whose full-attention layers write into buffers of `capacity` tokens."""
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    class RoomyLayer(DynamicLayer):
        """DynamicLayer that grows inside a buffer; `keys` and `values` are views of what is filled."""

        def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
            if not self.is_initialized:
                self.lazy_initialization(key_states, value_states)
                self.rooms: list[Any] = [None, None]
            start = self.get_seq_length()
            self.rooms[0], self.keys = _append(self.rooms[0], self.keys, key_states, start, capacity)
            self.rooms[1], self.values = _append(self.rooms[1], self.values, value_states, start, capacity)
            return self.keys, self.values

    cache = DynamicCache(config=model.config)
    cache.layers = [RoomyLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def _append(
    room: torch.Tensor | None, view: torch.Tensor | None, new: torch.Tensor, start: int, capacity: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Write `new` [rows, heads, tokens, size] behind the `start` tokens of `view`: (buffer, view of what is filled).

    In place while `view` still lies in the buffer `room`; after rows were repeated or removed a new buffer is made.
    """
    rows, heads, tokens, size = new.shape
    if room is None or view is None or room.data_ptr() != view.data_ptr():
        room = new.new_empty(rows, heads, capacity, size)
        if start and view is not None:
            room[:, :, :start] = view
    room[:, :, start : start + tokens] = new
    return room, room[:, :, : start + tokens]
