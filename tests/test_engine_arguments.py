"""Every key of a recipe changes something that is built, and what is built accepts and holds what it is given."""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from pydantic import BaseModel

import unsloth_side
from by_heart import evaluate
from models import small_recipe
from toolkit.engine import arguments, machine
from toolkit.engine.machine import Machine, Setting
from toolkit.recipe import Recipe, list_recipes
from toolkit.rewards import REWARDS
from toolkit.rundir import write_json
from toolkit.tasks import TASKS
from toolkit.tasks.base import Row

pytest_plugins = ("shared",)

CPU = Machine("cpu", bf16=True, name="a CPU", threads=2, memory_gib=8.0)
GPU = Machine("cuda", bf16=True, name="a GPU", threads=8, memory_gib=64.0)

NOTHING_READS_THESE_YET = {"hub.repo", "hub.private"}
"""Keys for a step that does not exist. Nothing else may stand here."""

FILES = {
    "train": [{"question": f"What is {n} + 1?", "answer": f"Add one. #### {n + 1}"} for n in range(5)],
    "heldout": [{"question": f"What is {n} + 2?", "answer": f"Add two. #### {n + 2}"} for n in range(5)],
}
TASK_BASES: dict[str, dict[str, Any]] = {
    "gsm8k": {"name": "gsm8k", "train_file": "train.jsonl", "heldout_file": "heldout.jsonl"},
    "reasoning_gym": {"name": "reasoning_gym", "dataset": "chain_sum", "train_rows": 12, "heldout_rows": 4},
}
REWARD_BASES = [{"name": name} for name in REWARDS]

Read = Callable[[Recipe], Any]
SAME: Any = object()


@dataclass(frozen=True)
class Effect:
    """A key's other value, what is built from a recipe, and what must be built with that value (itself, if not said)."""

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

    Path("runs/one/adapter").mkdir(parents=True, exist_ok=True)
    return run


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
TAIL = "<reasoning>\nx\n</reasoning>\n<answer>\n2\n</answer>\n"
LINES = "<reasoning>\n1\n2\n</reasoning>\n<answer>\n2\n</answer>\n"
WITH_GPU = {"model.fast_inference": True}

EFFECTS: dict[str, Effect] = {
    "description": Effect("adds numbers", description),
    "seed": Effect(7, several(grpo("seed"), grpo("data_seed"), warmup("seed"), load("random_state"), lora("random_state")), [7] * 5),
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
    "grpo.num_generations": Effect(2, several(grpo("num_generations"), lambda recipe: setting(recipe).batch_rows), [2, 4]),
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
    "grpo.max_prompt_length": Effect(27, rows_short_enough, 2, {"task": TASK_BASES["gsm8k"] | {"train_file": "lengths.jsonl"}}),
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
        False, evaluated(lambda record, _: "greedy" in record["models"]["base"] or "greedy" in record["differences"]["tuned-base"])
    ),
    "eval.batch_size": Effect(2, evaluated(lambda _, asked: asked[0]["batch_rows"])),
    "export.merged": Effect(False, exported("merged")),
    "export.gguf": Effect(["q8_0"], exported("quants")),
    "task.gsm8k.system_prompt": Effect("Be brief.", first_message, {"role": "system", "content": "Be brief."}),
    "task.gsm8k.train_file": Effect("heldout.jsonl", rows("train", question), [r["question"] for r in FILES["heldout"]]),
    "task.gsm8k.heldout_file": Effect("train.jsonl", rows("heldout", question), [r["question"] for r in FILES["train"]]),
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


@pytest.fixture
def data(tmp_path: Path) -> Iterator[None]:
    """A folder with GSM8K files to be in."""
    lengths = [{"question": "What is " + "1" * n + "?", "answer": "#### 1"} for n in (17, 18, 19, 20)]
    for name, records in {**FILES, "lengths": lengths}.items():
        text = "".join(json.dumps(record) + "\n" for record in records)
        (tmp_path / f"{name}.jsonl").write_text(text, encoding="utf-8")
    (tmp_path / "runs" / "one" / "adapter").mkdir(parents=True)
    with contextlib.chdir(tmp_path):
        yield


def test_every_key_stands_in_the_table_and_nothing_else() -> None:
    keys = set(leaves())
    assert keys - set(EFFECTS) == NOTHING_READS_THESE_YET
    assert set(EFFECTS) - keys == set()
    assert len(keys) > 60


@pytest.mark.parametrize("key", EFFECTS)
@pytest.mark.usefixtures("data")
def test_every_key_changes_what_is_built(key: str) -> None:
    effect = EFFECTS[key]
    before = effect.read(with_values(base_of(key), effect.given))
    after = effect.read(with_values(base_of(key), effect.given, {key: effect.value}))
    assert after != before
    if effect.expected is not None:
        assert after == (effect.value if effect.expected is SAME else effect.expected)


def test_a_name_chooses_the_class() -> None:
    recipe = with_values()
    assert [type(reward) for reward in recipe.rewards] == list(REWARDS.values())
    for name, kind in TASKS.items():
        assert type(with_values({"task": TASK_BASES[name]}).task) is kind


def test_without_a_warm_up_nothing_is_warmed_up() -> None:
    assert warmup_rows(with_values({"warmup": None})) == 0
    assert warmup_rows(with_values()) == 4


# What the machine changes.


def test_a_gpu_keeps_what_it_can_do() -> None:
    recipe = with_values({"grpo.optim": "paged_adamw_8bit", "model.dtype": "auto"}, WITH_GPU)
    resolved = setting(recipe, GPU)
    assert (resolved.optim, resolved.dtype, resolved.fast_inference) == ("paged_adamw_8bit", "bfloat16", True)
    assert resolved.changes == ()


def test_a_cpu_replaces_what_it_cannot_do_and_says_so() -> None:
    recipe = with_values({"grpo.optim": "paged_adamw_8bit", "model.dtype": "float16"}, WITH_GPU)
    resolved = setting(recipe)
    assert (resolved.optim, resolved.dtype, resolved.fast_inference) == ("adamw_torch_fused", "bfloat16", False)
    told = {change.key: (change.asked, change.used) for change in resolved.changes}
    assert told == {
        "model.fast_inference": (True, False), "grpo.optim": ("paged_adamw_8bit", "adamw_torch_fused"),
        "model.dtype": ("float16", "bfloat16"),
    }  # fmt: skip
    assert all(change.why for change in resolved.changes)


@pytest.mark.parametrize(
    ("device", "bf16", "asked", "used"),
    [
        ("cpu", True, "auto", "bfloat16"), ("cpu", False, "auto", "float32"), ("cuda", False, "auto", "float16"),
        ("cpu", False, "float16", "float32"), ("cuda", False, "bfloat16", "float16"), ("cpu", True, "float32", "float32"),
        ("cpu", False, "bfloat16", "bfloat16"),
    ],
)  # fmt: skip
def test_the_dtype_is_one_the_machine_is_good_at(device: Any, bf16: bool, asked: str, used: str) -> None:
    resolved = setting(with_values({"model.dtype": asked}), Machine(device, bf16, "m", 2, 8.0))
    assert resolved.dtype == used
    told = any(change.key == "model.dtype" for change in resolved.changes)
    assert told == (asked not in ("auto", used))


@pytest.mark.parametrize("generations", [2, 3, 8])
@pytest.mark.parametrize("prompts", [1, 5, 8, 64])
@pytest.mark.parametrize("length", [20, 700, 5000])
def test_a_batch_divides_the_step_and_holds_whole_groups_where_they_fit(
    generations: int, prompts: int, length: int
) -> None:
    recipe = with_values(
        {"grpo.num_generations": generations, "grpo.prompts_per_step": prompts, "grpo.max_completion_length": length,
         "model.max_seq_length": 8192}
    )  # fmt: skip
    for on in (CPU, GPU):
        resolved = setting(recipe, on)
        built = arguments.grpo_arguments(recipe, resolved, Path())
        fits = max(1, machine.MICRO_BATCH_TOKENS[on.device] // (96 + length))
        assert generations * prompts % resolved.batch_rows == 0
        assert resolved.batch_rows <= fits
        assert resolved.batch_rows % generations == 0 or fits < generations
        assert built["per_device_train_batch_size"] * built["steps_per_generation"] == generations * prompts
        assert built["gradient_accumulation_steps"] == built["steps_per_generation"]


# The real objects, built in the process that imported unsloth.

Ask = Callable[..., Any]
EVERYTHING_ELSE: dict[str, Any] = {
    key: effect.value
    for key, effect in EFFECTS.items()
    if key.split(".")[0] in ("grpo", "model", "warmup")
    and key
    not in (
        "model.source",
        "model.revision",
        "model.fast_inference",
        "model.gpu_memory_utilization",
        "grpo.max_prompt_length",
    )
} | {"seed": 7, "grpo.importance_sampling_level": "token"}  # a sequence ratio goes with another loss_type
ON_THE_TRAINER = {
    "num_generations": "num_generations", "temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p",
    "repetition_penalty": "repetition_penalty", "beta": "beta", "loss_type": "loss_type", "scale_rewards": "scale_rewards",
    "importance_sampling_level": "importance_sampling_level", "epsilon": "epsilon_low", "epsilon_high": "epsilon_high",
    "num_iterations": "num_iterations", "mask_truncated_completions": "mask_truncated_completions",
    "max_completion_length": "max_completion_length",
}  # fmt: skip


@pytest.fixture(scope="module")
def accepted(unsloth_process: Ask) -> dict[str, list[str]]:
    return unsloth_process(unsloth_side.accepted_arguments)


def test_every_argument_is_one_that_the_pinned_libraries_take(accepted: dict[str, list[str]]) -> None:
    recipe = with_values(WITH_GPU)
    for on in (CPU, GPU):
        resolved = setting(recipe, on)
        assert set(arguments.grpo_arguments(recipe, resolved, Path())) <= set(accepted["grpo"])
        assert set(arguments.warmup_arguments(recipe, resolved, Path())) <= set(accepted["warmup"])
    for_lora = {
        name
        for name in arguments.adapter_arguments(recipe)
        if name not in ("random_state", "use_gradient_checkpointing")
    }
    assert for_lora <= set(accepted["lora"])
    assert set(arguments.adapter_arguments(recipe)) <= set(accepted["adapter"])
    # Seeding the load is a GPU argument; Unsloth's CPU loader swallows what it does not know.
    assert set(arguments.load_arguments(recipe, setting(recipe), "s")) - set(accepted["load"]) == {"random_state"}


def signature_in_source(file: str, kind: str, function: str) -> set[str]:
    """Parameter names as they are written in a file of the installed unsloth that only a GPU can import."""
    spec = find_spec("unsloth")
    assert spec is not None and spec.origin is not None
    tree = ast.parse((Path(spec.origin).parent / file).read_text(encoding="utf-8"))
    (owner,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == kind]
    (found,) = [node for node in owner.body if isinstance(node, ast.FunctionDef) and node.name == function]
    return {argument.arg for argument in [*found.args.args, *found.args.kwonlyargs]}


def test_every_argument_is_one_that_unsloth_takes_on_a_gpu() -> None:
    """Read in its source: on a GPU a wrong name is printed as ignored and training goes on without it."""
    recipe = with_values(WITH_GPU)
    loader = signature_in_source("models/loader.py", "FastLanguageModel", "from_pretrained")
    adapter = signature_in_source("models/llama.py", "FastLlamaModel", "get_peft_model")
    assert set(arguments.load_arguments(recipe, setting(recipe, GPU), "s")) <= loader
    assert set(arguments.adapter_arguments(recipe)) <= adapter


@pytest.fixture(scope="module")
def before(unsloth_process: Ask, tiny_checkpoint: Path) -> dict[str, Any]:
    return unsloth_process(unsloth_side.built, with_values({"model.source": str(tiny_checkpoint)}))


@pytest.fixture(scope="module")
def after(unsloth_process: Ask, tiny_checkpoint: Path) -> dict[str, Any]:
    """Built from a recipe in which every key has its other value."""
    return unsloth_process(unsloth_side.built, with_values(EVERYTHING_ELSE, {"model.source": str(tiny_checkpoint)}))


def test_the_built_trainer_holds_every_value_of_the_recipe(before: dict[str, Any], after: dict[str, Any]) -> None:
    for name in (key.removeprefix("grpo.") for key in EFFECTS if key.startswith("grpo.")):
        if name in ("prompts_per_step", "max_prompt_length"):
            continue
        value = EVERYTHING_ELSE[f"grpo.{name}"]
        assert after["grpo"][name] == value, name
        if name in ON_THE_TRAINER:
            assert after["trainer"][ON_THE_TRAINER[name]] == value, name
        if name != "importance_sampling_level":
            assert before["grpo"][name] != value, name
    assert after["grpo"]["generation_batch_size"] == 2 * 4 != before["grpo"]["generation_batch_size"] * 2
    assert after["grpo"]["seed"] == after["grpo"]["data_seed"] == 7


def test_a_sequence_ratio_reaches_the_built_trainer(unsloth_process: Ask, tiny_checkpoint: Path) -> None:
    recipe = with_values({"grpo.importance_sampling_level": "sequence", "model.source": str(tiny_checkpoint)})
    assert unsloth_process(unsloth_side.built, recipe)["trainer"]["importance_sampling_level"] == "sequence"


def test_the_built_warm_up_holds_every_value_of_the_recipe(before: dict[str, Any], after: dict[str, Any]) -> None:
    found = {
        name: after["warmup"][name]
        for name in ("max_steps", "per_device_train_batch_size", "learning_rate", "max_length")
    }
    assert found == {"max_steps": 3, "per_device_train_batch_size": 4, "learning_rate": 1e-4, "max_length": 256}
    assert all(before["warmup"][name] != value for name, value in found.items())
    assert after["warmup"]["completion_only_loss"] is True


def test_the_built_adapter_holds_every_value_of_the_recipe(before: dict[str, Any], after: dict[str, Any]) -> None:
    expected = {
        "r": 32,
        "lora_alpha": 64,
        "lora_dropout": 0.1,
        "target_modules": ["q_proj", "v_proj"],
        "use_rslora": True,
    }
    assert {name: after["lora"][name] for name in expected} == expected
    assert all(before["lora"][name] != value for name, value in expected.items())
    assert after["model"]["adapted"] == ["q_proj", "v_proj"] and len(before["model"]["adapted"]) == 7
    assert after["model"]["scaling"] == pytest.approx(64 / 32**0.5)
    assert before["model"]["scaling"] == pytest.approx(16 / 4)


def test_the_loaded_model_is_what_the_recipe_says(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert (before["model"]["dtype"], after["model"]["dtype"]) == ("float32", "bfloat16")
    assert (before["model"]["four_bit"], after["model"]["four_bit"]) == (False, True)
    assert (before["model"]["max_seq_length"], after["model"]["max_seq_length"]) == (128, 256)
    assert (before["model"]["checkpointing"], after["model"]["checkpointing"]) == (True, False)


def test_the_built_optimizer_is_the_one_named(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert before["optimizer"][0] == "AdamW" and before["changes"] == ["grpo.optim"]
    assert after["optimizer"][0] == "Adafactor" and after["changes"] == []


def test_rewards_reach_the_trainer_by_name_and_with_their_weights(unsloth_process: Ask, tiny_checkpoint: Path) -> None:
    weights = {f"rewards.{name}.weight": at + 0.5 for at, name in enumerate(REWARDS)}
    found = unsloth_process(unsloth_side.built, with_values(weights, {"model.source": str(tiny_checkpoint)}))
    assert found["rewards"] == list(REWARDS)
    assert found["reward_weights"] == list(weights.values())


def test_another_seed_gives_another_adapter(
    unsloth_process: Ask, tiny_checkpoint: Path, before: dict[str, Any]
) -> None:
    place = {"model.source": str(tiny_checkpoint)}
    again, other = (unsloth_process(unsloth_side.built, with_values(place, {"seed": seed})) for seed in (3407, 7))
    assert again["model"]["first_weights"] == before["model"]["first_weights"] != other["model"]["first_weights"]
