"""From answers to `eval.json`: accuracies, rewards, intervals and paired differences. It asks no model.

Accuracy is pass@1 at the training temperature: the mean over rows of the share of a row's samples that are right (Chen et al.
2021, arXiv:2107.03374, eq. 1 with k = 1). The mean reward is averaged likewise. Rows are the unit of every interval: samples of
one row are not independent. Where a task has no golds (`graded` false), only rewards are compared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit import console
from toolkit.engine.rollout import arrow_table
from toolkit.evaluate.totals import Answer
from toolkit.rundir import SCHEMA, replacing

if TYPE_CHECKING:
    import numpy

    from toolkit.recipe import Recipe

RESAMPLES = 10_000
ORDER = ("base", "warmup", "tuned")


def evaluation_record(recipe: Recipe, answers: Sequence[Answer], prompts: Sequence[Sequence[int]]) -> dict[str, Any]:
    """The content of `eval.json` (schema 1). Keys about right answers stand there where the task is graded."""
    rewards, graded = [reward.name for reward in recipe.rewards], recipe.task.graded
    names = [name for name in ORDER if any(answer["model"] == name for answer in answers)]
    of = {name: [answer for answer in answers if answer["model"] == name] for name in names}
    pairs = [(after, before) for i, before in enumerate(names) for after in names[i + 1 :]]
    return {
        "schema": SCHEMA,
        "n": len(prompts),
        "samples": recipe.eval.samples,
        "graded": graded,
        "models": {name: _model(of[name], rewards, graded) for name in names},
        "differences": {f"{after}-{before}": _difference(of[after], of[before], graded) for after, before in pairs},
        "decoding": _decoding(recipe),
        "prompts_sha256": hashlib.sha256(json.dumps([list(p) for p in prompts]).encode()).hexdigest(),
        "intervals": f"95 %: bootstrap over rows, {RESAMPLES} resamples, BCa; greedy: Wilson",
    }


def _decoding(recipe: Recipe) -> dict[str, Any]:
    grpo = recipe.grpo
    keys = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_completion_length")
    return {key: getattr(grpo, key) for key in keys} | {"seed": recipe.seed}


def _model(answers: Sequence[Answer], rewards: Sequence[str], graded: bool) -> dict[str, Any]:
    sampled = [answer for answer in answers if answer["sample"] >= 0]
    greedy = [answer for answer in answers if answer["sample"] < 0]
    record = _accuracy(sampled) if graded else {}
    record |= _rewards(sampled, rewards) | {
        "mean_tokens": _mean(answer["tokens"] for answer in sampled),
        "truncated": _mean(answer["truncated"] for answer in sampled),
    }
    return record | ({"greedy": _greedy(greedy, graded)} if greedy else {})


def _accuracy(sampled: Sequence[Answer]) -> dict[str, Any]:
    strict = _by_row(sampled, "strict")
    return {
        "accuracy": float(strict.mean()),
        "ci95": _interval(strict),
        "lenient_accuracy": float(_by_row(sampled, "lenient").mean()),
        "format_rate": float(_by_row(sampled, "well_formed").mean()),
    }


def _rewards(answers: Sequence[Answer], names: Sequence[str]) -> dict[str, Any]:
    """The mean total with its interval, each reward's mean over what it could judge, and how often it could not."""
    said = {name: [answer[f"reward/{name}"] for answer in answers] for name in names}
    means = {name: _by_row(answers, f"reward/{name}") for name in names}
    silent = {name: values.count(None) / len(values) for name, values in said.items() if None in values}
    return {
        "reward": _mean_reward(answers),
        "rewards": {name: float(values.mean()) if len(values) else None for name, values in means.items()},
    } | ({"abstained": silent} if silent else {})


def _mean_reward(answers: Sequence[Answer]) -> dict[str, Any] | None:
    totals = _by_row(answers, "reward")
    return {"mean": float(totals.mean()), "ci95": _interval(totals)} if len(totals) else None


def _greedy(answers: Sequence[Answer], graded: bool) -> dict[str, Any]:
    from scipy.stats import binomtest

    reward = {"reward": _mean_reward(answers)}
    if not graded:
        return reward
    right = sum(answer["strict"] for answer in answers)
    wilson = binomtest(right, len(answers)).proportion_ci(0.95, method="wilson")
    return reward | {
        "accuracy": right / len(answers),
        "ci95": [float(wilson.low), float(wilson.high)],
        "lenient_accuracy": _mean(answer["lenient"] for answer in answers),
        "format_rate": _mean(answer["well_formed"] for answer in answers),
    }


def _difference(after: Sequence[Answer], before: Sequence[Answer], graded: bool) -> dict[str, Any]:
    """Paired by row: the mean of the rows' differences, so that rows' own difficulty cancels."""

    def paired(keep: Callable[[Answer], bool], key: str) -> dict[str, Any] | None:
        values = _by_row(filter(keep, after), key) - _by_row(filter(keep, before), key)
        return {"delta": float(values.mean()), "ci95": _interval(values)} if len(values) else None

    def changes(keep: Callable[[Answer], bool]) -> dict[str, Any]:
        return ((paired(keep, "strict") or {}) if graded else {}) | {"reward": paired(keep, "reward")}

    record = changes(lambda answer: answer["sample"] >= 0)
    if graded:
        record["lenient"] = paired(lambda answer: answer["sample"] >= 0, "lenient")
    if any(answer["sample"] < 0 for answer in after):
        record["greedy"] = changes(lambda answer: answer["sample"] < 0)
    return record


def _by_row(answers: Iterable[Answer], key: str) -> numpy.ndarray:
    """The mean of `key` over a row's answers, one number a row, in the order of the rows' ids. None is left out."""
    import numpy

    values: dict[str, list[float]] = {}
    for answer in answers:
        if answer[key] is not None:
            values.setdefault(answer["row_id"], []).append(float(answer[key]))
    return numpy.array([numpy.mean(values[row]) for row in sorted(values)])


def _interval(values: numpy.ndarray) -> list[float]:
    """95 % interval of the mean by bootstrap over rows; a point where all rows agree."""
    import numpy
    from scipy.stats import bootstrap

    if len(values) < 2 or numpy.ptp(values) == 0:
        return [float(values.mean()), float(values.mean())]
    found = bootstrap(
        (values,),
        numpy.mean,
        n_resamples=RESAMPLES,
        vectorized=True,
        method="BCa",
        rng=numpy.random.default_rng(0),
    ).confidence_interval
    return [float(found.low), float(found.high)]


def _mean(values: Iterable[float]) -> float:
    numbers = [float(value) for value in values]
    return sum(numbers) / len(numbers)


def write_answers(path: Path, answers: Sequence[Answer]) -> None:
    """Every answer as parquet, for reading."""
    from pyarrow import parquet

    with replacing(path) as temporary:
        parquet.write_table(arrow_table(answers), temporary)


def show(record: dict[str, Any]) -> None:
    """The record as two small tables."""
    title = f"{record['n']} held-out rows, {record['samples']} samples each"
    heads = _MODEL_HEADS if record["graded"] else _GOLDLESS_HEADS
    line = _model_line if record["graded"] else _goldless_line
    console.table(title, heads, [(name, *line(model)) for name, model in record["models"].items()])
    unit = "Difference in points and in reward" if record["graded"] else "Difference in mean reward"
    heads = ("", "right", "right, greedy", "mean reward") if record["graded"] else ("", "sampled", "greedy")
    rows = [(pair, *_change_line(change, record["graded"])) for pair, change in record["differences"].items()]
    console.table(f"{unit}, paired by row", heads, rows)


_MODEL_HEADS = ("model", "right", "right, greedy", "right, tags ignored", "in format", "mean reward", "tokens")
_GOLDLESS_HEADS = ("model", "mean reward", "mean reward, greedy", "tokens")


def _model_line(model: dict[str, Any]) -> tuple[str, ...]:
    return (
        _percent(model["accuracy"], model["ci95"]),
        _percent(model["greedy"]["accuracy"], model["greedy"]["ci95"]) if "greedy" in model else "–",
        f"{model['lenient_accuracy']:.1%}",
        f"{model['format_rate']:.1%}",
        f"{model['reward']['mean']:.3g}" if model["reward"] else "–",
        f"{model['mean_tokens']:.0f}",
    )


def _goldless_line(model: dict[str, Any]) -> tuple[str, ...]:
    return _amount(model["reward"]), _amount(model.get("greedy", {}).get("reward")), f"{model['mean_tokens']:.0f}"


def _change_line(change: dict[str, Any], graded: bool) -> tuple[str, ...]:
    greedy = change.get("greedy", {})
    if not graded:
        return _moved(change["reward"]), _moved(greedy.get("reward"))
    return _points(change), _points(greedy) if greedy else "–", _moved(change["reward"])


def _percent(value: float, interval: Sequence[float]) -> str:
    return f"{value:.1%} [dim]({interval[0]:.1%} to {interval[1]:.1%})[/]"


def _points(change: dict[str, Any]) -> str:
    low, high = (100 * bound for bound in change["ci95"])
    return f"{100 * change['delta']:+.1f} [dim]({low:+.1f} to {high:+.1f})[/]"


def _amount(reward: dict[str, Any] | None) -> str:
    if reward is None:
        return "–"
    low, high = reward["ci95"]
    return f"{reward['mean']:.3g} [dim]({low:.3g} to {high:.3g})[/]"


def _moved(change: dict[str, Any] | None) -> str:
    if change is None:
        return "–"
    low, high = change["ci95"]
    return f"{change['delta']:+.3g} [dim]({low:+.3g} to {high:+.3g})[/]"
