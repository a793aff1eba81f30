"""What differs between two models: the gain split into format and answers, flips, McNemar's test, several samples."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from test_evaluate import RECIPE, answer, recorded
from toolkit.evaluate import GREEDY
from toolkit.evaluate.compare import EXAMPLES, LONGEST, _sentence
from toolkit.evaluate.show import show

Pair = tuple[int, int]
"""Whether an answer is right, strictly and leniently."""


def said(model: str, pairs: Sequence[Pair], sample: int = 0, **changes: Any) -> list[dict[str, Any]]:
    return [
        answer(model, f"r{at:03}", sample, strict, lenient=bool(lenient), **changes)
        for at, (strict, lenient) in enumerate(pairs)
    ]


BASE = [(0, 1)] * 22 + [(0, 0)] * 78
"""22 of 100 numbers are right, none in the tags."""
TUNED = [(1, 1)] * 31 + [(0, 0)] * 69
"""31 are right, all in the tags."""


def gain_of(*models: tuple[str, Sequence[Pair]]) -> dict[str, Any]:
    return recorded([entry for name, pairs in models for entry in said(name, pairs)])["gain"]


def test_the_gain_is_split_into_format_and_answers() -> None:
    found = gain_of(("base", BASE), ("tuned", TUNED))
    assert [found[part]["delta"] for part in ("points", "format", "answers")] == pytest.approx([0.31, 0.22, 0.09])
    assert found["sentence"].startswith("Of +31.0 points from base to tuned, 22.0 are format")
    assert "and 9.0 are answers" in found["sentence"] and "few_shot" not in found
    for part in ("points", "format", "answers"):
        low, high = found[part]["ci95"]
        assert low < found[part]["delta"] < high


def test_worked_examples_split_it_another_way() -> None:
    shown = [(1, 1)] * 18 + [(0, 0)] * 82
    found = gain_of(("base", BASE), ("few_shot", shown), ("warmup", BASE), ("tuned", TUNED))
    parts = found["few_shot"]
    assert (parts["format"]["delta"], parts["answers"]["delta"]) == pytest.approx((0.18, 0.13))
    assert "Shown worked examples instead, the base model gains 18.0; 13.0 are left." in found["sentence"]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(*[st.sampled_from([(0, 0), (0, 1), (1, 1)])] * 2), min_size=1, max_size=12))
def test_the_parts_add_up(pairs: list[tuple[Pair, Pair]]) -> None:
    found = gain_of(("base", [before for before, _ in pairs]), ("tuned", [after for _, after in pairs]))
    assert found["points"]["delta"] == pytest.approx(found["format"]["delta"] + found["answers"]["delta"])


def test_a_gain_that_cannot_be_shown_is_not_split() -> None:
    nothing = {"delta": 0.01, "ci95": [-0.02, 0.04]}
    assert "no difference that can be shown" in _sentence({"points": nothing, "format": nothing, "answers": nothing})
    assert recorded(said("base", BASE))["gain"] is None


def test_mcnemar_looks_at_the_rows_whose_greedy_answer_changed() -> None:
    before, after = [(0, 0)] * 8 + [(1, 1)] * 4, [(1, 1)] * 7 + [(0, 0)] + [(1, 1)] * 3 + [(0, 0)]
    given = said("base", before, GREEDY) + said("base", before)
    record = recorded(given + said("tuned", after, GREEDY) + said("tuned", after))
    found = record["differences"]["tuned-base"]["greedy"]["mcnemar"]
    assert (found["gained"], found["lost"]) == (7, 1) and found["p"] == pytest.approx(0.0703125)
    flips = record["flips"]["tuned-base"]
    assert flips["wrong_to_right"]["count"] == 7 and len(flips["wrong_to_right"]["examples"]) == EXAMPLES
    (lost,) = flips["right_to_wrong"]["examples"]
    assert lost["row_id"] == "r011" and lost["before"] == "True" and lost["after"] == "False"


def test_flips_are_short_texts() -> None:
    given = said("base", [(0, 0)]) + said("tuned", [(1, 1)], completion="x" * 5000)
    (example,) = recorded(given)["flips"]["tuned-base"]["wrong_to_right"]["examples"]
    assert len(example["after"]) == LONGEST and set(example) == {"row_id", "question", "gold", "before", "after"}


def test_several_samples_give_pass_and_majority(capsys: pytest.CaptureFixture[str]) -> None:
    """Row a: right twice of four. Row b: never, and its answers differ."""
    right = {"a": (1, 1, 0, 0), "b": (0, 0, 0, 0)}
    votes = {"a": ("7", "7", "8", "9"), "b": ("1", "2", "3", None)}
    given = [
        answer(model, row, at, right[row][at], answer=votes[row][at])
        for model in ("base", "tuned")
        for row in right
        for at in range(4)
    ]
    record = recorded(given, [[1], [2]], RECIPE)
    model = record["models"]["tuned"]
    assert [model["pass_at_k"][k]["value"] for k in ("1", "2", "4")] == pytest.approx([1 / 4, 5 / 12, 1 / 2])
    assert model["pass_at_k"]["1"]["value"] == pytest.approx(model["accuracy"])
    assert [model["maj_at_k"][k]["value"] for k in ("1", "2", "4")] == pytest.approx([1 / 4, 1 / 4, 1 / 2])
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    show(record)
    shown = capsys.readouterr().out
    assert "pass@4" in shown and "maj@2" in shown and "maj@1" not in shown


def test_one_sample_a_row_has_no_choice_of_several() -> None:
    assert "pass_at_k" not in recorded(said("base", BASE))["models"]["base"]
