"""The ask step: a run's models answer a few questions side by side, with what the rewards pay. It measures nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit import console
from toolkit.errors import ToolkitError
from toolkit.rundir import RunDir
from toolkit.tasks import Row

if TYPE_CHECKING:
    from toolkit.engine.completions import Completion
    from toolkit.engine.load import Policy
    from toolkit.recipe import Recipe
    from toolkit.rewards import RewardBase

Reply = dict[str, Any]
"""What one model said once: text, length, grade (where there is a gold), each reward and their total."""

LABELS = {"base": "base model", "warmup": "after warm-up", "tuned": "after GRPO"}
BESIDE = range(100, 1000)
"""Widths of a terminal on which answers stand beside each other; on narrower ones, and in a pipe, below each other."""


def ask(path: Path, questions: Sequence[str], *, golds: Sequence[str] = (), samples: int = 0) -> list[dict[str, Any]]:
    """Each question with every model's replies: one greedy, or so many `samples` at the training temperature."""
    from toolkit.recipe import load_resolved

    run = RunDir(path)
    recipe = load_resolved(run.recipe).recipe
    rows = _rows(recipe, questions, golds)
    from toolkit.engine.load import load_adapter, load_policy

    policy = load_policy(recipe)
    adapters = run.adapters()
    for name, folder in adapters.items():
        load_adapter(policy, folder, name)
    rewards = _able(recipe, policy, rows)
    replies = {name: _replies(policy, recipe, rewards, name, rows, samples) for name in ("base", *adapters)}
    return [
        {"question": row.question, "gold": row.gold or None, "answers": {name: replies[name][at] for name in replies}}
        for at, row in enumerate(rows)
    ]


def _rows(recipe: Recipe, questions: Sequence[str], golds: Sequence[str]) -> list[Row]:
    if not questions:
        raise ToolkitError("there is no question", hint='toolkit ask RUN "How much is 17 plus 25?"')
    if golds and len(golds) != len(questions):
        what = f"{len(questions)} questions and {len(golds)} golds"
        raise ToolkitError(f"{what}: each question needs its own, or none has one", hint="--gold once a question")
    if golds and not recipe.task.graded:
        raise ToolkitError(f"the task {recipe.task.name} has no golds to compare with", hint="leave --gold out")
    known = [*golds] or [""] * len(questions)
    return [
        Row(f"ask/{number}", question, gold, judge=recipe.task.judge_of(gold) if gold else None)
        for number, (question, gold) in enumerate(zip(questions, known, strict=True), 1)
    ]


def _able(recipe: Recipe, policy: Policy, rows: Sequence[Row]) -> list[RewardBase]:
    """The rewards that can say something of these rows: none where the task has golds, and these rows have not."""
    if recipe.task.graded and not rows[0].gold:
        return []
    from toolkit.engine.surroundings import surroundings

    around, able = surroundings(recipe, policy), []
    for reward in (reward.within(around) for reward in recipe.rewards):
        try:
            reward.ready(rows)
            able.append(reward)
        except ToolkitError as error:
            console.note(console.untrusted(f"without the reward {reward.name}: {error.message}"))
    return able


def _replies(
    policy: Policy, recipe: Recipe, rewards: Sequence[RewardBase], name: str, rows: Sequence[Row], samples: int
) -> list[list[Reply]]:
    """One model's replies to each row."""
    from toolkit.engine.arguments import training_sampling
    from toolkit.engine.sampler import draw

    sampling = training_sampling(recipe, policy.stop_token_ids)
    if not samples:
        sampling = replace(sampling, temperature=0.0, repetition_penalty=1.0)
    prompts = [policy.prompt_ids(recipe.task.messages(row)) for row in rows]
    _require_room(recipe, prompts)
    adapter, batch = None if name == "base" else name, recipe.eval.batch_size
    drawn = draw(policy, adapter, prompts, sampling, samples=samples or 1, seed=recipe.seed, batch_rows=batch)
    said = _said(policy, recipe, rewards, rows, drawn)
    return [said[at : at + (samples or 1)] for at in range(0, len(said), samples or 1)]


def _require_room(recipe: Recipe, prompts: Sequence[Sequence[int]]) -> None:
    longest, limit = max(map(len, prompts)), recipe.model.max_seq_length - recipe.grpo.max_completion_length
    if longest > limit:
        raise ToolkitError(f"a question takes {longest} tokens, and the model was trained to read {limit}")


def _said(
    policy: Policy,
    recipe: Recipe,
    rewards: Sequence[RewardBase],
    rows: Sequence[Row],
    drawn: Sequence[Completion],
) -> list[Reply]:
    from toolkit.engine.rollout import added, judged

    texts = [policy.text(completion.token_ids) for completion in drawn]
    asked = [rows[completion.prompt_index] for completion in drawn]
    paid = {reward.name: judged(reward, texts, asked, [c.token_ids for c in drawn]) for reward in rewards}
    replies = []
    for at, (completion, text, row) in enumerate(zip(drawn, texts, asked, strict=True)):
        total = None
        for reward in rewards:
            total = added(total, reward.weight, paid[reward.name][at])
        replies.append(
            {
                "text": text,
                "tokens": len(completion.token_ids),
                "truncated": completion.truncated,
                **(_graded(recipe, text, row) if row.gold else {}),
                "rewards": {name: values[at] for name, values in paid.items()},
                "reward": total,
            }
        )
    return replies


def _graded(recipe: Recipe, text: str, row: Row) -> Reply:
    grade = recipe.task.grade(text, row)
    return {"strict": grade.strict, "lenient": grade.lenient, "well_formed": grade.well_formed}


def show(asked: Sequence[dict[str, Any]]) -> None:
    """Each question as a table: a column a model where there is room, else a row a model."""
    for item in asked:
        gold = f" [dim]right: {console.untrusted(item['gold'])}[/]" if item["gold"] else ""
        title = f"{console.untrusted(item['question'])}{gold}"
        answers = item["answers"]
        if console.out.width in BESIDE:
            rows = zip(*([_cell(reply) for reply in replies] for replies in answers.values()), strict=True)
            console.table(title, [LABELS[name] for name in answers], rows)
        else:
            rows = [(LABELS[name], _cell(reply)) for name, replies in answers.items() for reply in replies]
            console.table(title, ("", "answer"), rows)


def _cell(reply: Reply) -> str:
    """The text, and below it what there is to say of it."""
    length = f"{reply['tokens']} tokens" + (", cut off" if reply["truncated"] else "")
    if "strict" in reply:
        wrong = "right, but not in the format" if reply["lenient"] else "wrong"
        length = f"[bold]{'right' if reply['strict'] else wrong}[/], {length}"
    return f"{console.untrusted(reply['text'].strip())}\n[dim]{length}{_paid(reply)}[/]\n"


def _paid(reply: Reply) -> str:
    said = {name: value for name, value in reply["rewards"].items() if value is not None}
    if not said:
        return ""
    parts = ", ".join(f"{console.untrusted(name)} {value:.3g}" for name, value in said.items())
    return f"\nreward {reply['reward']:.3g}: {parts}"
