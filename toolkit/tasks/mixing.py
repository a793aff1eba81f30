"""Shares of a whole by weight, and an order that keeps to them all along. Arithmetic only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction


def shares(weights: Sequence[float], total: int) -> list[int]:
    """Whole numbers in proportion to the weights that add up to `total` (largest remainder; ties to the earlier one)."""
    exact = [Fraction(weight) for weight in weights]
    quotas = [weight * total / sum(exact) for weight in exact]
    counts = [int(quota) for quota in quotas]
    by_remainder = sorted(range(len(quotas)), key=lambda at: (counts[at] - quotas[at], at))
    for at in by_remainder[: total - sum(counts)]:
        counts[at] += 1
    return counts


def interleaved(counts: Sequence[int]) -> Iterator[int]:
    """Which part comes next, `counts[part]` times each: always the one that lags most behind its share."""
    total, taken = sum(counts), [0] * len(counts)
    for done in range(1, total + 1):
        part = max(range(len(counts)), key=lambda at: (counts[at] * done - taken[at] * total, -at))
        taken[part] += 1
        yield part
