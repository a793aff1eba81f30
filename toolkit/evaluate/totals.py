"""Totals of rewards that can be compared between models, where some rewards abstained on some answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toolkit.engine.rollout import added, without_gaps

Answer = dict[str, Any]


def with_totals(answers: Sequence[Answer], weights: Mapping[str, float]) -> list[Answer]:
    """Each answer with its weighted total under `reward`, from what each reward said (`reward/<name>`).

    An abstention counts as the mean of what the model's other answers to the row got, as in training. Where a reward could judge
    none of a model's answers to a row, it is left out of the totals of all models for that row, so that they stay comparable;
    the total is None where that leaves no reward.
    """
    totals: list[float | None] = [None] * len(answers)
    for name, weight in weights.items():
        for place, value in enumerate(_comparable(answers, f"reward/{name}")):
            totals[place] = added(totals[place], weight, value)
    return [answer | {"reward": total} for answer, total in zip(answers, totals, strict=True)]


def _comparable(answers: Sequence[Answer], key: str) -> list[float | None]:
    kinds = [(answer["row_id"], answer["sample"] < 0) for answer in answers]
    groups = [(answer["model"], *kind) for answer, kind in zip(answers, kinds, strict=True)]
    filled = without_gaps([answer[key] for answer in answers], groups)
    unknown = {kind for kind, value in zip(kinds, filled, strict=True) if value is None}
    return [None if kind in unknown else value for kind, value in zip(kinds, filled, strict=True)]
