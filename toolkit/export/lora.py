"""Writes the adapter as a GGUF LoRA, which llama.cpp puts beside a base model at run time (`--lora`).

llama.cpp knows one scale, alpha / rank with one alpha for all modules, so every other scale is multiplied into the
factor B. What it would leave out without a word, or cannot do, is refused.
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from pathlib import Path
from typing import Any

from toolkit.errors import ExportError
from toolkit.export.adapter import CONFIG, PREFIX, WEIGHTS, Adapter, read_adapter
from toolkit.export.checkpoint import read_rows
from toolkit.llamacpp import GgufFile, convert_lora


def lora_name(name: str) -> str:
    """`<run>-lora.gguf`."""
    return f"{name}-lora.gguf"


def fitting_adapter(folder: Path) -> Adapter:
    """The adapter, or an ExportError where a GGUF LoRA cannot be all of it."""
    adapter = read_adapter(folder)
    if reason := _unfit(adapter):
        raise ExportError(
            f"llama.cpp cannot apply {reason} at run time", where=str(folder), hint="export.lora_gguf=false"
        )
    return adapter


def write_lora(adapter: Path, out: Path, *, base: Path, name: str) -> None:
    """Write `out`, complete or not at all. `base`: a folder with the model's config and tokenizer; `name` goes into
    the file's header."""
    tuned = fitting_adapter(adapter)
    with tempfile.TemporaryDirectory(prefix=".lora-", dir=out.parent) as scratch:
        folder = Path(scratch) / name
        folder.mkdir()
        _write_plain(adapter, tuned, folder)
        convert_lora(folder, out, base=base)
    stored, wanted = len(GgufFile(out).tensors), 2 * len(tuned.changes)
    if stored != wanted:
        raise ExportError(f"{stored} tensors instead of {wanted}", where=out.name)


def _unfit(adapter: Adapter) -> str | None:
    if adapter.replaced:
        return f"modules that were trained whole ({min(adapter.replaced)})"
    if any(change.magnitude for change in adapter.changes.values()):
        return "DoRA"
    odd = sorted(path for path, change in adapter.changes.items() if change.embedding or path.endswith("lm_head"))
    return f"an adapter of the embedding or the output head ({odd[0]})" if odd else None


def _write_plain(adapter: Path, tuned: Adapter, folder: Path) -> None:
    """The adapter as one of plain LoRA that means the same."""
    from safetensors.torch import save_file

    config: dict[str, Any] = json.loads((adapter / CONFIG).read_text(encoding="utf-8"))
    alpha = config["lora_alpha"]
    plain = config | {"use_rslora": False, "rank_pattern": {}, "alpha_pattern": {}, "base_model_name_or_path": None}
    (folder / CONFIG).write_text(json.dumps(plain), encoding="utf-8")
    extra = {path: change.scale * change.rank / alpha for path, change in tuned.changes.items()}
    if all(math.isclose(factor, 1.0) for factor in extra.values()):
        shutil.copyfile(adapter / WEIGHTS, folder / WEIGHTS)
        return
    tensors = {}
    with open(adapter / WEIGHTS, "rb") as handle:
        for path, change in tuned.changes.items():
            tensors[f"{PREFIX}{path}.lora_A.weight"] = read_rows(handle, change.down)
            tensors[f"{PREFIX}{path}.lora_B.weight"] = read_rows(handle, change.up).float() * extra[path]
    save_file(tensors, folder / WEIGHTS)
