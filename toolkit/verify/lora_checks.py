"""Checks of the adapter's GGUF file, which llama.cpp adds to the base model while it runs.

The base itself is no file of an export. So the file is put on an exported GGUF file with the factor -1: from the merged
model it must lead back to the base.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.llamacpp import GgufFile, interleaved, open_model
from toolkit.verify.contents import Folders
from toolkit.verify.limits import LIMITS, LORA_SHARE, WHY
from toolkit.verify.material import Material
from toolkit.verify.record import Check, at_most, equal, noted, within
from toolkit.verify.stats import Strength, WeightStrength, distance, strength
from toolkit.verify.weights import opened

if TYPE_CHECKING:
    import numpy


def check_lora(path: Path, folders: Folders, material: Material, beside: tuple[Path, str] | None) -> list[Check]:
    """`beside`: the exported file with the most bits, and its type; None where there is none."""
    file = GgufFile(path)
    share, lost = _compare(file, folders, material.text_config)
    checks = [
        equal("kind", file.field("general.type"), "adapter", "what the header says it is"),
        equal("modules", lost[:5], [], "every tensor that the adapter changed has its factors in the file"),
        within("adapter in the factors", share.value, LORA_SHARE, WHY["lora"]),
    ]
    if beside is None:
        return [*checks, noted("KL to the base", None, "not judged: the export holds no GGUF file to put it on")]
    return checks + _run(path, material, *beside)


def _compare(file: GgufFile, folders: Folders, config: dict[str, Any]) -> tuple[Strength, list[str]]:
    """How much of merged - base the product of the factors is, and which changed tensors have no factors."""
    total, lost = WeightStrength(), []
    names = file.known_names(folders.changed, layers=config["num_hidden_layers"])
    with opened(folders.merged) as merged, opened(folders.base) as base:
        for hf in sorted(folders.changed):
            there = names.get(hf)
            if f"{there}.lora_a" not in file.tensors or f"{there}.lora_b" not in file.tensors:
                lost.append(hf)
                continue
            product = _product(file, str(there))
            before, after = (folder[hf].get_tensor(hf).float().numpy() for folder in (base, merged))
            total.add(before, after, before + _in_order(config, hf, product, after - before))
    return total.result, lost


def _product(file: GgufFile, name: str) -> numpy.ndarray:
    """As llama.cpp scales it: alpha over the rank."""
    down, up = file.rows(f"{name}.lora_a"), file.rows(f"{name}.lora_b")
    return float(file.field("adapter.lora.alpha") or 0.0) / len(down) * (up @ down)


def _in_order(config: dict[str, Any], hf: str, product: numpy.ndarray, change: numpy.ndarray) -> numpy.ndarray:
    """The product's rows as the Hugging Face tensor has them, whether the file interleaves rotary heads or not."""
    import numpy

    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(hf.removesuffix(".weight")[-6:])
    if heads is None:
        return product
    turned = numpy.empty_like(product)
    turned[interleaved(len(product), config[heads])] = product
    return max((product, turned), key=lambda rows: float((rows * change).sum()))


def _run(path: Path, material: Material, beside: Path, kind: str) -> list[Check]:
    room = max(len(text.ids) for text in material.texts) + 8
    with open_model(beside, context=room, lora=(path, -1.0)) as model:
        got = [model.log_probabilities(list(text.ids), text.start) for text in material.texts]
    back, moved = distance(material.base, got), distance(material.base, material.tuned).mean
    note = f"{beside.name} with the adapter taken away; the merged model is {moved:.2g} from the base"
    if moved < 3 * LIMITS[kind].mean_kl:
        return [noted("KL to the base", back.mean, f"not judged: less than this type's noise; {note}")]
    share = strength(material.base, material.tuned, got).value
    return [
        at_most("KL to the base", back.mean, max(LIMITS[kind].mean_kl, moved / 10), note),
        at_most("adapter left in the predictions", abs(share), 0.2, "0 is the base, 1 the merged model"),
    ]
