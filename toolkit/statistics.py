"""Intervals, tests and estimators over rows, from scipy. It knows no record and no model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import comb
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy

RESAMPLES = 10_000


def interval(values: Sequence[float] | numpy.ndarray) -> list[float]:
    """95 % interval of the mean of one number a row [rows]: bootstrap over rows, BCa (Efron 1987); a point where all agree."""
    import numpy
    from scipy.stats import bootstrap

    array = numpy.asarray(values)
    if len(array) < 2 or numpy.ptp(array) == 0:
        return [float(array.mean()), float(array.mean())]
    found = bootstrap(
        (array,),
        numpy.mean,
        n_resamples=RESAMPLES,
        vectorized=True,
        method="BCa",
        rng=numpy.random.default_rng(0),
    ).confidence_interval
    return [float(found.low), float(found.high)]


def wilson(right: int, asked: int) -> list[float]:
    """95 % interval of a share of single answers (Wilson 1927)."""
    from scipy.stats import binomtest

    found = binomtest(right, asked).proportion_ci(0.95, method="wilson")
    return [float(found.low), float(found.high)]


def mcnemar(gained: int, lost: int) -> float:
    """Exact two-sided p-value (McNemar 1947): of the rows that changed, as many should gain as lose if nothing differs."""
    from scipy.stats import binomtest

    return float(binomtest(gained, gained + lost, 0.5).pvalue) if gained + lost else 1.0


def powers(samples: int) -> list[int]:
    """1, 2, 4 … up to the number of samples."""
    return [1 << power for power in range(samples.bit_length())]


def pass_at(k: int, right: Sequence[bool]) -> float:
    """The chance that of k of a row's samples one is right, without bias (Chen et al. 2021, arXiv 2107.03374, eq. 1)."""
    wrong = len(right) - sum(right)
    return 1 - comb(wrong, k) / comb(len(right), k)


def majority_at(k: int, votes: Sequence[str | None], right: Sequence[bool]) -> float:
    """How often the most frequent answer of k samples is right (Wang et al. 2022, arXiv 2203.11171), over a row's samples in
    lots of k. A sample without an answer (None) has no vote; of equally frequent answers each counts by its part."""
    lots = [range(start, start + k) for start in range(0, len(votes) - k + 1, k)]
    return sum(_won([(votes[at], right[at]) for at in lot]) for lot in lots) / len(lots)


def _won(cast: Sequence[tuple[str | None, bool]]) -> float:
    counts = Counter(vote for vote, _ in cast if vote is not None)
    first = [vote for vote, count in counts.items() if count == max(counts.values())]
    said = dict(cast)
    return sum(said[vote] for vote in first) / len(first) if first else 0.0
