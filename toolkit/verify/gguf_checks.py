"""Checks of one GGUF file: its header, its tokens, its predictions, its answers, all through llama.cpp."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from toolkit.llamacpp import CONTROL, GgufFile, LlamaModel, file_type_number
from toolkit.verify.limits import CHANCE, LIMITS, PREDICTIONS, WHY
from toolkit.verify.material import Material
from toolkit.verify.record import Check, at_least, at_most, equal, failed, noted, within
from toolkit.verify.stats import chance_of_as_many_losses, distance, strength, weight_strength

if TYPE_CHECKING:
    import numpy

UNDECIDED = 0.15
"""Standard error above which a share of the adapter tells nothing. It happens after a few tiny steps of
training."""

Weights = dict[str, tuple["numpy.ndarray", "numpy.ndarray"]]


def check_header(file: GgufFile, kind: str, material: Material) -> list[Check]:
    """What the file says of itself, against the merged folder."""
    spoken = material.spoken
    config = material.config.get("text_config") or material.config
    rows = file.tensor_shapes.get("token_embd.weight", (0,))[0]
    lost = [text for number, text in spoken.special.items() if _kind_of(file, number) != CONTROL]
    return [
        equal("no empty tensors", file.zero_tensors()[:5], [], "no tensor consists of zeros"),
        equal("layers", file.model_field("block_count"), config.get("num_hidden_layers"), "as in config.json"),
        equal("width", file.model_field("embedding_length"), config.get("hidden_size"), "as in config.json"),
        equal(
            "file type",
            file.field("general.file_type"),
            file_type_number(kind),
            f"the header's number for {kind}",
        ),
        equal("vocabulary", len(file.tokens), rows, "one row of the embedding per token"),
        equal("special tokens", lost[:5], [], "all are of the type CONTROL"),
        equal(
            "merges",
            file.n_merges,
            spoken.n_merges if spoken.n_merges else file.n_merges,
            "as in tokenizer.json",
        ),
        equal("template", file.field("tokenizer.chat_template") == spoken.template, True, "byte-identical"),
    ]


def _kind_of(file: GgufFile, number: int) -> int | None:
    return file.token_types[number] if number < len(file.token_types) else None


def check_adapter_in_weights(file: GgufFile, kind: str, weights: Weights) -> Check:
    """Whether the shipped numbers are the tuned ones: the quantisation's noise cancels over millions of
    them."""
    names = file.names_of(list(weights))
    if not names:
        return failed("adapter in the weights", None, "none of the changed tensors can be found in the file")
    stored = file.read(list(names.values()))
    base = [file.as_stored(hf, weights[hf][0]) for hf in names]
    tuned = [file.as_stored(hf, weights[hf][1]) for hf in names]
    share = weight_strength(base, tuned, [stored[name] for name in names.values()])
    if share.error > UNDECIDED:
        note = f"not judged (± {share.error:.2g}): the adapter's change is smaller than this type's noise"
        return noted("adapter in the weights", share.value, note)
    return within("adapter in the weights", share.value, LIMITS[kind].adapter, WHY["adapter"])


def check_tokens(model: LlamaModel, material: Material) -> list[Check]:
    """Rendering and token ids as transformers has them, BOS, and what ends an answer."""
    spoken = material.spoken
    rendered = [chat.name for chat in spoken.chats if model.render(chat.messages) != chat.text]
    split = [chat.name for chat in spoken.chats if model.chat_ids(chat.messages) != chat.ids]
    plain = [text for text, ids, _ in spoken.texts if model.tokenize(text, special=False) != ids]
    begun = [text for text, _, ids in spoken.texts if model.tokenize(text, special=True) != ids]
    doubled = [chat.name for chat in spoken.chats if _doubled_bos(model, model.chat_ids(chat.messages))]
    deaf = [number for number in spoken.stops if not model.is_stop(number)]
    return [
        equal("chats rendered", rendered, [], f"{len(spoken.chats)} fixed chats give the same text"),
        equal("chat tokens", split, [], "and the same token ids"),
        equal("text tokens", plain, [], f"{len(spoken.texts)} fixed texts give the same token ids"),
        equal("special tokens added", begun, [], "BOS is added where the tokenizer adds it, and only there"),
        equal("one BOS", doubled, [], "where BOS is added, a prompt begins with exactly one"),
        equal("eos", model.eos, spoken.eos, "the end token of the tokenizer"),
        equal("stop set", deaf, [], "every stop token of generation_config.json ends generation in llama.cpp"),
    ]


def _doubled_bos(model: LlamaModel, ids: list[int]) -> bool:
    return model.adds_bos and (ids[:1] != [model.bos] or ids[1:2] == [model.bos])


def check_predictions(model: LlamaModel, kind: str, material: Material) -> list[Check]:
    """Next-token distributions, against the merged model and against the base."""
    limits = LIMITS[kind]
    got = [model.log_probabilities(list(text.ids), text.start) for text in material.texts]
    to_tuned, to_base = distance(material.tuned, got), distance(material.base, got)
    return [
        at_most("mean KL", to_tuned.mean, limits.mean_kl, WHY["mean_kl"]),
        at_most("p99 KL", to_tuned.p99, limits.p99_kl, WHY["p99_kl"]),
        at_least("top-1 agreement", to_tuned.top1, limits.top1, WHY["top1"]),
        *_check_side(material, kind, got, to_base.mean),
    ]


def _check_side(material: Material, kind: str, got: list[numpy.ndarray], to_base: float) -> list[Check]:
    """On which side the file stands, where tuned and base are further apart than the type's noise."""
    moved = distance(material.base, material.tuned).mean
    share = strength(material.base, material.tuned, got)
    why = "KL(base ‖ file); the tuned model itself is this far from the base: " + f"{moved:.2g}"
    if moved < 3 * LIMITS[kind].mean_kl:
        note = "not judged: tuned and base differ less than this type's noise; the weights decide"
        return [noted("KL to base", to_base, why), noted("adapter in the predictions", share.value, note)]
    return [
        at_least("KL to base", to_base, moved / 3, why),
        within(
            "adapter in the predictions", share.value, PREDICTIONS[LIMITS[kind].adapter], "0 is the base, 1 the merged"
        ),
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
        _paired("answers that stop", stops, stopped, "answers ended by a stop token"),
        noted("same greedy text", f"{same} of {len(answers)}", "as the merged model in fp32"),
    ], summary


def _check_grades(texts: list[str], material: Material) -> tuple[list[Check], dict[str, int]]:
    asked, task = material.asked, material.recipe.task
    if not task.graded:
        return [], {}
    grades = [task.grade(text, row) for text, row in zip(texts, asked.rows, strict=True)]
    right, before = [grade.strict for grade in grades], [grade.strict for grade in asked.grades]
    counts = {"strict": sum(right), "lenient": sum(grade.lenient for grade in grades)}
    return [_paired("held-out answers", right, before, "right answers")], counts


def _paired(name: str, got: list[bool], expected: list[bool], what: str) -> Check:
    lost = sum(there and not here for here, there in zip(got, expected, strict=True))
    won = sum(here and not there for here, there in zip(got, expected, strict=True))
    chance = chance_of_as_many_losses(lost, won)
    why = f"{sum(got)} of {len(got)} {what}, merged {sum(expected)}; chance of as many losses (McNemar, exact)"
    return at_least(name, chance, CHANCE, why)
