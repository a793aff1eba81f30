"""Checks of the adapter's GGUF file, which llama.cpp adds to the base model while it runs.

The base itself is no file of an export. So the file is put on an exported GGUF file with the factor -1: from the merged
model it must lead back to the base.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.engine.peft_reference import merges
from toolkit.llamacpp import GgufFile, interleaved, open_model
from toolkit.verify.contents import Folders
from toolkit.verify.limits import LIMITS, LORA_ERROR, LORA_SHARE, WHY
from toolkit.verify.material import Material
from toolkit.verify.record import Check, at_most, equal, noted, within
from toolkit.verify.reference import loaded, quiet
from toolkit.verify.stats import Strength, WeightStrength, distance, strength

if TYPE_CHECKING:
    import numpy


def check_lora(path: Path, folders: Folders, material: Material, beside: tuple[Path, str] | None) -> list[Check]:
    """`path` lies in the adapter's folder. `beside`: the exported file with the most bits, and its type; None where there is
    none."""
    file = GgufFile(path)
    share, odd = _compare(file, folders.base, path.parent, material.text_config)
    checks = [
        equal("kind", file.field("general.type"), "adapter", "what the header says it is"),
        equal("modules", odd[:5], [], "the factors of every module with an adapter give its change"),
        within("adapter in the factors", share.value, LORA_SHARE, WHY["lora"]),
    ]
    if beside is None:
        return [*checks, noted("KL to the base", None, "not judged: the export holds no GGUF file to put it on")]
    return checks + _run(path, material, *beside)


def _compare(file: GgufFile, base: Path, adapter: Path, config: dict[str, Any]) -> tuple[Strength, list[str]]:
    """How much of the adapter's change the product of the factors is, and the modules where it is another or none.

    The change is PEFT's, in fp32: merged - base is what 16 bits left of it.
    """
    from numpy.linalg import norm

    total, odd = WeightStrength(), []
    with quiet(), loaded(base, adapter=adapter) as (model, _):
        for name, before, after in merges(model):
            there = file.known_names([name], layers=config["num_hidden_layers"]).get(name)
            if f"{there}.lora_a" not in file.tensors or f"{there}.lora_b" not in file.tensors:
                odd.append(name)
                continue
            change = (after - before).numpy()
            product = _in_order(config, name, _product(file, str(there)), change)
            total.add(0 * change, change, product)
            if not norm(product - change) <= LORA_ERROR * norm(change):
                odd.append(name)
    return total.result, odd


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
    n = len(material.unmerged)
    kept = strength(material.base[:n], material.unmerged, material.tuned[:n]).value
    left = strength(material.base, material.tuned, got).value
    return [
        at_most("KL to the base", back.mean, max(LIMITS[kind].mean_kl, moved / 10), note),
        at_most("adapter left in the predictions", abs(left - (1 - 1 / kept)), 0.2, WHY["left"]),
    ]
