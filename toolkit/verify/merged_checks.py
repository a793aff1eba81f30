"""Checks of the merged folder: opened by plain transformers, and against the base and the adapter it was
made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from toolkit.rundir import sha256_of
from toolkit.verify.limits import CHANGED, JUDGED_KL, MERGED_KL
from toolkit.verify.material import Material
from toolkit.verify.record import Check, at_least, at_most, equal, failed, noted, within
from toolkit.verify.stats import distance, strength
from toolkit.verify.weights import adapter_targets, difference, short


def check_bytes(folder: Path, expected: dict[str, str]) -> Check:
    """The files are those that the export wrote."""
    held = {path.name: sha256_of(path) for path in sorted(folder.iterdir()) if path.is_file()}
    odd = sorted(name for name in held.keys() | expected.keys() if held.get(name) != expected.get(name))
    return equal("unchanged since export", odd, [], "SHA-256 of every file as in manifest.json")


def check_weights(base: Path, merged: Path, adapter: Path) -> tuple[list[Check], list[str]]:
    """The weights differ from the base's where the adapter says so, and nowhere else. Also returns those
    names."""
    changed, odd = difference(base, merged)
    targets = adapter_targets(adapter)
    strange = [name for name in changed if short(name) not in targets]
    same = sorted(targets - {short(name) for name in changed})
    checks = [
        equal("tensors as in the base", odd[:5], [], "the same names, shapes and types"),
        equal("changed without an adapter", strange[:5], [], "tensors without an adapter are copied bit by bit"),
    ]
    if not changed:
        checks.append(failed("changed by the adapter", 0, "no tensor differs from the base: the adapter is not merged"))
    else:
        note = f"of {len(targets)} modules with an adapter; a change may be too small for 16 bits"
        checks.append(at_least("changed by the adapter", len(changed), max(1, len(targets) - len(same)), note))
        checks.append(at_most("left as in the base", len(same), len(targets) // 10, note))
    return checks, changed


def check_model(material: Material) -> list[Check]:
    """Config, distance to base + adapter through PEFT, distance to the base."""
    config = material.config
    n = len(material.unmerged)
    apart = distance(material.unmerged, material.tuned[:n])
    moved = distance(material.base, material.tuned)
    share = strength(material.base[:n], material.unmerged, material.tuned[:n])
    missing = [*material.loading.get("missing_keys", ()), *material.loading.get("unexpected_keys", ())]
    return [
        equal("opens in transformers", sorted(missing)[:5], [], "no missing and no unexpected tensor"),
        equal(
            "no quantization block",
            "quantization_config" in config,
            False,
            "the weights are plain 16-bit numbers",
        ),
        at_most(
            "KL to base + adapter",
            apart.mean,
            MERGED_KL,
            "PEFT, not merged, fp32: only 16-bit rounding lies between",
        ),
        _share(share.value, distance(material.base[:n], material.unmerged).mean),
        noted("KL to base", moved.mean, "how far the adapter moves what the model says"),
        at_least("predictions changed", _largest_change(material), CHANGED, "largest change of a log-probability"),
        *_check_language(material),
    ]


def _largest_change(material: Material) -> float:
    pairs = zip(material.base, material.tuned, strict=True)
    return max(float(abs(base - tuned).max()) for base, tuned in pairs)


def _share(value: float, moved: float) -> Check:
    name, why = "share of the adapter", "0 is the base, 1 the tuned model, in its predictions"
    if moved < JUDGED_KL:
        return noted(name, value, f"{why}; not judged: the adapter's effect ({moved:.1e}) drowns in 16-bit rounding")
    return within(name, value, (0.8, 1.25), why)


def _check_language(material: Material) -> list[Check]:
    spoken, asked = material.spoken, material.asked
    stopped = sum(answer[-1] in spoken.stops for answer in asked.answers if answer)
    return [
        equal("eos ends generation", spoken.eos in spoken.stops, True, "the tokenizer's end token is in the stop set"),
        equal("stop tokens are special", [i for i in spoken.stops if i not in spoken.special], [],
              "neither a line break nor an answer tag ends an answer"),
        noted("greedy answers that stop", f"{stopped} of {len(asked.answers)}", f"within {asked.max_new} tokens"),
    ]  # fmt: skip


def task_summary(material: Material) -> dict[str, Any]:
    """How the merged model does on the held-out problems."""
    asked = {"n": len(material.asked.rows)}
    if not material.recipe.task.graded:
        return asked
    grades = material.asked.grades
    return asked | {"strict": sum(g.strict for g in grades), "lenient": sum(g.lenient for g in grades)}
