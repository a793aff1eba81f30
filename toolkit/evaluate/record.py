"""From graded answers to `eval.json`: accuracies, intervals and paired differences. It asks no model.

Accuracy is pass@1 at the training temperature: the mean over rows of the share of a row's samples that are right (Chen et al.
2021, arXiv:2107.03374, eq. 1 with k = 1). Rows are the unit of every interval: samples of one row are not independent.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit import console
from toolkit.rundir import SCHEMA, replacing

if TYPE_CHECKING:
    import numpy

    from toolkit.recipe import Recipe

Answer = dict[str, Any]
RESAMPLES = 10_000
ORDER = ("base", "warmup", "tuned")


def evaluation_record(recipe: Recipe, answers: Sequence[Answer], prompts: Sequence[Sequence[int]]) -> dict[str, Any]:
    """The content of `eval.json` (schema 1)."""
    names = [name for name in ORDER if any(answer["model"] == name for answer in answers)]
    of = {name: [answer for answer in answers if answer["model"] == name] for name in names}
    pairs = [(after, before) for i, before in enumerate(names) for after in names[i + 1 :]]
    return {
        "schema": SCHEMA,
        "n": len(prompts),
        "samples": recipe.eval.samples,
        "models": {name: _model(of[name]) for name in names},
        "differences": {f"{after}-{before}": _difference(of[after], of[before]) for after, before in pairs},
        "decoding": _decoding(recipe),
        "prompts_sha256": hashlib.sha256(json.dumps([list(p) for p in prompts]).encode()).hexdigest(),
        "intervals": f"95 %: bootstrap over rows, {RESAMPLES} resamples, BCa; greedy: Wilson",
    }


def _decoding(recipe: Recipe) -> dict[str, Any]:
    grpo = recipe.grpo
    keys = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_completion_length")
    return {key: getattr(grpo, key) for key in keys} | {"seed": recipe.seed}


def _model(answers: Sequence[Answer]) -> dict[str, Any]:
    sampled = [answer for answer in answers if answer["sample"] >= 0]
    greedy = [answer for answer in answers if answer["sample"] < 0]
    strict = _by_row(sampled, "strict")
    record = {
        "accuracy": float(strict.mean()),
        "ci95": _interval(strict),
        "lenient_accuracy": float(_by_row(sampled, "lenient").mean()),
        "format_rate": float(_by_row(sampled, "well_formed").mean()),
        "mean_tokens": _mean(answer["tokens"] for answer in sampled),
        "truncated": _mean(answer["truncated"] for answer in sampled),
    }
    return record | ({"greedy": _greedy(greedy)} if greedy else {})


def _greedy(answers: Sequence[Answer]) -> dict[str, Any]:
    from scipy.stats import binomtest

    right = sum(answer["strict"] for answer in answers)
    wilson = binomtest(right, len(answers)).proportion_ci(0.95, method="wilson")
    return {
        "accuracy": right / len(answers),
        "ci95": [float(wilson.low), float(wilson.high)],
        "lenient_accuracy": _mean(answer["lenient"] for answer in answers),
        "format_rate": _mean(answer["well_formed"] for answer in answers),
    }


def _difference(after: Sequence[Answer], before: Sequence[Answer]) -> dict[str, Any]:
    """Paired by row: the mean of the rows' differences, so that rows' own difficulty cancels."""

    def paired(keep: Callable[[Answer], bool], key: str = "strict") -> dict[str, Any]:
        values = _by_row(filter(keep, after), key) - _by_row(filter(keep, before), key)
        return {"delta": float(values.mean()), "ci95": _interval(values)}

    record = paired(lambda answer: answer["sample"] >= 0)
    record["lenient"] = paired(lambda answer: answer["sample"] >= 0, "lenient")
    if any(answer["sample"] < 0 for answer in after):
        record["greedy"] = paired(lambda answer: answer["sample"] < 0)
    return record


def _by_row(answers: Iterable[Answer], key: str) -> numpy.ndarray:
    """The mean of `key` over a row's answers, one number a row, in the order of the rows' ids."""
    import numpy

    values: dict[str, list[float]] = {}
    for answer in answers:
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
    import pyarrow
    from pyarrow import parquet

    with replacing(path) as temporary:
        parquet.write_table(pyarrow.Table.from_pylist(list(answers)), temporary)


def show(record: dict[str, Any]) -> None:
    """The record as two small tables."""
    rows = [
        (
            name,
            _percent(model["accuracy"], model["ci95"]),
            _percent(model["greedy"]["accuracy"], model["greedy"]["ci95"]) if "greedy" in model else "–",
            f"{model['lenient_accuracy']:.1%}",
            f"{model['format_rate']:.1%}",
            f"{model['mean_tokens']:.0f}",
        )
        for name, model in record["models"].items()
    ]
    title = f"{record['n']} held-out rows, {record['samples']} samples each"
    console.table(title, ("model", "right", "right, greedy", "right, tags ignored", "in format", "tokens"), rows)
    changes = [
        (pair, _points(change), _points(change["greedy"]) if "greedy" in change else "–")
        for pair, change in record["differences"].items()
    ]
    console.table("Difference in points, paired by row", ("", "right", "right, greedy"), changes)


def _percent(value: float, interval: Sequence[float]) -> str:
    return f"{value:.1%} [dim]({interval[0]:.1%} to {interval[1]:.1%})[/]"


def _points(change: dict[str, Any]) -> str:
    low, high = (100 * bound for bound in change["ci95"])
    return f"{100 * change['delta']:+.1f} [dim]({low:+.1f} to {high:+.1f})[/]"
