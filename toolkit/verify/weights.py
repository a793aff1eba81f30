"""Compares two safetensors checkpoints tensor by tensor. It reads through the safetensors library, unlike
the merge."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.rundir import ADAPTER_WEIGHTS, WHOLE_WEIGHTS, is_whole

if TYPE_CHECKING:
    import torch


@contextmanager
def opened(folder: Path) -> Iterator[dict[str, Any]]:
    """Tensor name -> open file that holds it."""
    from safetensors import safe_open

    index = folder / "model.safetensors.index.json"
    single = [folder / "model.safetensors"]
    files = sorted(folder.glob("model-*-of-*.safetensors")) if index.is_file() else single
    with ExitStack() as stack:
        handles = [stack.enter_context(safe_open(path, framework="pt")) for path in files]
        yield {name: handle for handle in handles for name in handle.keys()}  # noqa: SIM118


def pairs(one: Path, other: Path) -> Iterator[tuple[str, torch.Tensor | None, torch.Tensor | None]]:
    """Name and both tensors; None where one side lacks it."""
    with opened(one) as here, opened(other) as there:
        for name in sorted(here.keys() | there.keys()):
            yield (
                name,
                here[name].get_tensor(name) if name in here else None,
                there[name].get_tensor(name) if name in there else None,
            )


def difference(one: Path, other: Path, *, wide: bool = False) -> tuple[list[str], list[str]]:
    """Names whose values differ, and names that only one side has, or in another shape or type. `wide`: all of the other's are
    float32."""
    import torch

    changed, odd = [], []
    for name, here, there in pairs(one, other):
        wanted = torch.float32 if wide else getattr(here, "dtype", None)
        if here is None or there is None or here.shape != there.shape or there.dtype != wanted:
            odd.append(name)
        elif not torch.equal(here.to(there.dtype), there):
            changed.append(name)
    return changed, odd


def adapter_targets(adapter: Path) -> set[str]:
    """Tensors that the adapter changes, or a whole model holds, named from `layers.` on: what comes before differs between
    library versions."""
    from safetensors import safe_open

    with safe_open(adapter / (WHOLE_WEIGHTS if is_whole(adapter) else ADAPTER_WEIGHTS), framework="pt") as handle:
        keys = list(handle.keys())
    keys = [key for key in keys if not key.endswith(".base_layer.weight")]  # copies of the base's weights
    paths = {key.partition(".lora_")[0] + ".weight" if ".lora_" in key else key for key in keys}
    return {short(path.removeprefix("base_model.model.")) for path in paths}


def short(name: str) -> str:
    return name[name.find("layers.") :] if "layers." in name else name
