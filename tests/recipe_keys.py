"""The effect of every key of a recipe; those of tasks and rewards come from their own files. Used by two test files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel

from effects import (
    CLASSIC,
    GPU,
    REWARD_BASES,
    TASK_BASES,
    Effect,
    description,
    drawn_at_most,
    evaluated,
    exported,
    grpo,
    load,
    load_if,
    lora,
    rows_short_enough,
    sampled,
    setting,
    several,
    source,
    warmup,
    warmup_rows,
)
from export_effects import COPY, looks_at_the_adapter, merged_into, merged_wide, weighed, written
from heldout_effects import evaluated_at, kept_step, last_step, rows_asked
from hub_effects import checkpoints_up, made_private, placed, pushes
from models import small_recipe
from reward_keys import REWARD_EFFECTS
from task_keys import TASK_EFFECTS
from toolkit.engine import arguments, machine
from toolkit.recipe import Recipe
from toolkit.rewards import REWARDS
from toolkit.tasks import TASKS

WITH_GPU = {"model.fast_inference": True, "model.dtype": "auto"}
"""On a GPU, and with Unsloth's vLLM, which computes in 16 bits."""
EVERY_SECOND = {"eval.every": 2, "grpo.max_steps": 12}
REPO = {"hub.repo": "me/other"}

EFFECTS: dict[str, Effect] = {
    "description": Effect("adds numbers", description),
    "seed": Effect(
        7,
        several(grpo("seed"), grpo("data_seed"), warmup("seed"), load("random_state"), lora("random_state")),
        [7] * 5,
    ),
    "model.source": Effect("org/other", source),
    "model.revision": Effect("v2", load("revision")),
    "model.max_seq_length": Effect(256, several(load("max_seq_length"), warmup("max_length")), [256, 256]),
    "model.load_in_4bit": Effect(True, load("load_in_4bit")),
    "model.dtype": Effect("bfloat16", several(load("dtype"), grpo("bf16", GPU)), ["bfloat16", True]),
    "model.load_in_8bit": Effect(True, load("load_in_8bit", GPU)),
    "model.full_finetuning": Effect(
        True,
        several(load("full_finetuning"), load("dtype"), load_if("float32_mixed_precision", GPU)),
        [True, "float32", True],
        {"model.dtype": "auto", "model.lora.r": 16},
    ),
    "model.fast_inference": Effect(
        False, several(load("fast_inference", GPU), grpo("use_vllm", GPU)), [False, False], {"model.dtype": "auto"}
    ),
    "model.standby": Effect(
        True,
        several(lambda recipe: setting(recipe, GPU).standby, lambda recipe: machine.tokens_per_pass(recipe, GPU)),
        [True, 32768],
        WITH_GPU,
    ),
    "model.vllm_server": Effect(
        "http://127.0.0.1:8000",
        several(lambda recipe: setting(recipe, GPU).generator, load("fast_inference", GPU), grpo("use_vllm", GPU)),
        ["server", False, False],
        {"model.dtype": "auto"},
    ),
    "model.gpu_memory_utilization": Effect(0.3, load("gpu_memory_utilization", GPU), given=WITH_GPU),
    "model.lora.r": Effect(32, several(lora("r"), load("max_lora_rank", GPU)), [32, 32], WITH_GPU),
    "model.lora.lora_alpha": Effect(64, lora("lora_alpha")),
    "model.lora.lora_dropout": Effect(0.1, lora("lora_dropout")),
    "model.lora.target_modules": Effect(["q_proj", "v_proj"], lora("target_modules")),
    "model.lora.use_rslora": Effect(True, lora("use_rslora")),
    "warmup.max_steps": Effect(3, several(warmup("max_steps"), warmup_rows), [3, 6]),
    "warmup.batch_size": Effect(4, several(warmup("per_device_train_batch_size"), warmup_rows), [4, 8]),
    "warmup.learning_rate": Effect(1e-4, warmup("learning_rate")),
    "grpo.num_generations": Effect(
        2, several(grpo("num_generations"), lambda recipe: setting(recipe).batch_rows), [2, 4]
    ),
    "grpo.prompts_per_step": Effect(
        4, lambda recipe: grpo("per_device_train_batch_size")(recipe) * grpo("steps_per_generation")(recipe) // 4
    ),
    "grpo.max_steps": Effect(9, grpo("max_steps")),
    "grpo.learning_rate": Effect(1e-3, grpo("learning_rate")),
    "grpo.temperature": Effect(0.7, sampled("temperature"), [0.7, 0.7]),
    "grpo.top_p": Effect(0.9, sampled("top_p"), [0.9, 0.9]),
    "grpo.top_k": Effect(50, sampled("top_k"), [50, 50]),
    "grpo.min_p": Effect(0.1, sampled("min_p"), [0.1, 0.1]),
    "grpo.repetition_penalty": Effect(1.2, sampled("repetition_penalty"), [1.2, 1.2]),
    "grpo.max_prompt_length": Effect(
        27, rows_short_enough, 2, {"task": TASK_BASES["gsm8k"] | {"train_file": "lengths.jsonl"}}
    ),
    "grpo.max_completion_length": Effect(
        16,
        several(
            grpo("max_completion_length"),
            lambda recipe: arguments.training_sampling(recipe, ()).max_new_tokens,
        ),
        [16, 16],
    ),
    "grpo.beta": Effect(0.04, grpo("beta")),
    "grpo.loss_type": Effect("dapo", grpo("loss_type")),
    "grpo.scale_rewards": Effect("none", grpo("scale_rewards")),
    "grpo.importance_sampling_level": Effect("sequence", grpo("importance_sampling_level")),
    "grpo.epsilon": Effect(0.1, grpo("epsilon")),
    "grpo.epsilon_high": Effect(0.28, grpo("epsilon_high")),
    "grpo.delta": Effect(2.0, grpo("delta")),
    "grpo.num_iterations": Effect(2, grpo("num_iterations")),
    "grpo.mask_truncated_completions": Effect(True, grpo("mask_truncated_completions")),
    "grpo.resample_rounds": Effect(2, drawn_at_most, 3 * 2 * 2 * 4),
    "grpo.adam_beta1": Effect(0.8, grpo("adam_beta1")),
    "grpo.adam_beta2": Effect(0.95, grpo("adam_beta2")),
    "grpo.weight_decay": Effect(0.3, grpo("weight_decay")),
    "grpo.warmup_steps": Effect(5.0, grpo("warmup_steps")),
    "grpo.lr_scheduler_type": Effect("linear", grpo("lr_scheduler_type")),
    "grpo.optim": Effect("adafactor", several(grpo("optim"), warmup("optim"), grpo("optim", GPU)), ["adafactor"] * 3),
    "grpo.max_grad_norm": Effect(1.5, grpo("max_grad_norm")),
    "grpo.per_device_train_batch_size": Effect(
        2, several(grpo("per_device_train_batch_size"), grpo("gradient_accumulation_steps")), [2, 4]
    ),
    "grpo.gradient_checkpointing": Effect(
        False,
        several(
            grpo("gradient_checkpointing"), warmup("gradient_checkpointing"), load("use_gradient_checkpointing"),
            lora("use_gradient_checkpointing"),
        ),
        [False] * 4,
    ),
    "grpo.save_steps": Effect(3, grpo("save_steps")),
    "eval.rows": Effect(2, evaluated(lambda record, asked: [record["n"], len(asked[0]["prompts"])]), [2, 2]),
    "eval.samples": Effect(3, evaluated(lambda record, asked: [record["samples"], asked[-1]["samples"]]), [3, 3]),
    "eval.greedy": Effect(
        False,
        evaluated(lambda record, _: "greedy" in record["models"]["base"]),
    ),
    "eval.batch_size": Effect(2, evaluated(lambda _, asked: asked[0]["batch_rows"])),
    "eval.few_shot": Effect(
        1, evaluated(lambda record, asked: [record.get("few_shot", {}).get("examples"), len(asked)]), [1, 4]
    ),
    "eval.every": Effect(3, evaluated_at, [0, 3, 6], {"grpo.max_steps": 6}),
    "eval.every_rows": Effect(2, rows_asked, [2, 2], {"eval.every": 2}),
    "eval.keep_best": Effect(True, kept_step, 4, EVERY_SECOND),
    "eval.stop_after": Effect(2, last_step, 8, EVERY_SECOND),
    "export.merged": Effect(False, exported("merged")),
    "export.merged_dtype": Effect("float32", merged_wide, True),
    "export.base": Effect("org/sixteen", merged_into, ("org/sixteen", False), COPY),
    "export.dequantize_base": Effect(True, merged_into, ("org/model-bnb-4bit", True), COPY),
    "export.gguf": Effect(["q8_0"], exported("quants")),
    "export.imatrix": Effect(True, weighed),
    "export.lora_gguf": Effect(True, looks_at_the_adapter),
    "export.max_shard_size": Effect("2GB", written("max_bytes"), 2 * 10**9),
    "hub.repo": Effect("me/mine", placed("merged"), given=REPO),
    "hub.adapter_repo": Effect("me/lora", placed("adapter"), given=REPO),
    "hub.gguf_repo": Effect("me/gguf", placed("gguf"), given=REPO),
    "hub.private": Effect(False, made_private, given=REPO | {"hub.push_checkpoints": True}),
    "hub.push": Effect(True, pushes, given=REPO),
    "hub.push_checkpoints": Effect(True, checkpoints_up, given=REPO),
    "report_to": Effect("trackio", grpo("report_to")),
    **TASK_EFFECTS,
    **REWARD_EFFECTS,
}  # fmt: skip


def leaves() -> Iterator[str]:
    """Every key that a recipe can hold, but the tags that choose a class."""
    for name, info in Recipe.model_fields.items():
        if name == "task":
            yield from (
                f"task.{tag}.{key}" for tag, kind in TASKS.items() for key in kind.model_fields if key != "name"
            )
        elif name == "rewards":
            yield from (
                f"rewards.{tag}.{key}" for tag, kind in REWARDS.items() for key in kind.model_fields if key != "name"
            )
        else:
            yield from _leaves_of(name, info.annotation)


def _leaves_of(key: str, annotation: Any) -> Iterator[str]:
    models = [
        kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type) and issubclass(kind, BaseModel)
    ]
    if not models:
        yield key
    for model in models:
        for name, info in model.model_fields.items():
            yield from _leaves_of(f"{key}.{name}", info.annotation)


def with_values(*values: dict[str, Any]) -> Recipe:
    """The small recipe with the classic rewards, those that are named, and these dotted keys."""
    wanted = {key: value for given in values for key, value in given.items()}
    named = [key.split(".")[1] for key in wanted if key.startswith("rewards.")]
    rewards = [REWARD_BASES[name] for name in dict.fromkeys([*CLASSIC, *named])]
    plain = small_recipe("org/base", rewards=rewards, eval={"rows": 4, "samples": 2}).model_dump(mode="json")
    for key, value in wanted.items():
        *path, last = key.split(".")
        place: Any = plain
        if path[:1] == ["task"]:
            if plain["task"]["name"] != path[1]:
                plain["task"] = dict(TASK_BASES[path[1]])
            path = path[:1]
        for part in path:
            place = next(item for item in place if item["name"] == part) if isinstance(place, list) else place[part]
        place[last] = dict(value) if isinstance(value, dict) else value
    return Recipe.model_validate(plain)


def base_of(key: str) -> dict[str, Any]:
    """What a recipe must hold for this key to be in it: its task, or its reward with the weight it has anyway."""
    section, name, *_ = f"{key}.".split(".")
    if section == "rewards":
        return {f"rewards.{name}.weight": 1.0}
    return {"task": dict(TASK_BASES[name])} if section == "task" else {}
