"""Merging in tests: ours, PEFT's, and how far apart two results are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from toolkit.export.merge import Merged, merge

SMALL = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48}
"""A Llama that is merged in a moment."""


def merged(base: Path, adapter: Path, out: Path) -> Merged:
    out.mkdir()
    return merge(base, adapter, out)


def weights_of(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return {k: v for path in folder.glob("*.safetensors") for k, v in load_file(path).items()}


def merged_by_peft(base: Path, adapter: Path, kind: str = "AutoModelForCausalLM") -> dict[str, Any]:
    import torch
    import transformers
    from peft import PeftModel

    model = getattr(transformers, kind).from_pretrained(base, dtype=torch.float32)
    return dict(PeftModel.from_pretrained(model, adapter).merge_and_unload().state_dict())


def within_one_ulp(got: Any, expected: Any, base: Any) -> bool:
    """Whether bf16 numbers are the fp32 reference's, or the next ones to them. Where base and change cancel, the reference
    itself is only known to the rounding of its fp32 summands, which is coarser than bf16 there."""
    import torch

    def places(tensor: Any) -> Any:
        bits = tensor.to(torch.bfloat16).contiguous().view(torch.int16).int()
        return torch.where(bits < 0, -(bits & 0x7FFF), bits)

    summands = base.float().abs() + (expected - base.float()).abs()
    near = (places(got) - places(expected)).abs() <= 1
    return bool((near | ((got.float() - expected).abs() <= 2**-22 * summands)).all())


def change_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def rewrite(path: Path, change: Callable[[str, Any], Any], rename: Callable[[str], str] = str) -> None:
    from safetensors.torch import load_file, save_file

    save_file({rename(name): change(name, tensor) for name, tensor in load_file(path).items()}, path, {"format": "pt"})


def opened(folder: Path, kind: str) -> dict[str, Any]:
    import torch
    import transformers

    return dict(getattr(transformers, kind).from_pretrained(folder, dtype=torch.float32).state_dict())
