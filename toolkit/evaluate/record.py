"""From answers to `eval.json`: accuracies, rewards and lengths of every model. It asks none, and compares none (`compare`).

Accuracy is pass@1 at the training temperature: the mean over rows of the share of a row's samples that are right (Chen et al.
2021, arXiv:2107.03374, eq. 1 with k = 1). The mean reward is averaged likewise. Rows are the unit of every interval: samples of
one row are not independent. Where a task has no golds (`graded` false), only rewards are compared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.atomic import replacing
from toolkit.engine.rollout import arrow_table
from toolkit.evaluate.compare import by_row, difference, flips, gain
from toolkit.evaluate.totals import Answer
from toolkit.rundir import SCHEMA
from toolkit.statistics import RESAMPLES, interval, majority_at, pass_at, powers, wilson

if TYPE_CHECKING:
    from toolkit.recipe import Recipe


def evaluation_record(recipe: Recipe, answers: Sequence[Answer], prompts: Sequence[Sequence[int]]) -> dict[str, Any]:
    """The content of `eval.json` (schema 1). Keys about right answers stand there where the task is graded."""
    rewards, graded = [reward.name for reward in recipe.rewards], recipe.task.graded
    names = list(dict.fromkeys(answer["model"] for answer in answers))
    of = {name: [answer for answer in answers if answer["model"] == name] for name in names}
    pairs = [(after, before) for i, before in enumerate(names) for after in names[i + 1 :]]
    record = {
        "schema": SCHEMA,
        "n": len(prompts),
        "samples": recipe.eval.samples,
        "graded": graded,
        "models": {name: _model(of[name], rewards, graded) for name in names},
        "differences": {f"{after}-{before}": difference(of[after], of[before], graded) for after, before in pairs},
        "decoding": decoding(recipe),
        "prompts_sha256": hash_of(prompts),
        "intervals": f"95 %: bootstrap over rows, {RESAMPLES} resamples, BCa; greedy: Wilson",
    }
    if graded:
        record["flips"] = {
            f"{after}-{before}": flips(of[after], of[before]) for after, before in pairs if after == names[-1]
        }
        record["gain"] = gain(of)
    return record


def hash_of(prompts: Sequence[Sequence[int]]) -> str:
    """SHA-256 over the prompts' token ids."""
    return hashlib.sha256(json.dumps([list(prompt) for prompt in prompts]).encode()).hexdigest()


def decoding(recipe: Recipe) -> dict[str, Any]:
    """How the samples were drawn."""
    grpo = recipe.grpo
    keys = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_completion_length")
    return {key: getattr(grpo, key) for key in keys} | {"seed": recipe.seed}


def _model(answers: Sequence[Answer], rewards: Sequence[str], graded: bool) -> dict[str, Any]:
    sampled = [answer for answer in answers if answer["sample"] >= 0]
    greedy = [answer for answer in answers if answer["sample"] < 0]
    record = (_accuracy(sampled) | _of_several(sampled)) if graded else {}
    record |= _rewards(sampled, rewards) | _lengths(sampled)
    return record | ({"greedy": _greedy(greedy, graded)} if greedy else {})


def _accuracy(sampled: Sequence[Answer]) -> dict[str, Any]:
    strict = by_row(sampled, "strict")
    return {
        "accuracy": float(strict.mean()),
        "ci95": interval(strict),
        "lenient_accuracy": float(by_row(sampled, "lenient").mean()),
        "format_rate": float(by_row(sampled, "well_formed").mean()),
    }


def _of_several(sampled: Sequence[Answer]) -> dict[str, Any]:
    """pass@k and maj@k for k = 1, 2, 4 … up to the samples that every row has; nothing where that is one."""
    import numpy

    rows: dict[str, list[Answer]] = {}
    for answer in sampled:
        rows.setdefault(answer["row_id"], []).append(answer)
    sizes = powers(min(map(len, rows.values())))
    if len(sizes) < 2:
        return {}
    right = {row: [answer["strict"] for answer in given] for row, given in rows.items()}
    votes = {row: [answer["answer"] for answer in given] for row, given in rows.items()}
    passed = {k: numpy.array([pass_at(k, right[row]) for row in rows]) for k in sizes}
    agreed = {k: numpy.array([majority_at(k, votes[row], right[row]) for row in rows]) for k in sizes}
    return {
        name: {str(k): {"value": float(values.mean()), "ci95": interval(values)} for k, values in found.items()}
        for name, found in (("pass_at_k", passed), ("maj_at_k", agreed))
    }


def _lengths(answers: Sequence[Answer]) -> dict[str, Any]:
    """Of the answers in tokens, and the share that ran into the limit."""
    import numpy

    tokens = [answer["tokens"] for answer in answers]
    return {
        "mean_tokens": _mean(tokens),
        "median_tokens": float(numpy.median(tokens)),
        "p95_tokens": float(numpy.percentile(tokens, 95)),
        "truncated": _mean(answer["truncated"] for answer in answers),
    }


def _rewards(answers: Sequence[Answer], names: Sequence[str]) -> dict[str, Any]:
    """The mean total with its interval, each reward's mean over what it could judge, and how often it could not."""
    said = {name: [answer[f"reward/{name}"] for answer in answers] for name in names}
    means = {name: by_row(answers, f"reward/{name}") for name in names}
    silent = {name: values.count(None) / len(values) for name, values in said.items() if None in values}
    return {
        "reward": _mean_reward(answers),
        "rewards": {name: float(values.mean()) if len(values) else None for name, values in means.items()},
    } | ({"abstained": silent} if silent else {})


def _mean_reward(answers: Sequence[Answer]) -> dict[str, Any] | None:
    totals = by_row(answers, "reward")
    return {"mean": float(totals.mean()), "ci95": interval(totals)} if len(totals) else None


def _greedy(answers: Sequence[Answer], graded: bool) -> dict[str, Any]:
    record = {"reward": _mean_reward(answers), **_lengths(answers)}
    if not graded:
        return record
    right = sum(answer["strict"] for answer in answers)
    return record | {
        "accuracy": right / len(answers),
        "ci95": wilson(right, len(answers)),
        "lenient_accuracy": _mean(answer["lenient"] for answer in answers),
        "format_rate": _mean(answer["well_formed"] for answer in answers),
    }


def _mean(values: Iterable[float]) -> float:
    numbers = [float(value) for value in values]
    return sum(numbers) / len(numbers)


def write_answers(path: Path, answers: Sequence[Answer]) -> None:
    """Every answer as parquet, for reading."""
    from pyarrow import parquet

    with replacing(path) as temporary:
        parquet.write_table(arrow_table(answers), temporary)
