"""The two matrix products of training that libraries spend most on, with less traffic: a projection with its adapter, and the head.

Both are for a processor. PEFT computes an adapter in float32 beside 16-bit weights and converts to and fro at every
projection; here all is computed in the activations' type, as Unsloth does on a GPU. The head goes through the vocabulary
in blocks that stay in the cache, and keeps 16-bit logits for the way back.
"""

from __future__ import annotations

from typing import Any

import torch


class _Adapted(torch.autograd.Function):
    """x W' + s (x A') B', for x [..., in], W [out, in], A [rank, in], B [out, rank]. W is frozen."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, a: Any, b: Any, scaling: float) -> Any:
        rows = x.reshape(-1, x.shape[-1])
        down, up = a.to(x.dtype), (b * scaling).to(x.dtype)
        inner = rows @ down.T
        ctx.save_for_backward(rows, weight, down, up, inner)
        ctx.scaling = scaling
        return (rows @ weight.T).addmm_(inner, up.T).view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:  # type: ignore[override]
        rows, weight, down, up, inner = ctx.saved_tensors
        out = grad.reshape(-1, grad.shape[-1])
        between = out @ up
        to_x = (out @ weight).addmm_(between, down).view(*grad.shape[:-1], -1) if ctx.needs_input_grad[0] else None
        return to_x, None, (between.T @ rows).float(), (out.T @ inner).float() * ctx.scaling, None


def fuse_adapters(model: Any, adapter: str = "default") -> None:
    """Let every plain LoRA projection of the model that computes with this adapter alone do so by `_Adapted`.

    A projection is not plain with dropout, a bias, DoRA or 4-bit weights; it stays as it is.
    """
    from peft.tuners.lora.layer import Linear

    for layer in model.modules():
        if type(layer) is Linear and _plain(layer, adapter):
            layer.forward = _forward(layer, adapter)


def _plain(layer: Any, adapter: str) -> bool:
    base = layer.get_base_layer()
    return (
        adapter in layer.lora_A
        and type(base) is torch.nn.Linear
        and base.bias is None
        and layer.lora_B[adapter].bias is None
        and isinstance(layer.lora_dropout[adapter], torch.nn.Identity)
        and layer.lora_variant.get(adapter) is None
    )


def _forward(layer: Any, adapter: str) -> Any:
    """The layer's `forward`, which leaves to PEFT what is anything else than training this adapter."""
    theirs = layer.forward

    def forward(x: Any, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs or layer.disable_adapters or layer.merged or layer.active_adapters != [adapter]:
            return theirs(x, *args, **kwargs)
        a, b, weight = layer.lora_A[adapter].weight, layer.lora_B[adapter].weight, layer.get_base_layer().weight
        return _Adapted.apply(x, weight, a, b, layer.scaling[adapter])

    return forward


class _Scores(torch.autograd.Function):
    """Log-probability and entropy of tokens under softmax(states W' / temperature); the entropy has no gradient."""

    @staticmethod
    def forward(ctx: Any, states: Any, weight: Any, ids: Any, temperature: float, at_once: int) -> Any:
        kept, totals, scores, entropies = [], [], [], []
        for rows, chosen in zip(states.split(at_once), ids.split(at_once), strict=True):
            kept.append(rows @ weight.T)
            logits = _scaled(kept[-1], temperature)
            totals.append(total := logits.logsumexp(dim=-1))
            scores.append(logits.gather(1, chosen[:, None])[:, 0] - total)
            weights = (logits - total[:, None]).exp_()
            entropies.append(total - torch.linalg.vecdot(weights, logits))
        ctx.save_for_backward(states, weight, ids, torch.cat(totals), *kept)
        ctx.temperature = temperature
        entropy = torch.cat(entropies)
        ctx.mark_non_differentiable(entropy)
        return torch.cat(scores), entropy

    @staticmethod
    def backward(ctx: Any, grad: Any, _: Any) -> Any:  # type: ignore[override]
        states, weight, ids, totals, *kept = ctx.saved_tensors
        to_states, to_weight = torch.empty_like(states), torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        at = 0
        for logits in kept:
            part = slice(at, at := at + len(logits))
            share = grad[part, None] / ctx.temperature
            slope = _scaled(logits, ctx.temperature).sub_(totals[part, None]).exp_().mul_(-share)
            slope.scatter_add_(1, ids[part, None], share)
            slope = slope.to(weight.dtype)
            torch.mm(slope, weight, out=to_states[part])
            if to_weight is not None:
                to_weight.addmm_(slope.T, states[part])
        return to_states, to_weight, None, None, None


def _scaled(logits: Any, temperature: float) -> Any:
    """In float32 and a tensor of its own, as it is written over."""
    logits = logits.to(torch.float32, copy=True)
    return logits if temperature == 1 else logits.div_(temperature)


def scores(states: Any, weight: Any, ids: Any, temperature: float, *, at_once: int) -> tuple[Any, Any]:
    """Of `ids` [tokens], predicted by hidden `states` [tokens, size] under the head's `weight` [vocabulary, size]:
    log-probabilities and entropies, each [tokens], in float32. `at_once`: tokens whose logits are worked on together."""
    return _Scores.apply(states, weight, ids, temperature, at_once)  # type: ignore[return-value]
