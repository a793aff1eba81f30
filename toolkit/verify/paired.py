"""Two models on the same problems: who lost what, by chance or not, and how far apart they can be. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Paired:
    """`n` problems, of which one model lost `lost` that the other has, and won `won` that the other has not."""

    n: int
    lost: int
    won: int

    @property
    def difference(self) -> float:
        """Of the shares: positive where more was won than lost."""
        return (self.won - self.lost) / self.n if self.n else 0.0


def paired(got: Sequence[bool], expected: Sequence[bool]) -> Paired:
    """`got` against `expected`, problem by problem."""
    pairs = list(zip(got, expected, strict=True))
    return Paired(
        len(pairs), sum(there and not here for here, there in pairs), sum(here > there for here, there in pairs)
    )


def chance_of_as_many_losses(lost: int, won: int) -> float:
    """McNemar's exact test, one-sided: chance of at least `lost` losses among the pairs that differ, if none is real."""
    from scipy.stats import binomtest

    return float(binomtest(lost, lost + won, 0.5, alternative="greater").pvalue) if lost + won else 1.0


def difference_interval(pairs: Paired) -> tuple[float, float]:
    """95 % interval of the difference of two paired shares: Tango's score interval (Statistics in Medicine 17, 1998, 891).

    It stays honest where nothing differs: then it says what so few problems cannot exclude. A bootstrap would say "none".
    """
    if not pairs.n:
        return -1.0, 1.0
    return -_upper(pairs.n, gains=pairs.lost, losses=pairs.won), _upper(pairs.n, gains=pairs.won, losses=pairs.lost)


def _upper(n: int, *, gains: int, losses: int) -> float:
    from scipy.optimize import brentq
    from scipy.stats import norm

    z = float(norm.ppf((1 + CONFIDENCE) / 2))
    estimate = (gains - losses) / n
    if estimate == 1:
        return 1.0

    def beyond(delta: float) -> float:
        """Positive where the score test refuses a true difference of `delta`."""
        variance = n * (2 * _likely_losses(n, gains, losses, delta) + delta * (1 - delta))
        return (gains - losses - n * delta) ** 2 - z * z * variance

    return float(brentq(beyond, estimate + 1e-9, 1.0))  # type: ignore[arg-type]


def _likely_losses(n: int, gains: int, losses: int, delta: float) -> float:
    """The likeliest share of losses, were the true difference `delta` (Tango, eq. 9 to 11)."""
    a, b, c = 2 * n, -gains - losses + (2 * n - gains + losses) * delta, -losses * delta * (1 - delta)
    return (math.sqrt(max(0.0, b * b - 4 * a * c)) - b) / (2 * a)
