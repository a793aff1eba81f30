"""Checks of one GGUF file while it runs: its tokens, its predictions, its answers, all through llama.cpp."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from toolkit.llamacpp import LlamaModel
from toolkit.prompts import format_completion
from toolkit.statistics import mcnemar
from toolkit.verify.limits import CHANCE, LIMITS, NEARER, PREDICTIONS, SIXTEEN_BITS, WHY
from toolkit.verify.material import Material
from toolkit.verify.paired import Paired, chance_of_as_many_losses, difference_interval, paired
from toolkit.verify.record import Check, at_least, at_most, equal, noted, within
from toolkit.verify.spoken import leading
from toolkit.verify.stats import distance, perplexity, strength

if TYPE_CHECKING:
    import numpy

ANSWER_TAGS = frozenset(format_completion("", "").split())


def check_tokens(model: LlamaModel, material: Material) -> list[Check]:
    """Rendering and token ids as transformers has them, BOS, and what ends an answer."""
    spoken = material.spoken
    rendered = [chat.name for chat in spoken.chats if model.render(chat.messages) != chat.text]
    ids = {chat.name: model.chat_ids(chat.messages) for chat in spoken.chats}
    split = [chat.name for chat in spoken.chats if ids[chat.name] != chat.ids]
    plain = [text for text, expected, _ in spoken.texts if model.tokenize(text, special=False) != expected]
    begun = [text for text, _, expected in spoken.texts if model.tokenize(text, special=True) != expected]
    refused = f" ({len(spoken.refused)} more have no form in this template)" if spoken.refused else ""
    return [
        equal("chats rendered", rendered, [], f"{len(spoken.chats)} chats give the same text{refused}"),
        equal("chat tokens", split, [], "and the same token ids"),
        equal("text tokens", plain, [], f"{len(spoken.texts)} fixed texts give the same token ids"),
        equal("special tokens added", begun, [], "BOS is added where the tokenizer adds it, and only there"),
        equal("one BOS", [name for name in ids if _wrong_bos(model, ids[name])], [], WHY["bos"]),
        *_check_stops(model, material),
    ]


def _wrong_bos(model: LlamaModel, ids: list[int]) -> bool:
    count = leading(ids, model.bos)
    return count > 1 or (model.adds_bos and count != 1)


def _check_stops(model: LlamaModel, material: Material) -> list[Check]:
    spoken = material.spoken
    deaf = [number for number in spoken.stops if not model.is_stop(number)]
    texts = [model.piece(number) for number in model.stop_tokens()]
    checks = [] if spoken.bos is None else [equal("bos", model.bos, spoken.bos, "the begin token of the tokenizer")]
    return [
        *checks,
        equal("eos", model.eos, spoken.eos, "the end token of the tokenizer"),
        equal("stop set", deaf, [], "every stop token of generation_config.json ends generation in llama.cpp"),
        equal("stop strings", ordinary(texts), [], f"{WHY['stops']}; here {' '.join(texts)}"),
    ]


def ordinary(texts: list[str]) -> list[str]:
    """Those that an answer itself can hold: blank ones, line breaks, answer tags."""
    return [text for text in texts if not text.strip() or "\n" in text or text.strip() in ANSWER_TAGS]


def check_predictions(model: LlamaModel, kind: str, material: Material) -> list[Check]:
    """Next-token distributions, against the merged model and against the base."""
    limits = LIMITS[kind]
    got = [model.log_probabilities(list(text.ids), text.start) for text in material.texts]
    to_tuned, to_base = distance(material.tuned, got), distance(material.base, got)
    surprise = perplexity(got, material.following)
    return [
        at_most("mean KL", to_tuned.mean, limits.mean_kl, WHY["mean_kl"]),
        at_most("p99 KL", to_tuned.p99, limits.p99_kl, WHY["p99_kl"]),
        at_least("top-1 agreement", to_tuned.top1, limits.top1, WHY["top1"]),
        noted(
            "perplexity", surprise, f"of the same texts; merged {perplexity(material.tuned, material.following):.4g}"
        ),
        *_check_side(material, kind, got, to_tuned.mean, to_base.mean),
    ]


def _check_side(
    material: Material, kind: str, got: list[numpy.ndarray], to_tuned: float, to_base: float
) -> list[Check]:
    """On which side the file stands, where tuned and base are further apart than the type's noise."""
    moved = distance(material.base, material.tuned).mean
    share = strength(material.base, material.tuned, got).value
    why = f"KL(base ‖ file); the merged model itself is this far from the base: {moved:.2g}"
    if moved < 3 * LIMITS[kind].mean_kl:
        note = "not judged: merged and base differ less than this type's noise; the weights decide"
        return [noted("KL to base", to_base, why), noted("training in the predictions", share, note)]
    name, note = "training in the predictions", "0 is the base, 1 the merged model"
    if LIMITS[kind].share == SIXTEEN_BITS:
        return [at_least("KL to base", to_base, moved / 3, why), within(name, share, PREDICTIONS, note)]
    ratio = to_tuned / to_base if to_base else float("inf")
    return [
        at_least("KL to base", to_base, moved / 3, why),
        at_most("nearer to merged than to base", ratio, NEARER, "KL to the merged model over KL to the base"),
        noted(name, share, note),
    ]


def check_answers(model: LlamaModel, material: Material) -> tuple[list[Check], dict[str, Any]]:
    """Greedy answers on held-out problems, paired with the merged model's own; graded where the task has golds."""
    asked = material.asked
    answers = model.greedy(asked.prompts, max_new=asked.max_new)
    graded, right = _check_grades([model.text(ids) for ids in answers], material)
    stops = [model.is_stop(ids[-1]) for ids in answers]
    stopped = [ids[-1] in material.spoken.stops for ids in asked.answers]
    same = sum(mine == theirs for mine, theirs in zip(answers, asked.answers, strict=True))
    summary = {"n": len(answers), **right, "same_text_as_merged": same, "stopped": sum(stops)}
    return [
        *graded,
        _not_worse(
            "answers that stop", paired(stops, stopped), f"{sum(stops)} ended by a stop token, merged {sum(stopped)}"
        ),
        noted("same greedy text", f"{same} of {len(answers)}", "as the merged model in fp32"),
    ], summary


def _check_grades(texts: list[str], material: Material) -> tuple[list[Check], dict[str, Any]]:
    asked, task = material.asked, material.recipe.task
    if not task.graded:
        return [], {}
    grades = [task.grade(text, row) for text, row in zip(texts, asked.rows, strict=True)]
    right, before = [grade.strict for grade in grades], [grade.strict for grade in asked.grades]
    pairs = paired(right, before)
    counts = {
        "strict": sum(right), "lenient": sum(grade.lenient for grade in grades), "lost": pairs.lost, "won": pairs.won,
        "difference": pairs.difference, "ci95": list(difference_interval(pairs)),
        "mcnemar": mcnemar(pairs.won, pairs.lost),
    }  # fmt: skip
    return [_not_worse("held-out answers", pairs, f"{sum(right)} right, merged {sum(before)}")], counts


def _not_worse(name: str, pairs: Paired, what: str) -> Check:
    chance = chance_of_as_many_losses(pairs.lost, pairs.won)
    why = f"of {pairs.n}: {what}; {pairs.lost} lost, {pairs.won} won; {WHY['chance']}"
    return at_least(name, chance, CHANCE, why)
