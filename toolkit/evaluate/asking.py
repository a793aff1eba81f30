"""Asks the run's models the same rows and grades what they say. It computes no statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit import console
from toolkit.answers import canonical, extract_block
from toolkit.atomic import sha256_of
from toolkit.errors import DataError, EngineError
from toolkit.evaluate.progress import Progress
from toolkit.evaluate.totals import Answer
from toolkit.rundir import ADAPTER_WEIGHTS, is_whole
from toolkit.tasks import folded

if TYPE_CHECKING:
    from toolkit.engine.completions import Completion
    from toolkit.engine.load import Policy
    from toolkit.evaluate.sets import EvaluationSet
    from toolkit.recipe import Recipe
    from toolkit.rewards import RewardBase
    from toolkit.tasks import Grade, Row

GREEDY = -1
"""The sample number of the answer that was not sampled."""


@dataclass(frozen=True)
class Asked:
    """One model: which adapter answers (None: the bare base) and which prompts it gets (token ids)."""

    adapter: str | None
    prompts: list[list[int]]


def ask_models(
    evaluation: EvaluationSet, policy: Policy, adapters: dict[str, Path], folder: Path
) -> tuple[list[Answer], dict[str, Asked], Progress]:
    """Every answer of every model, base first, what each was asked, and the progress to end once that is recorded.

    Goes on with what `folder` has of an equal evaluation.
    """
    recipe, rows = evaluation.recipe, evaluation.rows
    rewards = _ready_rewards(recipe, policy, rows, own=evaluation.name is None)
    models = _models(recipe, policy, rows, adapters)
    progress = Progress(folder, _key(evaluation, models, adapters) | {"generator": policy.setting.generator})
    answers = []
    for name, asked in models.items():
        saved = progress.answers(name)
        if saved is None:
            drawn = _drawn(policy, recipe, name, asked, progress)
            saved = _answers(policy, recipe, rewards, name, rows, drawn)
            progress.keep(name, saved)
        answers += saved
    return answers, models, progress


def _ready_rewards(recipe: Recipe, policy: Policy, rows: Sequence[Row], *, own: bool) -> list[RewardBase]:
    """The rewards that can work on these rows: on the run's own all of them, or it is an error."""
    from toolkit.engine.surroundings import surroundings
    from toolkit.errors import ToolkitError

    around, able = surroundings(recipe, policy), []
    for reward in (reward.within(around) for reward in recipe.rewards):
        try:
            reward.ready(rows)
            able.append(reward)
        except ToolkitError as error:
            if own or not recipe.task.graded:
                raise
            console.note(console.untrusted(f"without the reward {reward.name}: {error.message}"))
    return able


def _models(recipe: Recipe, policy: Policy, rows: Sequence[Row], adapters: dict[str, Path]) -> dict[str, Asked]:
    """Load the adapters; the models that can then be asked, in the order of training."""
    from toolkit.engine.load import load_adapter

    prompts = [policy.prompt_ids(recipe.task.messages(row)) for row in rows]
    models = {"base": Asked(None, prompts)}
    if recipe.eval.few_shot:
        models["few_shot"] = Asked(None, [policy.prompt_ids(chat) for chat in few_shot_chats(recipe, rows)])
    for name, folder in adapters.items():
        load_adapter(policy, folder, name)
        models[name] = Asked(name, prompts)
    for name, asked in models.items():
        _require_room(recipe, name, asked)
    return models


def few_shot_chats(recipe: Recipe, rows: Sequence[Row]) -> list[list[dict[str, str]]]:
    """The chat of each row with worked examples before it, as turns that have been: the training half's first ones."""
    task, wanted = recipe.task, recipe.eval.few_shot
    texts = {row.text for row in rows}
    able = (row for row in task.rows("train") if row.text not in texts)
    worked = [(row, text) for row in able if (text := task.worked(row)) is not None][:wanted]
    if len(worked) < wanted:
        hint = f"eval.few_shot: {len(worked)}, or a task with worked solutions"
        raise DataError(f"eval.few_shot asks for {wanted} worked examples, the task has {len(worked)}", hint=hint)
    shown = [turn for row, text in worked for turn in (*_turns(task.messages(row)), _said(text))]
    chats = [task.messages(row) for row in rows]
    return [[*_system(chat), *shown, *_turns(chat)] for chat in chats]


def _turns(chat: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    return [message for message in chat if message["role"] != "system"]


def _system(chat: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    return [message for message in chat if message["role"] == "system"]


def _said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def _require_room(recipe: Recipe, name: str, asked: Asked) -> None:
    """Unsloth cuts off what is longer than max_seq_length: the end of a question, and so its point."""
    longest, limit = max(map(len, asked.prompts)), recipe.model.max_seq_length
    if longest + recipe.grpo.max_completion_length > limit:
        hint = "fewer examples: eval.few_shot" if name == "few_shot" else "shorter answers: --max-tokens"
        message = f"a prompt of {longest} tokens and its answer take more than model.max_seq_length {limit}"
        raise EngineError(message, where=name, hint=hint)


def _key(evaluation: EvaluationSet, models: dict[str, Asked], adapters: dict[str, Path]) -> dict[str, Any]:
    """All that decides what is drawn and what is said of it."""
    weights = {name: _weights(folder) for name, folder in adapters.items()}
    return {
        "recipe": evaluation.recipe.model_dump(mode="json"),
        "rows": [row.id for row in evaluation.rows],
        "prompts": {name: asked.prompts for name, asked in models.items()},
        "adapters": {name: [sha256_of(file) for file in files] for name, files in weights.items()},
    }


def _weights(folder: Path) -> list[Path]:
    """Of an adapter one file, of a whole model all."""
    return sorted(folder.glob("model*.safetensors" if is_whole(folder) else ADAPTER_WEIGHTS))


def _drawn(policy: Policy, recipe: Recipe, name: str, asked: Asked, progress: Progress) -> list[Completion]:
    """One model's answers: the greedy one of a row first, then those sampled at the training temperature."""
    from toolkit.engine.arguments import training_sampling
    from toolkit.engine.completions import in_order
    from toolkit.engine.sampler import draw_batches

    done = progress.batches(name)
    there = f", of which {sum(len(batch.rows) for batch in done)} answers are there" if done else ""
    console.say(f"evaluating {name}: {len(asked.prompts)} rows, {recipe.eval.samples} samples each{there}")
    more = draw_batches(
        policy,
        asked.adapter,
        asked.prompts,
        training_sampling(recipe, policy.stop_token_ids),
        samples=recipe.eval.samples,
        seed=recipe.seed,
        batch_rows=recipe.eval.batch_size,
        greedy_too=recipe.eval.greedy,
        done=done,
    )
    for number, batch in enumerate(more, len(done)):
        progress.add(name, number, batch)
        done = [*done, batch]
    return in_order(done)


def _answers(
    policy: Policy,
    recipe: Recipe,
    rewards: Sequence[RewardBase],
    name: str,
    rows: Sequence[Row],
    drawn: Sequence[Completion],
) -> list[Answer]:
    """One model's answers, graded where the task has golds, with what each reward says of them."""
    from toolkit.engine.rollout import judged

    texts = [policy.text(completion.token_ids) for completion in drawn]
    asked = [rows[completion.prompt_index] for completion in drawn]
    ids = [completion.token_ids for completion in drawn]
    paid = {f"reward/{reward.name}": judged(reward, texts, asked, ids) for reward in rewards}
    first = GREEDY if recipe.eval.greedy else 0
    return [
        {
            "model": name,
            "row_id": row.id,
            "question": row.question,
            "gold": row.gold,
            "level": row.level or "",
            "sample": first + number % (recipe.eval.samples - first),
            "completion": text,
            **({"answer": vote(text), **_graded(recipe.task.grade(text, row))} if recipe.task.graded else {}),
            "tokens": len(completion.token_ids),
            "truncated": completion.truncated,
            **{key: values[number] for key, values in paid.items()},
        }
        for number, (completion, row, text) in enumerate(zip(drawn, asked, texts, strict=True))
    ]


def vote(text: str) -> str | None:
    """A completion's answer so that equal ones are one text: a number in plain digits, else without case and spacing."""
    answer = extract_block(text)
    return None if answer is None else canonical(answer) or folded(answer)


def _graded(grade: Grade) -> dict[str, bool]:
    return {"strict": grade.strict, "lenient": grade.lenient, "well_formed": grade.well_formed}
