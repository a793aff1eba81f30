"""Completions of shared prompts as one sequence without padding, and attention that knows which token sees which.

Every prompt stands in it once. A prompt sees itself, a completion its prompt and itself, and only those products are
computed. It knows nothing of rewards or losses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

FEW_PRODUCTS = 1 << 20
"""Products of queries and keys, in one layer, up to which they are kept for the way back: 6 MiB."""


@dataclass(frozen=True)
class Packed:
    """`ids` [tokens] and `positions` [tokens]: prompt, its completions, next prompt, …

    `prompts` [prompts, longest] and `completions` [rows, longest] say where in it their tokens stand, -1 behind the end;
    `prompt_of` [rows] is each completion's prompt, `rows` [rows] its row in the batch.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    prompts: torch.Tensor
    completions: torch.Tensor
    prompt_of: torch.Tensor
    rows: torch.Tensor

    def predecessors(self) -> torch.Tensor:
        """Where the token stands that predicts each token of the completions: as `completions`."""
        import torch

        last = self.prompts[self.prompt_of].max(dim=1, keepdim=True).values
        return torch.cat([last, self.completions[:, :-1]], dim=1)

    def attention_masks(self) -> tuple[torch.Tensor, torch.Tensor]:
        """What prompts see of prompts [prompts, longest, longest], and completions of prompt and completion."""
        import torch

        def earlier(places: torch.Tensor) -> torch.Tensor:
            size = places.shape[1]
            return torch.ones(size, size, dtype=torch.bool).tril().expand(len(places), size, size)

        width = self.completions.shape[1]
        of_prompt = (self.prompts >= 0)[self.prompt_of][:, None].expand(-1, width, -1)
        return earlier(self.prompts), torch.cat([of_prompt, earlier(self.completions)], dim=2)

    def order(self) -> torch.Tensor:
        """For every token, where it stands among all places of `prompts` and then of `completions`."""
        import torch

        places = torch.cat([self.prompts.flatten(), self.completions.flatten()])
        order = torch.empty(len(self.ids), dtype=torch.long)
        order[places[places >= 0]] = (places >= 0).nonzero()[:, 0]
        return order


def pack(input_ids: torch.Tensor, attention_mask: torch.Tensor, completion: int) -> Packed:
    """Of rows [rows, prompt + completion], prompts padded on the left, completions (the last columns) on the right."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    mask, split = attention_mask.bool(), input_ids.shape[1] - completion
    by_prompt: dict[tuple[int, ...], list[int]] = {}
    for row in range(len(input_ids)):
        by_prompt.setdefault(tuple(input_ids[row, :split][mask[row, :split]].tolist()), []).append(row)
    ids, positions, prompts, completions, prompt_of, at = [], [], [], [], [], 0
    for number, (prompt, rows) in enumerate(by_prompt.items()):
        parts = [input_ids.new_tensor(prompt), *(input_ids[row, split:][mask[row, split:]] for row in rows)]
        for part, text in enumerate(parts):
            (completions if part else prompts).append(torch.arange(at, at := at + len(text)))
            positions.append(torch.arange(len(text)) + (len(prompt) if part else 0))
        ids += parts
        prompt_of += [number] * len(rows)
    return Packed(
        ids=torch.cat(ids),
        positions=torch.cat(positions),
        prompts=pad_sequence(prompts, batch_first=True, padding_value=-1),
        completions=pad_sequence(completions, batch_first=True, padding_value=-1),
        prompt_of=torch.tensor(prompt_of),
        rows=torch.tensor([row for rows in by_prompt.values() for row in rows]),
    )


@dataclass(frozen=True)
class Layout:
    """What every layer's attention needs of a `Packed`, made once."""

    prompts: torch.Tensor
    completions: torch.Tensor
    prompt_of: torch.Tensor
    masks: tuple[torch.Tensor, torch.Tensor]
    order: torch.Tensor


def hidden_states(model: Any, packed: Packed) -> torch.Tensor:
    """Last hidden states [tokens, size] of a packed sequence."""
    _register()
    layout = Layout(
        packed.prompts.clamp(min=0), packed.completions.clamp(min=0), packed.prompt_of, packed.attention_masks(), packed.order()
    )  # fmt: skip
    output = model.model(
        input_ids=packed.ids[None], position_ids=packed.positions[None], use_cache=False, packed_layout=layout
    )
    return output.last_hidden_state[0]


def can_pack(model: Any) -> bool:
    """Whether the model's attention is the one that `hidden_states` stands in for."""
    return model.config.get_text_config()._attn_implementation == "sdpa"


def _register() -> None:
    """Extend transformers' "sdpa": a call without a layout is what it was. By name, so that a recomputation finds it, too."""
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    def attention(module: Any, query: Any, key: Any, value: Any, mask: Any, **kwargs: Any) -> tuple[Any, None]:
        layout = kwargs.pop("packed_layout", None)
        if layout is None:
            return sdpa_attention_forward(module, query, key, value, mask, **kwargs)
        return _attend(query, key, value, layout, kwargs.get("scaling"), kwargs.get("dropout", 0.0)), None

    AttentionInterface.register("sdpa", attention)


def _attend(query: Any, key: Any, value: Any, layout: Layout, scale: float | None, dropout: float) -> torch.Tensor:
    """Queries [1, heads, tokens, size] of a packed sequence -> [1, tokens, heads, size]."""
    import torch

    q, k, v = (states[0].transpose(0, 1) for states in (query, key, value))
    prompt_q, prompt_k, prompt_v = (states[layout.prompts] for states in (q, k, v))
    of_prompts = _grouped(prompt_q, prompt_k, prompt_v, layout.masks[0], scale, dropout)
    keys = torch.cat([prompt_k[layout.prompt_of], k[layout.completions]], dim=1)
    values = torch.cat([prompt_v[layout.prompt_of], v[layout.completions]], dim=1)
    of_completions = _grouped(q[layout.completions], keys, values, layout.masks[1], scale, dropout)
    return torch.cat([of_prompts.flatten(0, 1), of_completions.flatten(0, 1)])[layout.order][None]


def _grouped(query: Any, key: Any, value: Any, mask: Any, scale: float | None, dropout: float) -> torch.Tensor:
    """Attention for query [rows, tokens, heads, size], key and value [rows, seen, key heads, size], mask [rows, tokens, seen].

    The query heads of a key head stand one after another as positions of one head, so that keys are not copied for them.
    """
    import torch

    rows, tokens, heads, size = query.shape
    kinds = key.shape[2]
    stacked = query.view(rows, tokens, kinds, heads // kinds, size).permute(0, 2, 3, 1, 4)
    states, keys, values = stacked.reshape(rows, kinds, -1, size), key.transpose(1, 2), value.transpose(1, 2)
    mask = mask.repeat(1, heads // kinds, 1)[:, None]
    if rows * heads * tokens * key.shape[1] <= FEW_PRODUCTS and not dropout:
        mixed = _written_out(states, keys, values, mask, size**-0.5 if scale is None else scale)
    else:
        mixed = torch.nn.functional.scaled_dot_product_attention(
            states, keys, values, attn_mask=mask, dropout_p=dropout, scale=scale
        )
    return mixed.view(stacked.shape).permute(0, 3, 1, 2, 4).reshape(query.shape)


def _written_out(query: Any, key: Any, value: Any, mask: Any, scale: float) -> torch.Tensor:
    """Attention by its formula: half the time of PyTorch's kernel for a processor, but it keeps the products."""
    import torch

    products = (query * scale) @ key.transpose(-1, -2)
    shares = torch.softmax(products.masked_fill(~mask, -float("inf")), dim=-1, dtype=torch.float32)
    return shares.to(value.dtype) @ value
