"""Checks of the merged folder: opened by plain transformers, and against the base and the adapter it was
made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from toolkit.rundir import is_whole, sha256_of
from toolkit.statistics import wilson
from toolkit.verify.gguf_checks import ordinary
from toolkit.verify.limits import CHANGED, JUDGED_KL, MERGED_KL, ROUNDED_SHARE, SHARE, WHY
from toolkit.verify.material import Material
from toolkit.verify.record import Check, at_least, at_most, equal, failed, noted, within
from toolkit.verify.spoken import leading
from toolkit.verify.stats import distance, perplexity, strength
from toolkit.verify.weights import adapter_targets, difference, short


def hashes_of(folder: Path) -> dict[str, str]:
    """Name -> SHA-256 of every file in the folder; nothing where there is none."""
    return {path.name: sha256_of(path) for path in sorted(folder.glob("*")) if path.is_file()}


def check_bytes(name: str, held: dict[str, str], expected: dict[str, str]) -> Check:
    """The files are those that the export wrote."""
    odd = sorted(file for file in held.keys() | expected.keys() if held.get(file) != expected.get(file))
    return equal(name, odd, [], "SHA-256 of every file as in manifest.json")


def cannot_open(folder: Path) -> str | None:
    """Why a folder of weights is not whole; None where it is. Every library has error classes of its own for that."""
    from safetensors import safe_open

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        return f"{folder.name} holds no weights"
    try:
        for path in folder.glob("*.json"):
            json.loads(path.read_text(encoding="utf-8"))
        index = folder / "model.safetensors.index.json"
        shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()) if index.is_file() else set()
        if lost := sorted(shards - {path.name for path in files}):
            return f"{folder.name}/{lost[0]} is missing"
        for path in files:
            with safe_open(path, framework="pt"):
                pass
    except Exception as error:
        return f"{folder.name}: {type(error).__name__}: {error}".replace(f"{folder}/", "")
    return None


def check_weights(base: Path, merged: Path, adapter: Path) -> tuple[list[Check], list[str]]:
    """The weights differ from the base's where the adapter says so, and nowhere else. Also returns those
    names."""
    changed, odd = difference(base, merged)
    targets = adapter_targets(adapter)
    parted = [name for name in odd if short(name) in targets or (_is_head(name) and _adapts_embedding(targets))]
    changed, odd = changed + [name for name in parted if short(name) in targets], sorted(set(odd) - set(parted))
    strange = [name for name in changed if short(name) not in targets]
    same = sorted(targets - {short(name) for name in changed})
    checks = [
        equal("tensors as in the base", odd[:5], [], "the same names, shapes and types"),
        equal("changed without an adapter", strange[:5], [], "tensors without an adapter are copied bit by bit"),
    ]
    if is_whole(adapter):
        note = "a tensor whose change is smaller than the steps of 16-bit numbers stays the base's"
        checks += [
            at_least("changed by training", len(changed), 1, f"of {len(targets)} tensors"),
            noted("left as in the base", len(same), note),
        ]
    elif not changed:
        checks.append(failed("changed by the adapter", 0, "no tensor differs from the base: the adapter is not merged"))
    else:
        note = f"of {len(targets)} modules with an adapter; a change may be too small for 16 bits"
        checks.append(at_least("changed by the adapter", len(changed), max(1, len(targets) - len(same)), note))
        checks.append(at_most("left as in the base", len(same), len(targets) // 10, note))
    return checks, changed


def _is_head(name: str) -> bool:
    return name.endswith("lm_head.weight")


def _adapts_embedding(targets: set[str]) -> bool:
    """Then a head that was tied to the embedding is a tensor of its own afterwards, as when it is adapted itself."""
    return any(target.endswith("embed_tokens.weight") for target in targets)


def check_model(material: Material) -> list[Check]:
    """Config, distance to base + adapter through PEFT, distance to the base."""
    config, whole = material.config, material.recipe.model.full_finetuning
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
            "the weights as trained, fp32: only 16-bit rounding lies between"
            if whole
            else "PEFT, not merged, fp32: only 16-bit rounding lies between",
        ),
        equal(
            "the trained weights" if whole else "merged as PEFT merges",
            material.unlike_peft[:5],
            [],
            f"{material.n_merged} tensors are {'as trained' if whole else 'base + adapter'} in fp32, to one unit in their last place",
        ),
        _share(share.value, distance(material.base[:n], material.unmerged).mean, _way_out(material)),
        noted("KL to base", moved.mean, "how far the adapter moves what the model says"),
        at_least("predictions changed", _largest_change(material), CHANGED, "largest change of a log-probability"),
        noted("perplexity", perplexity(material.tuned, material.following), _surprise_of_base(material)),
        *_check_language(material),
    ]


def _largest_change(material: Material) -> float:
    pairs = zip(material.base, material.tuned, strict=True)
    return max(float(abs(base - tuned).max()) for base, tuned in pairs)


def _surprise_of_base(material: Material) -> str:
    surprise = perplexity(material.base, material.following)
    return f"of its own answers and of worked solutions, {len(material.texts)} texts; base {surprise:.4g}"


def _way_out(material: Material) -> str | None:
    """What to do where the weights are the merge to their last place, so that all that is lost was lost in rounding."""
    if material.unlike_peft:
        return None
    return WHY["rounded"] if material.recipe.model.full_finetuning else f"{WHY['rounded']}; {WHY['unmerged']}"


def _share(value: float, moved: float, way_out: str | None) -> Check:
    name, why = "share of the adapter", "0 is the base, 1 the tuned model, in its predictions"
    if moved < JUDGED_KL:
        return noted(name, value, f"{why}; not judged: the adapter's effect ({moved:.1e}) drowns in 16-bit rounding")
    if way_out is None:
        return within(name, value, SHARE, why)
    check = within(name, value, ROUNDED_SHARE, f"{why}; {way_out}")
    return check if not check.passed else check.model_copy(update={"why": why})


def _check_language(material: Material) -> list[Check]:
    spoken, asked = material.spoken, material.asked
    stopped = sum(answer[-1] in spoken.stops for answer in asked.answers if answer)
    doubled = [chat.name for chat in spoken.chats if leading(chat.ids, spoken.bos) > 1]
    plain = [number for number in spoken.stops if number not in spoken.special]
    turn_end = spoken.turn_end is None or spoken.turn_end in spoken.stops
    return [
        equal(
            "as in training",
            spoken.unlike_base,
            [],
            "chats and texts that the base's tokenizer writes or splits otherwise",
        ),
        equal("one BOS", doubled, [], "no chat begins with two begin tokens"),
        equal(
            "template in both places", spoken.same_template, True, "tokenizer_config.json and chat_template.jinja agree"
        ),
        equal("eos ends generation", spoken.eos in spoken.stops, True, "the tokenizer's end token is in the stop set"),
        equal("turn end ends generation", turn_end, True, "and what the template writes after an answer"),
        equal("stop tokens are special", plain, [], "text of an answer never ends it"),
        equal(
            "stop strings", ordinary(spoken.stop_strings), [], f"{WHY['stops']}; here {' '.join(spoken.stop_strings)}"
        ),
        noted("greedy answers that stop", f"{stopped} of {len(asked.answers)}", f"within {asked.max_new} tokens"),
    ]


def task_summary(material: Material) -> dict[str, Any]:
    """How the merged model does on the held-out problems."""
    asked = {"n": len(material.asked.rows)}
    if not material.recipe.task.graded:
        return asked
    grades = material.asked.grades
    right = sum(grade.strict for grade in grades)
    counts = {"strict": right, "lenient": sum(grade.lenient for grade in grades)}
    return asked | counts | {"ci95": wilson(right, len(grades))}
