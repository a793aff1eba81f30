"""What a recipe key does: another value for it, what is built from the recipe, and what must be built then."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from by_heart import evaluate
from toolkit.atomic import write_json
from toolkit.engine import arguments, machine
from toolkit.engine.machine import Machine, Setting
from toolkit.recipe import Recipe, list_recipes
from toolkit.tasks.base import Row

CPU = Machine("cpu", bf16=True, name="a CPU", threads=2, memory_gib=8.0)
GPU = Machine("cuda", bf16=True, name="a GPU", threads=8, memory_gib=64.0, vllm=True)


def _record(question: str, answer: str, gold: int) -> dict[str, Any]:
    """Columns for every task that reads files."""
    return {"question": question, "answer": answer, "prompt": question, "completion": "A sum.", "gold": gold}


FILES = {
    "train": [_record(f"What is {n} + 1?", f"Add one. #### {n + 1}", n + 1) for n in range(5)],
    "heldout": [_record(f"What is {n} + 2?", f"Add two. #### {n + 2}", n + 2) for n in range(5)],
}
QUESTIONS = {split: [record["question"] for record in records] for split, records in FILES.items()}
TASK_BASES: dict[str, dict[str, Any]] = {
    "gsm8k": {"name": "gsm8k", "train_file": "train.jsonl", "heldout_file": "heldout.jsonl"},
    "reasoning_gym": {"name": "reasoning_gym", "dataset": "chain_sum", "train_rows": 12, "heldout_rows": 4},
    "tldr": {"name": "tldr", "train_file": "train.jsonl", "heldout_file": "heldout.jsonl"},
    "prompts": {"name": "prompts", "prompts": ["Sing.", "Count to ten.", "Tell a joke.", "Say hello."]},
    "table": {"name": "table", "train_file": "train.jsonl"},
}
CLASSIC = ("xmlcount", "soft_format", "strict_format", "integer", "correctness")
"""The rewards of the small recipe; another one is added for the test of its own keys."""
REWARD_BASES: dict[str, dict[str, Any]] = {
    **{name: {"name": name} for name in (*CLASSIC, "math_verify", "think_format", "repetition")},
    "length": {"name": "length", "ideal": 50},
    "pattern": {"name": "pattern", "pattern": "2"},
    "overlong": {"name": "overlong", "cache": 1},
    "judge": {"name": "judge", "criteria": "It is true."},
    "python": {"name": "python", "function": "user_functions:half"},
}
"""Per reward the least that it needs."""

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


def load_if(name: str, on: Machine) -> Read:
    """An argument that only some recipes have."""
    return lambda recipe: arguments.load_arguments(recipe, setting(recipe, on), "source").get(name)


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
        from toolkit.cli import export_verbs

        write_json(Path("runs/one/recipe.json"), recipe.model_dump(mode="json"))
        asked: dict[str, Any] = {}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "toolkit.export.export_run", lambda _, **given: asked.update(given) or SimpleNamespace(folder=Path())
            )
            export_verbs._export(argparse.Namespace(words=["runs/one"], format=None, to="export", note_folder=None))
        return asked[name]

    return run


def rows(split: Any, read: Callable[[Row], Any]) -> Read:
    return lambda recipe: [read(row) for row in recipe.task.rows(split)]


def count(split: Any) -> Read:
    return lambda recipe: len(recipe.task.rows(split))


def question(row: Row) -> str:
    return row.question


def first_message(recipe: Recipe) -> dict[str, str]:
    return recipe.task.messages(recipe.task.rows("heldout")[0])[0]


def drawn_at_most(recipe: Recipe) -> int:
    """Completions of a whole run; tests/test_resample.py has what is drawn."""
    from toolkit.recipe.plan import plan

    return plan(recipe, len(recipe.task.rows("train"))).completions_at_most


def description(recipe: Recipe) -> str:
    """As `toolkit recipes` lists it."""
    Path("recipes").mkdir(exist_ok=True)
    Path("recipes/mine.yaml").write_text(json.dumps(recipe.model_dump(mode="json")), encoding="utf-8")
    return next(entry.description for entry in list_recipes() if entry.name == "mine")


def rows_short_enough(recipe: Recipe) -> int:
    """How many of the rows training keeps, where a prompt is as long as its question."""
    from toolkit.train.rows import short_enough

    policy: Any = SimpleNamespace(prompt_ids=lambda messages: list(messages[-1]["content"]))
    return len(short_enough(policy, recipe, recipe.task.rows("train")))


def warmup_rows(recipe: Recipe) -> int:
    from toolkit.train.rows import worked_examples

    return len(worked_examples(recipe, recipe.task.rows("train")))


def source(recipe: Recipe) -> str:
    from toolkit.engine.source import training_source

    return training_source(recipe.model)
