"""For every key of a recipe: another value, what is built from it, and what must be built then. Used by two test files."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from by_heart import evaluate
from models import small_recipe
from toolkit.engine import arguments, machine
from toolkit.engine.machine import Machine, Setting
from toolkit.recipe import Recipe, list_recipes
from toolkit.rewards import REWARDS
from toolkit.rundir import write_json
from toolkit.tasks import TASKS
from toolkit.tasks.base import Row

CPU = Machine("cpu", bf16=True, name="a CPU", threads=2, memory_gib=8.0)
GPU = Machine("cuda", bf16=True, name="a GPU", threads=8, memory_gib=64.0)

FILES = {
    "train": [{"question": f"What is {n} + 1?", "answer": f"Add one. #### {n + 1}"} for n in range(5)],
    "heldout": [{"question": f"What is {n} + 2?", "answer": f"Add two. #### {n + 2}"} for n in range(5)],
}
QUESTIONS = {split: [record["question"] for record in records] for split, records in FILES.items()}
TASK_BASES: dict[str, dict[str, Any]] = {
    "gsm8k": {"name": "gsm8k", "train_file": "train.jsonl", "heldout_file": "heldout.jsonl"},
    "reasoning_gym": {"name": "reasoning_gym", "dataset": "chain_sum", "train_rows": 12, "heldout_rows": 4},
}
REWARD_BASES = [{"name": name} for name in REWARDS]

Read = Callable[[Recipe], Any]
SAME: Any = object()


@dataclass(frozen=True)
class Effect:
    """A key's other value, what is built from a recipe, and what is expected of it with that value: the value itself."""

    value: Any
    read: Read
    expected: Any = SAME
    given: dict[str, Any] = field(default_factory=dict)
    """Keys that both recipes need for this one to matter."""


def setting(recipe: Recipe, on: Machine = CPU) -> Setting:
    return machine.resolve(recipe, on)


def grpo(name: str, on: Machine = CPU) -> Read:
    return lambda recipe: arguments.grpo_arguments(recipe, setting(recipe, on), Path("folder"))[name]


def warmup(name: str) -> Read:
    return lambda recipe: arguments.warmup_arguments(recipe, setting(recipe), Path("folder"))[name]


def load(name: str, on: Machine = CPU) -> Read:
    return lambda recipe: arguments.load_arguments(recipe, setting(recipe, on), "source")[name]


def lora(name: str) -> Read:
    return lambda recipe: arguments.adapter_arguments(recipe)[name]


def several(*reads: Read) -> Read:
    return lambda recipe: [read(recipe) for read in reads]


def sampled(name: str) -> Read:
    """What TRL is told and what the toolkit's own generation does."""
    return several(grpo(name), lambda recipe: getattr(arguments.training_sampling(recipe, ()), name))


def evaluated(read: Callable[[dict[str, Any], list[dict[str, Any]]], Any]) -> Read:
    def run(recipe: Recipe) -> Any:
        folder = Path(f"run{len(list(Path().iterdir()))}")
        return read(*evaluate(recipe, folder))

    return run


def exported(name: str) -> Read:
    """What `toolkit export` asks of the export step."""

    def run(recipe: Recipe) -> Any:
        from toolkit.cli import verbs

        write_json(Path("runs/one/recipe.json"), recipe.model_dump(mode="json"))
        asked: dict[str, Any] = {}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "toolkit.export.export_run", lambda _, **given: asked.update(given) or SimpleNamespace(folder=Path())
            )
            verbs._export(argparse.Namespace(run="runs/one", format=None, note_folder=None))
        return asked[name]

    return run


def pushed(name: str) -> Read:
    """What `toolkit push` asks of the Hub."""

    def run(recipe: Recipe) -> Any:
        from toolkit.hub import push_export

        folder = Path("exports/one")
        write_json(folder / "recipe.json", recipe.model_dump(mode="json"))
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Asked) as asked:
            patch.setattr("toolkit.hub._api", lambda: None)
            patch.setattr("toolkit.hub.verified_files", lambda _: ["model.gguf"])
            patch.setattr("toolkit.hub._prepare_repo", _stop_with_arguments)
            push_export(folder)
        return asked.value.args[0][name]

    return run


class Asked(Exception):
    """Carries what was asked, from where a step would leave this machine."""


def _stop_with_arguments(_: Any, repo: str, *, private: bool, recipe: Path) -> None:
    raise Asked({"repo": repo, "private": private})


def rows(split: Any, read: Callable[[Row], Any]) -> Read:
    return lambda recipe: [read(row) for row in recipe.task.rows(split)]


def count(split: Any) -> Read:
    return lambda recipe: len(recipe.task.rows(split))


def question(row: Row) -> str:
    return row.question


def first_message(recipe: Recipe) -> dict[str, str]:
    return recipe.task.messages(recipe.task.rows("heldout")[0])[0]


def description(recipe: Recipe) -> str:
    """As `toolkit recipes` lists it."""
    Path("recipes").mkdir(exist_ok=True)
    Path("recipes/mine.yaml").write_text(json.dumps(recipe.model_dump(mode="json")), encoding="utf-8")
    return next(entry.description for entry in list_recipes() if entry.name == "mine")


def rows_short_enough(recipe: Recipe) -> int:
    """How many of the rows training keeps, where a prompt is as long as its question."""
    from toolkit.train import _short_enough

    policy: Any = SimpleNamespace(prompt_ids=lambda messages: list(messages[-1]["content"]))
    return len(_short_enough(policy, recipe, recipe.task.rows("train")))


def warmup_rows(recipe: Recipe) -> int:
    from toolkit.train import _examples

    return len(_examples(recipe, recipe.task.rows("train")))


def source(recipe: Recipe) -> str:
    from toolkit.engine.source import training_source

    return training_source(recipe.model)


def score(name: str, text: str) -> Read:
    row = Row("row", "What is 1 + 1?", "2")
    return lambda recipe: next(reward.score(text, row) for reward in recipe.rewards if reward.name == name)


def weight(name: str) -> Read:
    """What TRL multiplies with, and what the record of completions does."""

    def recorded(recipe: Recipe) -> float:
        from toolkit.engine.rollout import ROW_COLUMN, RewardRecorder

        recorder = RewardRecorder(recipe.rewards, {"row": Row("row", "What is 1 + 1?", "2")})
        text = "<reasoning>\n1 + 1 = 2\n</reasoning>\n<answer>\n2\n</answer>"
        for function in recorder.functions:
            function(completions=[[{"content": text}]], completion_ids=[[1, 2]], **{ROW_COLUMN: ["row"]})
        (entry,) = recorder.take()
        paid = sum(entry[f"reward/{reward.name}"] for reward in recipe.rewards if reward.name != name)
        return (entry["reward"] - paid) / entry[f"reward/{name}"]

    at = list(REWARDS).index(name)
    return several(
        lambda recipe: arguments.grpo_arguments(recipe, setting(recipe), Path())["reward_weights"][at], recorded
    )


NO_TAGS = "2"
LINES = "<reasoning>\n1\n2\n</reasoning>\n<answer>\n2\n</answer>\n"
WITH_GPU = {"model.fast_inference": True}

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
    "model.fast_inference": Effect(True, several(load("fast_inference", GPU), grpo("use_vllm", GPU)), [True, True]),
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
    "export.merged": Effect(False, exported("merged")),
    "export.gguf": Effect(["q8_0"], exported("quants")),
    "hub.repo": Effect("me/mine", pushed("repo"), given={"hub.repo": "me/other"}),
    "hub.private": Effect(False, pushed("private"), given={"hub.repo": "me/other"}),
    "task.gsm8k.system_prompt": Effect("Be brief.", first_message, {"role": "system", "content": "Be brief."}),
    "task.gsm8k.train_file": Effect("heldout.jsonl", rows("train", question), QUESTIONS["heldout"]),
    "task.gsm8k.heldout_file": Effect("train.jsonl", rows("heldout", question), QUESTIONS["train"]),
    "task.gsm8k.max_train": Effect(3, count("train")),
    "task.gsm8k.max_heldout": Effect(3, count("heldout")),
    "task.reasoning_gym.system_prompt": Effect("Be brief.", first_message, {"role": "system", "content": "Be brief."}),
    "task.reasoning_gym.dataset": Effect("gcd", rows("train", question), None),
    "task.reasoning_gym.parameters": Effect(
        {"min_terms": 3, "max_terms": 3}, rows("train", lambda row: str(row.level).split(",")[0]), ["3 terms"] * 12
    ),
    "task.reasoning_gym.train_rows": Effect(9, count("train")),
    "task.reasoning_gym.heldout_rows": Effect(9, count("heldout")),
    "task.reasoning_gym.train_seed": Effect(77, rows("train", question), None),
    "task.reasoning_gym.heldout_seed": Effect(77, rows("heldout", question), None),
    **{f"rewards.{name}.weight": Effect(0.25, weight(name), [0.25, 0.25]) for name in REWARDS},
    "rewards.xmlcount.legacy": Effect(True, score("xmlcount", "<reasoning>\n"), 0.125),
    "rewards.soft_format.legacy": Effect(True, score("soft_format", LINES), 0.0),
    "rewards.strict_format.legacy": Effect(True, score("strict_format", LINES), 0.0),
    "rewards.integer.legacy": Effect(True, score("integer", NO_TAGS), 0.5),
    "rewards.correctness.legacy": Effect(True, score("correctness", NO_TAGS), 2.0),
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
    """The small recipe with all rewards and these dotted keys."""
    plain = small_recipe("org/base", rewards=REWARD_BASES, eval={"rows": 4, "samples": 2}).model_dump(mode="json")
    for key, value in {key: value for given in values for key, value in given.items()}.items():
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
    return {"task": dict(TASK_BASES[key.split(".")[1]])} if key.startswith("task.") else {}
