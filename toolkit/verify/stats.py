"""Numbers that compare models: distances of distributions, perplexity, how much of a training is in one. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy

TINY_ROW = 0.01
"""Share of a tensor's usual row below which a row is not measured by its own size."""

Rows = list["numpy.ndarray"]
"""Per text one array of log-probabilities, a row per token."""


@dataclass(frozen=True, slots=True)
class Distance:
    """KL(reference ‖ other) per token, in nats, and how often both find the same token likeliest."""

    tokens: int
    mean: float
    p99: float
    top1: float


def token_kl(reference: numpy.ndarray, other: numpy.ndarray) -> numpy.ndarray:
    """KL(reference ‖ other) of each row.

    Summed as p·log(p/q) - p + q, of which no term is negative: rounding cannot push a small distance below
    zero.
    """
    import numpy

    p, q = numpy.exp(reference), numpy.exp(other)
    return (p * (reference - other) - p + q).sum(axis=-1, dtype=numpy.float64)


def distance(reference: Rows, other: Rows) -> Distance:
    """Over all tokens of all texts."""
    import numpy

    kl = numpy.concatenate([token_kl(ref, got) for ref, got in zip(reference, other, strict=True)])
    same = numpy.concatenate([ref.argmax(-1) == got.argmax(-1) for ref, got in zip(reference, other, strict=True)])
    return Distance(len(kl), float(kl.mean()), float(numpy.quantile(kl, 0.99)), float(same.mean()))


def perplexity(rows: Rows, following: list[list[int]]) -> float:
    """exp of the mean surprise, in nats, at the tokens that follow: one list of ids a text, an id for each row."""
    import numpy

    surprise = [
        -numpy.take_along_axis(text, numpy.array(ids)[:, None], axis=-1)
        for text, ids in zip(rows, following, strict=True)
    ]
    return float(numpy.exp(numpy.concatenate(surprise).mean(dtype=numpy.float64)))


@dataclass(frozen=True, slots=True)
class Strength:
    """How much of the way from base to tuned a file went: 0 is the base, 1 the tuned model; and its
    standard error."""

    value: float
    error: float


def strength(base: Rows, tuned: Rows, got: Rows) -> Strength:
    """The least-squares share of (tuned - base) in (got - base), log-probabilities weighted by the tuned
    model.

    Noise of a quantisation points nowhere in particular and cancels; a missing adapter gives 0, a doubled one
    2. The error comes from leaving out one text at a time (jackknife).
    """
    import numpy

    dot, square = [], []
    for at_base, at_tuned, at_got in zip(base, tuned, got, strict=True):
        weight = numpy.exp(at_tuned)
        way, gone = at_tuned - at_base, at_got - at_base
        way = way - (weight * way).sum(-1, keepdims=True)
        dot.append(float((weight * way * gone).sum(dtype=numpy.float64)))
        square.append(float((weight * way * way).sum(dtype=numpy.float64)))
    total_dot, total_square = sum(dot), sum(square)
    if total_square == 0 or not math.isfinite(total_dot):
        return Strength(math.nan, math.nan)
    n = len(dot)
    parts = [(total_dot - d) / (total_square - s) for d, s in zip(dot, square, strict=True) if total_square > s]
    mean = sum(parts) / len(parts) if parts else 0.0
    error = math.sqrt((n - 1) / n * sum((part - mean) ** 2 for part in parts)) if n > 1 else math.inf
    return Strength(total_dot / total_square, error)


class WeightStrength:
    """The same share, measured on weights instead of predictions, one array after the other."""

    def __init__(self) -> None:
        self._dot = self._square = self._noise = 0.0

    def add(self, base: numpy.ndarray, tuned: numpy.ndarray, got: numpy.ndarray) -> None:
        """Some of the weights: any shape, the same for all three."""
        import numpy

        way = (tuned - base).ravel()
        square = float(numpy.dot(way, way))
        self._dot += float(numpy.dot(way, (got - base).ravel()))
        self._square += square
        self._noise += float(((got - tuned) ** 2).mean()) * square

    @property
    def result(self) -> Strength:
        """So far; the error takes the noise for as strong in every direction."""
        if self._square == 0:
            return Strength(math.nan, math.nan)
        return Strength(self._dot / self._square, math.sqrt(self._noise) / self._square)


def row_errors(stored: numpy.ndarray, wanted: numpy.ndarray) -> numpy.ndarray:
    """‖stored - wanted‖ / ‖wanted‖ of each row. Rows far smaller than the usual one are measured by that one: what a
    16-bit number cannot hold is no damage."""
    import numpy

    size = numpy.linalg.norm(wanted, axis=-1)
    usual = float(numpy.median(size))
    gone = numpy.linalg.norm(stored - wanted, axis=-1)
    with numpy.errstate(divide="ignore", invalid="ignore"):
        errors = gone / numpy.maximum(size, TINY_ROW * usual)
    return numpy.where(gone == 0, 0.0, numpy.where(numpy.isnan(errors), math.inf, errors))
