"""Intervals, tests and estimators are the published ones: against closed forms, brute force and printed values."""

from __future__ import annotations

from itertools import combinations
from math import sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.statistics import majority_at, mcnemar, pass_at, powers, wilson


@settings(deadline=None)
@given(st.integers(0, 40), st.integers(1, 40))
def test_wilsons_interval_is_his_formula(right: int, more: int) -> None:
    asked, z = right + more, 1.959964
    p = right / asked
    centre, half = p + z * z / (2 * asked), z * sqrt(p * (1 - p) / asked + z * z / (4 * asked * asked))
    low, high = ((centre + sign * half) / (1 + z * z / asked) for sign in (-1, 1))
    assert wilson(right, asked) == pytest.approx([max(0, low), min(1, high)], abs=1e-6)


@pytest.mark.parametrize(
    ("gained", "lost", "p"),
    [(0, 0, 1.0), (1, 0, 1.0), (5, 0, 0.0625), (6, 0, 0.03125), (10, 2, 0.0385742), (2, 10, 0.0385742), (8, 8, 1.0)],
)
def test_mcnemar_is_the_binomial_test_of_the_rows_that_changed(gained: int, lost: int, p: float) -> None:
    assert mcnemar(gained, lost) == pytest.approx(p, abs=1e-6)


@settings(deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=8), st.data())
def test_pass_at_k_is_the_share_of_all_choices_of_k_samples_with_a_right_one(
    right: list[bool], data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, len(right)))
    choices = list(combinations(right, k))
    assert pass_at(k, right) == pytest.approx(sum(map(any, choices)) / len(choices))


def test_the_biased_estimator_would_be_wrong() -> None:
    """Chen et al.: 1 - (1 - c/n)^k is too low."""
    assert pass_at(2, [True, False, False, False]) == 0.5 > 1 - (3 / 4) ** 2


@pytest.mark.parametrize(
    ("votes", "right", "k", "share"),
    [
        (["7", "7", "8"], [True, True, False], 3, 1.0),
        (["7", "8", "8"], [True, False, False], 3, 0.0),
        (["7", "8"], [True, False], 2, 0.5),
        ([None, None, "7"], [False, False, True], 3, 1.0),
        ([None, None], [False, False], 2, 0.0),
        (["7", "8", "7", "7"], [True, False, True, True], 2, 0.75),
        (["7", "8", "7", "7"], [True, False, True, True], 1, 0.75),
        (["7", "8", "7"], [True, False, True], 2, 0.5),
    ],
)
def test_the_most_frequent_answer_counts(votes: list[str | None], right: list[bool], k: int, share: float) -> None:
    assert majority_at(k, votes, right) == pytest.approx(share)


@pytest.mark.parametrize(("samples", "sizes"), [(1, [1]), (2, [1, 2]), (5, [1, 2, 4]), (8, [1, 2, 4, 8])])
def test_k_doubles_up_to_the_samples(samples: int, sizes: list[int]) -> None:
    assert powers(samples) == sizes
