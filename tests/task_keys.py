"""The effect of every key of every task."""

from __future__ import annotations

from effects import QUESTIONS, Effect, count, first_message, question, rows

TASK_EFFECTS: dict[str, Effect] = {
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
}  # fmt: skip
