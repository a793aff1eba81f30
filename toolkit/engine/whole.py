"""All weights of a model, as full fine-tuning trains them: saved, read back, and put in the base's place for a while.

A folder of them is one that transformers opens: config and weights by the names of the base's checkpoint, as they are in
memory (float32 while training). It writes no tokenizer: the base's is used. Adapters are `load`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.errors import EngineError
from toolkit.rundir import WHOLE_WEIGHTS

if TYPE_CHECKING:
    import torch

HINT = "model.full_finetuning: false"


def require_trainable(model: Any) -> None:
    """Every weight is trained, in float32, under one name. What was loaded otherwise is an error before the first step."""
    import torch

    held = weights_of(model)
    if frozen := [name for name, weight in held.items() if not weight.requires_grad]:
        raise EngineError(f"{len(frozen)} weights would not be trained, {frozen[0]} for one", hint=HINT)
    if narrow := [name for name, weight in held.items() if weight.dtype != torch.float32]:
        what = f"{narrow[0]} is in {held[narrow[0]].dtype}: most steps of an optimiser are lost in 16 bits"
        raise EngineError(what, hint=HINT)


def weights_of(model: Any) -> Mapping[str, torch.Tensor]:
    """Every parameter once (a tied head is its embedding), by the name that the base's checkpoint gives it."""
    from transformers.core_model_loading import revert_weight_conversion

    held = dict(model.named_parameters())
    named = revert_weight_conversion(model, held)
    if {id(weight) for weight in named.values()} != {id(weight) for weight in held.values()}:
        raise EngineError("the weights of this model lie otherwise in its checkpoint than in memory", hint=HINT)
    return named


def save(model: Any, folder: Path) -> None:
    """One file of weights, and the configuration to open it with."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: weight.detach().cpu().contiguous() for name, weight in weights_of(model).items()}
    save_file(tensors, folder / WHOLE_WEIGHTS, metadata={"format": "pt"})
    model.config.save_pretrained(folder)


def read(model: Any, folder: Path) -> None:
    """Fill the model with saved weights, one to one."""
    import torch

    saved = _saved(model, folder)
    with torch.no_grad():
        for name, weight in weights_of(model).items():
            weight.copy_(saved[name])


@contextmanager
def in_place(model: Any, folder: Path) -> Iterator[None]:
    """The saved weights in the model within the block; afterwards its own ones again, which were not touched."""
    saved, held = _saved(model, folder), weights_of(model)
    kept = {name: weight.data for name, weight in held.items()}
    try:
        for name, weight in held.items():
            weight.data = saved.pop(name).to(weight.device, weight.dtype)
        yield
    finally:
        for name, weight in held.items():
            weight.data = kept[name]


def _saved(model: Any, folder: Path) -> dict[str, torch.Tensor]:
    """EngineError where the folder's weights are not those of such a model. Of a checkpoint they may lie in several files."""
    from safetensors.torch import load_file

    files = sorted(folder.glob("model*.safetensors"))
    saved = {name: tensor for file in files for name, tensor in load_file(file).items()}
    held = weights_of(model)
    odd = [name for name in held if name not in saved or saved[name].shape != held[name].shape]
    if odd or len(saved) > len(held):
        more = odd or sorted(saved.keys() - held.keys())
        raise EngineError(f"the saved weights do not fit the model: {more[:3]}", where=str(folder))
    return saved
