"""Numbers that compare models: distances of distributions, strength of the adapter, paired tests. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy

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


def chance_of_as_many_losses(lost: int, won: int) -> float:
    """McNemar's exact test, one-sided: chance of at least `lost` losses among the pairs that differ, if
    none is real."""
    n = lost + won
    return sum(math.comb(n, k) for k in range(lost, n + 1)) / 2**n


def weight_strength(base: list[numpy.ndarray], tuned: list[numpy.ndarray], got: list[numpy.ndarray]) -> Strength:
    """The same share, measured on weights instead of predictions; each array is one tensor."""
    import numpy

    dot = square = noise = 0.0
    for at_base, at_tuned, at_got in zip(base, tuned, got, strict=True):
        way = (at_tuned - at_base).ravel()
        dot += float(numpy.dot(way, (at_got - at_base).ravel()))
        square += float(numpy.dot(way, way))
        noise += float(((at_got - at_tuned) ** 2).mean()) * float(numpy.dot(way, way))
    if square == 0:
        return Strength(math.nan, math.nan)
    return Strength(dot / square, math.sqrt(noise) / square)
