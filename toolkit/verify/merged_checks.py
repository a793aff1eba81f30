"""Checks of the merged folder: opened by plain transformers, and against the base and what was trained, an adapter or all
weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from toolkit.atomic import sha256_of
from toolkit.rundir import is_whole
from toolkit.statistics import wilson
from toolkit.verify.gguf_checks import ordinary
from toolkit.verify.limits import CHANGED, JUDGED_KL, MERGED_KL, ROUNDED_SHARE, SHARE, WHY
from toolkit.verify.material import Material
from toolkit.verify.record import Check, at_least, at_most, equal, failed, noted, within
from toolkit.verify.spoken import leading
from toolkit.verify.stats import distance, perplexity, strength
from toolkit.verify.weights import adapter_targets, difference, short

IN_WEIGHTS = "of what training changed in the weights: what rounding left of it"


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


def check_weights(base: Path, merged: Path, adapter: Path, *, wide: bool = False) -> tuple[list[Check], list[str]]:
    """The weights differ from the base's where something was trained, and nowhere else. Also returns those names. `wide`: all of
    them are float32."""
    changed, odd = difference(base, merged, wide=wide)
    targets = adapter_targets(adapter)
    parted = [name for name in odd if short(name) in targets or (_is_head(name) and _adapts_embedding(targets))]
    changed, odd = changed + [name for name in parted if short(name) in targets], sorted(set(odd) - set(parted))
    strange = [name for name in changed if short(name) not in targets]
    same = sorted(targets - {short(name) for name in changed})
    names = "the same names and shapes, and float32" if wide else "the same names, shapes and types"
    checks = [
        equal("tensors as in the base", odd[:5], [], names),
        equal("changed without training", strange[:5], [], "tensors that were not trained are copied number by number"),
    ]
    if is_whole(adapter):
        note = "a tensor whose change is smaller than the steps of its type stays the base's"
        checks += [
            at_least("changed by training", len(changed), 1, f"of {len(targets)} tensors"),
            noted("left as in the base", len(same), note),
        ]
    elif not changed:
        checks.append(failed("changed by training", 0, "no tensor differs from the base: the adapter is not merged"))
    else:
        note = f"of {len(targets)} modules with an adapter; a change may be too small for the weights' type"
        checks.append(at_least("changed by training", len(changed), max(1, len(targets) - len(same)), note))
        checks.append(at_most("left as in the base", len(same), len(targets) // 10, note))
    return checks, changed


def _is_head(name: str) -> bool:
    return name.endswith("lm_head.weight")


def _adapts_embedding(targets: set[str]) -> bool:
    """Then a head that was tied to the embedding is a tensor of its own afterwards, as when it is adapted itself."""
    return any(target.endswith("embed_tokens.weight") for target in targets)


def check_model(material: Material) -> list[Check]:
    """Config, distance to what was trained, distance to the base."""
    config, whole, merge = material.config, material.recipe.model.full_finetuning, material.merge
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
            "the weights are plain numbers",
        ),
        at_most("KL to the trained model", apart.mean, MERGED_KL, _between(material)),
        equal(
            "the trained weights" if whole else "merged as PEFT merges",
            merge.unlike[:5],
            [],
            f"{merge.count} tensors are {'as trained' if whole else 'base + adapter'} in fp32, to one unit in their last place",
        ),
        *_shares(material, share.value, distance(material.base[:n], material.unmerged).mean),
        noted("KL to base", moved.mean, "how far training moves what the model says"),
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


def _between(material: Material) -> str:
    trained = "the weights as trained" if material.recipe.model.full_finetuning else "PEFT, not merged"
    rounding = "no rounding to 16 bits" if material.recipe.export.is_wide else "only 16-bit rounding"
    return f"{trained}, fp32: {rounding} lies between"


def _way_out(material: Material) -> str | None:
    """What to do where the weights are the merge to their last place, so that all that is lost was lost in rounding."""
    if material.merge.unlike or material.recipe.export.is_wide:
        return None
    return WHY["rounded"] if material.recipe.model.full_finetuning else f"{WHY['rounded']}; {WHY['unmerged']}"


def _shares(material: Material, value: float, moved: float) -> list[Check]:
    """How much of the training is there: in predictions, and in the weights.

    The weights decide where predictions cannot and no adapter lies beside them: else the trained model is in no file of the
    export, and nobody is told.
    """
    way_out, weights = _way_out(material), material.merge.share
    judged, whole = moved >= JUDGED_KL, material.recipe.model.full_finetuning
    limit = SHARE if way_out is None else ROUNDED_SHARE
    names = ("share of the training", "0 is the base, 1 the tuned model, in its predictions", value)
    dim = f"not judged: the training's effect on predictions ({moved:.1e}) drowns in 16-bit rounding"
    return [
        _share(*names, limit, way_out) if judged else noted(names[0], value, f"{names[1]}; {dim}"),
        _share("share in the weights", IN_WEIGHTS, weights, limit, way_out)
        if whole and not judged
        else noted("share in the weights", weights, IN_WEIGHTS),
    ]


def _share(name: str, why: str, value: float, limit: tuple[float, float], way_out: str | None) -> Check:
    check = within(name, value, limit, why)
    return check if check.passed or way_out is None else check.model_copy(update={"why": f"{why}; {way_out}"})


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
