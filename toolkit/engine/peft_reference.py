"""An adapter on a plain transformers model through PEFT: what merged files are compared with. No Unsloth, no file is written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def with_adapter(model: Any, folder: Path) -> Any:
    """The model with the adapter of this folder on it, not merged. (transformers' own `load_adapter` leaves out DoRA's
    magnitudes and `modules_to_save`.)"""
    from peft import PeftModel

    return PeftModel.from_pretrained(model, str(folder))


def merges(model: Any) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Name of each tensor that the adapter changes, as it was and as PEFT merges it, both in the model's type.

    `model` comes from `with_adapter` and is as before afterwards.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils import ModulesToSaveWrapper

    for path, module in model.get_base_model().named_modules():
        if isinstance(module, BaseTunerLayer):
            yield f"{path}.weight", *_merged(module)
        elif isinstance(module, ModulesToSaveWrapper):
            saved: Any = module.modules_to_save[module.active_adapter]  # type: ignore[index]
            before = module.original_module.state_dict()
            yield from ((f"{path}.{name}", before[name], whole) for name, whole in saved.state_dict().items())


def _merged(module: Any) -> tuple[torch.Tensor, torch.Tensor]:
    weight = module.get_base_layer().weight
    before = weight.data.clone()
    module.merge()
    wanted = weight.data.clone()
    module.unmerge()
    weight.data.copy_(before)  # which `unmerge` only comes near to
    return before, wanted
