"""The training model's weights as vLLM loads them: a checkpoint's names, 16-bit or wider, the adapter added in. It knows no vLLM.

Added in is exact: the sum is formed in float32 and rounded once, as when peft merges. 4-bit weights are dequantised first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Named = tuple[str, "torch.Tensor"]


def refusal(model: Any, adapter: str | None) -> str | None:
    """Why this adapter cannot be added into the weights one by one; None where it can."""
    for path, layer in _adapted(model, adapter):
        if getattr(layer, "lora_variant", {}).get(adapter) is not None:
            return f"the adapter changes {path} by more than a sum (DoRA, aLoRA)"
        if getattr(layer, "lora_embedding_A", {}).get(adapter) is not None or path.endswith("lm_head"):
            return f"the adapter changes {path}, which may be tied"
    if any(adapter in (getattr(module, "modules_to_save", None) or ()) for module in model.modules()):
        return "the adapter replaces whole modules"
    return None


def fingerprint(model: Any, adapter: str | None) -> str:
    """A hash of all that decides `checkpoint`'s tensors, apart from the frozen base: equal texts, equal weights."""
    import torch

    digest = hashlib.sha256(b"base" if adapter is None else adapter.encode())
    for path, layer in _adapted(model, adapter):
        digest.update(f"{path} {layer.scaling[adapter]}".encode())
    for name, parameter in model.named_parameters():
        if f".{adapter}." in name or (parameter.requires_grad and not _of_an_adapter(name)):
            digest.update(name.encode())
            digest.update(parameter.detach().contiguous().view(torch.uint8).cpu().numpy())
    return digest.hexdigest()


def checkpoint(model: Any, adapter: str | None) -> Iterator[Named]:
    """Every weight by the name that the base's checkpoint gives it; tied ones once."""
    adapted = dict(_adapted(model, adapter))
    for name, parameter in _base(model).named_parameters():
        if not _of_an_adapter(name):
            yield _in_checkpoint(name), _with_adapter(name, parameter, adapted, adapter)


def changing(model: Any, adapter: str | None) -> Iterator[Named]:
    """Those weights of `checkpoint` that any adapter changes, with their neighbours: vLLM holds q, k and v as one matrix.

    A model without adapters is trained as a whole: all weights."""
    if not hasattr(model, "peft_config"):
        yield from checkpoint(model, adapter)
        return
    adapted = dict(_adapted(model, adapter))
    blocks = {path.rpartition(".")[0] for path, _ in _adapted(model, None, every=True)}
    for name, parameter in _base(model).named_parameters():
        plain = _in_checkpoint(name)
        if not _of_an_adapter(name) and plain.rpartition(".")[0].rpartition(".")[0] in blocks:
            yield plain, _with_adapter(name, parameter, adapted, adapter)


def _base(model: Any) -> Any:
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _adapted(model: Any, adapter: str | None, *, every: bool = False) -> Iterator[tuple[str, Any]]:
    """The layers that this adapter changes (or any adapter), by their path in the base."""
    for path, module in _base(model).named_modules():
        names = [*getattr(module, "lora_A", ()), *getattr(module, "lora_embedding_A", ())]
        if adapter in names or (every and names):
            yield path, module


def _of_an_adapter(name: str) -> bool:
    return ".lora_" in name or ".modules_to_save." in name


def _in_checkpoint(name: str) -> str:
    return name.replace(".base_layer.", ".").replace(".original_module.", ".")


def _with_adapter(name: str, parameter: Any, adapted: dict[str, Any], adapter: str | None) -> torch.Tensor:
    weight = _dense(parameter)
    path, _, part = _in_checkpoint(name).rpartition(".")
    if part != "weight" or path not in adapted:
        return weight
    return (weight.float() + adapted[path].get_delta_weight(adapter).float()).to(weight.dtype)


def _dense(parameter: Any) -> torch.Tensor:
    """A plain tensor of the weight's own shape; NF4 becomes what its layer multiplies with."""
    state = getattr(parameter, "quant_state", None)
    if state is None:
        return parameter.detach()
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(parameter.data, state)
