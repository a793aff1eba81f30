"""The effect of every key of every task."""

from __future__ import annotations

from typing import Any

from effects import QUESTIONS, Effect, Read, count, first_message, question, rows
from toolkit.recipe import Recipe
from toolkit.tasks import Row, Table, accepts

BRIEF = Effect("Be brief.", first_message, {"role": "system", "content": "Be brief."})
MIXED = {"task.reasoning_gym.dataset": None, "task.reasoning_gym.mix": [{"dataset": "lcm"}]}
FROM_FILE = {"task.prompts.prompts": None, "task.prompts.file": "train.jsonl"}
FROM_HUB = {"task.table.train_file": None, "task.table.dataset": "org/data"}
GRADED = {"task.table.gold": "gold", "task.table.heldout_rows": 2}


def asked_of_hub(split: Any, what: str) -> Read:
    """What the table would ask the Hub for."""

    def read(recipe: Recipe) -> Any:
        assert isinstance(recipe.task, Table)
        return getattr(recipe.task.source(split), what)

    return read


def worked(recipe: Recipe) -> str | None:
    return recipe.task.worked(recipe.task.rows("train")[0])


def dataset_of(row: Row) -> str:
    return row.id.split("/")[0]


TASK_EFFECTS: dict[str, Effect] = {
    "task.gsm8k.system_prompt": BRIEF,
    "task.gsm8k.train_file": Effect("heldout.jsonl", rows("train", question), QUESTIONS["heldout"]),
    "task.gsm8k.heldout_file": Effect("train.jsonl", rows("heldout", question), QUESTIONS["train"]),
    "task.gsm8k.max_train": Effect(3, count("train")),
    "task.gsm8k.max_heldout": Effect(3, count("heldout")),
    "task.reasoning_gym.system_prompt": BRIEF,
    "task.reasoning_gym.dataset": Effect("gcd", rows("train", question), None),
    "task.reasoning_gym.parameters": Effect(
        {"min_terms": 3, "max_terms": 3}, rows("train", lambda row: str(row.level).split(",")[0]), ["3 terms"] * 12
    ),
    "task.reasoning_gym.mix": Effect(
        [{"dataset": "gcd"}, {"dataset": "lcm", "weight": 3}], rows("heldout", dataset_of), ["lcm", "gcd", "lcm", "lcm"],
        MIXED,
    ),
    "task.reasoning_gym.train_rows": Effect(9, count("train")),
    "task.reasoning_gym.heldout_rows": Effect(9, count("heldout")),
    "task.reasoning_gym.train_seed": Effect(77, rows("train", question), None),
    "task.reasoning_gym.heldout_seed": Effect(77, rows("heldout", question), None),
    "task.tldr.system_prompt": BRIEF,
    "task.tldr.train_file": Effect("heldout.jsonl", rows("train", question), QUESTIONS["heldout"]),
    "task.tldr.heldout_file": Effect("train.jsonl", rows("heldout", question), QUESTIONS["train"]),
    "task.tldr.max_train": Effect(3, count("train")),
    "task.tldr.max_heldout": Effect(3, count("heldout")),
    "task.prompts.system_prompt": BRIEF,
    "task.prompts.prompts": Effect(["One.", "Two.", "Three."], count("train"), 2),
    "task.prompts.file": Effect("heldout.jsonl", rows("train", lambda row: row.question[-2:]), ["2?"] * 4, FROM_FILE),
    "task.prompts.heldout_rows": Effect(2, count("heldout")),
    "task.prompts.split_seed": Effect(5, rows("heldout", question), None),
    "task.table.system_prompt": BRIEF,
    "task.table.train_file": Effect("heldout.jsonl", rows("train", lambda row: row.question[-2:]), ["2?"] * 4),
    "task.table.heldout_file": Effect("heldout.jsonl", rows("heldout", question), QUESTIONS["heldout"]),
    "task.table.max_train": Effect(3, count("train")),
    "task.table.max_heldout": Effect(1, count("heldout"), given={"task.table.heldout_rows": 2}),
    "task.table.dataset": Effect("org/other", asked_of_hub("train", "dataset"), given=FROM_HUB),
    "task.table.config": Effect("main", asked_of_hub("train", "config"), given=FROM_HUB),
    "task.table.train_split": Effect("all", asked_of_hub("train", "split"), given=FROM_HUB),
    "task.table.heldout_split": Effect("test", asked_of_hub("heldout", "split"), given=FROM_HUB),
    "task.table.revision": Effect("v2", asked_of_hub("train", "revision"), given=FROM_HUB),
    "task.table.heldout_rows": Effect(2, count("heldout")),
    "task.table.split_seed": Effect(5, rows("heldout", question), None),
    "task.table.prompt": Effect("answer", rows("heldout", lambda row: row.question[:8]), ["Add one."]),
    "task.table.gold": Effect("gold", rows("heldout", lambda row: row.gold.isdecimal()), [True]),
    "task.table.grading": Effect(
        "text", rows("heldout", lambda row: accepts(row, f"{row.gold}.0")), [False, False], GRADED
    ),
    "task.table.solution": Effect("completion", worked, "A sum."),
}  # fmt: skip
