"""Rules that tie several keys of a recipe together. They read a recipe, or a faulty one's data.

So the loader can report them beside the other faults: a rule is left out only where a key it reads is faulty.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

Get = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Problem:
    """Keys that do not agree (the ones to change first), why, and values that work."""

    keys: tuple[str, ...]
    message: str
    hint: str


Rule = Callable[[Get], Problem | None]


def _fits_sequence(get: Get) -> Problem | None:
    prompt, completion = get("grpo.max_prompt_length"), get("grpo.max_completion_length")
    limit = get("model.max_seq_length")
    if prompt + completion <= limit:
        return None
    room = f"max_completion_length of at most {limit - prompt}, or " if prompt < limit else ""
    return Problem(
        ("grpo.max_completion_length", "grpo.max_prompt_length", "model.max_seq_length"),
        f"max_prompt_length {prompt} + max_completion_length {completion} = {prompt + completion} tokens, "
        f"more than model.max_seq_length {limit}",
        f"{room}model.max_seq_length of at least {prompt + completion}",
    )


def _batch_divides(get: Get) -> Problem | None:
    batch = get("grpo.per_device_train_batch_size")
    completions = get("grpo.num_generations") * get("grpo.prompts_per_step")
    if batch is None or completions % batch == 0:
        return None
    divisors = [number for number in range(1, min(completions, 10_000) + 1) if completions % number == 0]
    nearest = sorted(divisors, key=lambda number: abs(number - batch))[:4]
    return Problem(
        ("grpo.per_device_train_batch_size", "grpo.num_generations", "grpo.prompts_per_step"),
        f"{batch} does not divide {completions} completions (num_generations * prompts_per_step) of a step",
        f"values that work: {', '.join(map(str, sorted(nearest)))}",
    )


def _delta_above_clip(get: Get) -> Problem | None:
    delta, epsilon = get("grpo.delta"), get("grpo.epsilon")
    if delta is None or delta > 1 + epsilon:
        return None
    message = f"delta {delta} must be above 1 + epsilon = {1 + epsilon:g}"
    return Problem(("grpo.delta", "grpo.epsilon"), message, f"for example {2 + epsilon:g}, or null for no bound")


def _sequence_loss(get: Get) -> Problem | None:
    loss = get("grpo.loss_type")
    if get("grpo.importance_sampling_level") == "token" or loss == "grpo":
        return None
    message = f"with one ratio per sequence, loss_type {loss} adds that ratio once per token"
    return Problem(("grpo.importance_sampling_level", "grpo.loss_type"), message, "loss_type: grpo, as in GSPO")


def _resample_scale(get: Get) -> Problem | None:
    if not get("grpo.resample_rounds") or get("grpo.scale_rewards") != "batch":
        return None
    message = (
        "groups that are drawn again cannot be scaled by the standard deviation of a batch that they replace a part of"
    )
    return Problem(
        ("grpo.resample_rounds", "grpo.scale_rewards"), message, "scale_rewards: group, or resample_rounds: 0"
    )


def _exports_something(get: Get) -> Problem | None:
    if get("export.merged") or get("export.gguf"):
        return None
    return Problem(("export.gguf", "export.merged"), "the export would be empty", "merged: true, or a type in gguf")


NEEDS_IMATRIX = (
    "iq3_xs", "iq3_xxs", "q2_k_s", "iq2_m", "iq2_s", "iq2_xs", "iq2_xxs", "iq1_m", "iq1_s",
)  # fmt: skip
"""GGUF types that llama.cpp only writes with an importance matrix."""


def _imatrix_where_needed(get: Get) -> Problem | None:
    needing = [kind for kind in get("export.gguf") if kind in NEEDS_IMATRIX]
    if not needing or get("export.imatrix"):
        return None
    message = f"{', '.join(needing)} can only be written with an importance matrix"
    return Problem(("export.gguf", "export.imatrix"), message, "imatrix: true, or other types in gguf")


def _pushes_somewhere(get: Get) -> Problem | None:
    wanted = [key for key in ("hub.push", "hub.push_checkpoints") if get(key)]
    if not wanted or any(get(f"hub.{key}") for key in ("repo", "adapter_repo", "gguf_repo")):
        return None
    return Problem((*wanted, "hub.repo"), "there is no repository to push to", "repo: user/name")


def _chooses_by_evaluations(get: Get) -> Problem | None:
    wanted = [key for key in ("eval.keep_best", "eval.stop_after") if get(key)]
    if not wanted or get("eval.every") is not None:
        return None
    message = "there is nothing to choose by: no held-out rows are asked during training"
    return Problem((*wanted, "eval.every"), message, "every: 20, or a fifth of grpo.max_steps")


def _one_width(get: Get) -> Problem | None:
    if not (get("model.load_in_4bit") and get("model.load_in_8bit")):
        return None
    return Problem(
        ("model.load_in_8bit", "model.load_in_4bit"), "the base is loaded in 4 bits or in 8", "load_in_4bit: false"
    )


def _full_finetuning(key: str, needed: Any, why: str) -> Rule:
    """With full fine-tuning there is neither an adapter nor a base beside what is trained."""

    def rule(get: Get) -> Problem | None:
        if not get("model.full_finetuning") or get(key) == needed:
            return None
        shown = {False: "false", None: "null"}.get(needed, needed)
        hint = f"{key.rpartition('.')[2]}: {shown}, or full_finetuning: false"
        return Problem((key, "model.full_finetuning"), f"full fine-tuning: {why}", hint)

    return rule


_WITHOUT_ADAPTER: tuple[tuple[str, Any, str], ...] = (
    ("model.load_in_4bit", False, "weights in 4 bits cannot be trained, only an adapter on them"),
    ("model.load_in_8bit", False, "weights in 8 bits cannot be trained, only an adapter on them"),
    ("grpo.beta", 0, "the KL term compares with the base, and the base itself is trained"),
    ("export.lora_gguf", False, "there is no adapter to write"),
    ("hub.adapter_repo", None, "there is no adapter to push"),
)


def _beside_a_server(key: str, why: str) -> Rule:
    """What is not done where a vLLM server draws the completions."""

    def rule(get: Get) -> Problem | None:
        if get("model.vllm_server") is None or get(key) is not True:
            return None
        hint = f"{key.rpartition('.')[2]}: false, or vllm_server: null"
        return Problem((key, "model.vllm_server"), f"vLLM as a server: {why}", hint)

    return rule


_NOT_BESIDE_A_SERVER: tuple[tuple[str, str], ...] = (
    ("model.fast_inference", "completions are drawn there, and no second vLLM is loaded here"),
    ("model.standby", "there is no vLLM in this process that could sleep"),
    ("model.load_in_8bit", "8-bit weights cannot be handed over"),
    ("model.full_finetuning", "it gets an adapter added into the base, and full fine-tuning has none"),
)


# Each rule with all keys it reads.
RULES: tuple[tuple[Rule, tuple[str, ...]], ...] = (
    (_one_width, ("model.load_in_4bit", "model.load_in_8bit")),
    (_fits_sequence, ("grpo.max_prompt_length", "grpo.max_completion_length", "model.max_seq_length")),
    (_batch_divides, ("grpo.per_device_train_batch_size", "grpo.num_generations", "grpo.prompts_per_step")),
    (_delta_above_clip, ("grpo.delta", "grpo.epsilon")),
    (_sequence_loss, ("grpo.importance_sampling_level", "grpo.loss_type")),
    (_resample_scale, ("grpo.resample_rounds", "grpo.scale_rewards")),
    (_exports_something, ("export.merged", "export.gguf")),
    (_imatrix_where_needed, ("export.gguf", "export.imatrix")),
    (_chooses_by_evaluations, ("eval.keep_best", "eval.stop_after", "eval.every")),
    (_pushes_somewhere, ("hub.push", "hub.push_checkpoints", "hub.repo", "hub.adapter_repo", "hub.gguf_repo")),
    *((_full_finetuning(*entry), (entry[0], "model.full_finetuning")) for entry in _WITHOUT_ADAPTER),
    *((_beside_a_server(*entry), (entry[0], "model.vllm_server")) for entry in _NOT_BESIDE_A_SERVER),
)


# Values that work, where the limit alone does not say why.
_WAYS_OUT = {
    "grpo.num_generations": "4 to 16 is usual: a completion is judged against the others of its group",
    "grpo.temperature": "0.7 to 1.0 is usual: without chance all completions of a group are equal, and nothing can be learned",
    "model.lora.target_modules": "leave the key out for all seven projections",
}
_ONE_MATRIX = (
    "head and embeddings get no adapter (tied, they are one matrix): leave the key out for all seven projections"
)


def way_out(key: str, given: Any) -> str | None:
    """For a value outside a key's limits: what to write instead."""
    if given in ("lm_head", "embed_tokens"):
        return _ONE_MATRIX
    return _WAYS_OUT.get(re.sub(r"\[\d+\]", "", key))


def cross_problems(recipe: Any, faulty: Collection[str] = ()) -> list[Problem]:
    """All rules that fail. `recipe` is a model or plain data; rules that read a `faulty` key are left out."""

    def get(key: str) -> Any:
        value = recipe
        for part in key.split("."):
            value = value[part] if isinstance(value, dict) else getattr(value, part)
        return value

    problems = [rule(get) for rule, keys in RULES if not set(keys) & set(faulty)]
    if "grpo.max_completion_length" not in faulty:
        problems.append(_overlong_cache(recipe, get("grpo.max_completion_length")))
    if "model.full_finetuning" not in faulty and get("model.full_finetuning"):
        problems += [_judged_by_the_base(recipe), _ignored_lora(get("model.lora"))]
    return [problem for problem in [*problems, _duplicate_reward(recipe)] if problem]


def _judged_by_the_base(recipe: Any) -> Problem | None:
    for index, item in enumerate(_rewards(recipe)):
        if _name(item) == "judge" and _field(item, "endpoint") is None:
            message = "full fine-tuning: the judge is the base model, and the base itself is trained"
            hint = "endpoint: the address of a judge, or full_finetuning: false"
            return Problem((f"rewards.{index}.endpoint", f"rewards.{index}", "model.full_finetuning"), message, hint)
    return None


def _ignored_lora(lora: Any) -> Problem | None:
    """A value of its own would be ignored in silence."""
    from toolkit.recipe.schema import Lora

    for name, default in Lora().model_dump().items():
        value = _field(lora, name)
        if value is None or (tuple(value) if isinstance(value, list) else value) == default:
            continue
        shown = list(default) if isinstance(default, tuple) else str(default).lower()
        message = f"full fine-tuning: model.lora.{name} would be ignored, as there is no adapter"
        hint = f"leave it out (where a recipe that is extended has it: {name}: {shown}, the default), or full_finetuning: false"
        return Problem((f"model.lora.{name}", "model.full_finetuning"), message, hint)
    return None


def _overlong_cache(recipe: Any, limit: int) -> Problem | None:
    """The reward `overlong` begins to punish `cache` tokens before the limit, which is the recipe's unless it names one."""
    for index, item in enumerate(_rewards(recipe)):
        cache = _field(item, "cache")
        if (
            _name(item) == "overlong"
            and _field(item, "max_length") is None
            and isinstance(cache, int)
            and cache >= limit
        ):
            message = f"cache {cache} must be below grpo.max_completion_length {limit}"
            keys = (f"rewards.{index}.cache", "grpo.max_completion_length")
            return Problem(keys, message, f"for example {max(1, limit // 5)}, a fifth as in DAPO")
    return None


def _duplicate_reward(recipe: Any) -> Problem | None:
    names = [_name(item) for item in _rewards(recipe)]
    for name, count in Counter(name for name in names if name).items():
        if count > 1:
            places = [f"rewards.{index}.name" for index, other in enumerate(names) if other == name]
            message = f"the reward {name} stands in the list {count} times"
            return Problem(tuple(reversed(places)), message, "a reward counts once; its weight says how much")
    return None


def _rewards(recipe: Any) -> list[Any]:
    """The list as it was written; nothing where it is no list."""
    items = recipe.get("rewards") if isinstance(recipe, dict) else recipe.rewards
    return list(items) if isinstance(items, (list, tuple)) else []


def _name(item: Any) -> str | None:
    name = _field(item, "name")
    return name if isinstance(name, str) else None


def _field(item: Any, key: str) -> Any:
    return item.get(key) if isinstance(item, dict) else getattr(item, key, None)
