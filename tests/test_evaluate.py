"""eval.json says what the answers say: pass@1, paired differences and intervals, under the promised keys."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from by_heart import evaluate
from models import small_recipe
from toolkit.errors import DataError, ToolkitError
from toolkit.evaluate import GREEDY
from toolkit.evaluate.record import _interval, evaluation_record, show, write_answers
from toolkit.rundir import RunDir

RECIPE = small_recipe("org/model", eval={"rows": 4, "samples": 2})
PROMPTS = [[1, 2], [3], [4], [5]]


def answer(model: str, row: str, sample: int, strict: float, **changes: Any) -> dict[str, Any]:
    right = bool(strict)
    base = {"model": model, "row_id": row, "sample": sample, "strict": right, "lenient": right, "well_formed": right}
    return base | {"tokens": 10, "truncated": False} | changes


def answers(
    model: str, shares: Mapping[str, Sequence[int]], greedy: dict[str, int] | None = None
) -> list[dict[str, Any]]:
    """For each row, which of its samples are right."""
    sampled = [answer(model, row, at, right) for row, given in shares.items() for at, right in enumerate(given)]
    return [answer(model, row, GREEDY, right) for row, right in (greedy or {}).items()] + sampled


BASE = {"a": [0, 0], "b": [0, 1], "c": [0, 0], "d": [1, 1]}
WARM = {"a": [0, 1], "b": [0, 1], "c": [0, 1], "d": [1, 1]}
TUNED = {"d": [1, 1], "c": [1, 1], "b": [0, 0], "a": [1, 1]}


def record_of(*models: tuple[str, dict[str, list[int]]]) -> dict[str, Any]:
    return evaluation_record(RECIPE, [a for name, shares in models for a in answers(name, shares)], PROMPTS)


def test_accuracy_is_the_mean_over_rows_of_the_share_of_right_samples() -> None:
    record = record_of(("base", BASE), ("tuned", TUNED))
    assert record["models"]["base"]["accuracy"] == pytest.approx(3 / 8)
    assert record["models"]["tuned"]["accuracy"] == pytest.approx(6 / 8)


def test_every_row_weighs_the_same_whatever_its_number_of_samples() -> None:
    record = record_of(("base", {"a": [1], "b": [0, 0, 0]}))
    assert record["models"]["base"]["accuracy"] == pytest.approx(1 / 2)


def test_the_keys_that_scripts_read_are_there() -> None:
    record = record_of(("base", BASE), ("warmup", WARM), ("tuned", TUNED))
    assert record["schema"] == 1 and record["n"] == 4
    assert list(record["models"]) == ["base", "warmup", "tuned"]
    assert set(record["differences"]) == {"tuned-base", "tuned-warmup", "warmup-base"}
    for model in record["models"].values():
        assert isinstance(model["accuracy"], float)
        low, high = model["ci95"]
        assert low <= model["accuracy"] <= high
        assert {"lenient_accuracy", "format_rate"} <= set(model)
    for difference in record["differences"].values():
        low, high = difference["ci95"]
        assert low <= difference["delta"] <= high
    assert {"temperature", "top_p", "top_k", "min_p", "max_completion_length", "seed"} <= set(record["decoding"])
    assert len(record["prompts_sha256"]) == 64
    assert json.loads(json.dumps(record, allow_nan=False)) == record


def test_without_a_warm_up_there_is_one_difference() -> None:
    record = record_of(("base", BASE), ("tuned", TUNED))
    assert list(record["models"]) == ["base", "tuned"] and list(record["differences"]) == ["tuned-base"]


def test_differences_are_after_minus_before_and_paired_by_row() -> None:
    record = record_of(("base", BASE), ("warmup", WARM), ("tuned", TUNED))
    differences = record["differences"]
    assert differences["tuned-base"]["delta"] == pytest.approx((1 - 0.5 + 1 + 0) / 4)
    assert differences["warmup-base"]["delta"] == pytest.approx((0.5 + 0 + 0.5 + 0) / 4)
    assert differences["tuned-warmup"]["delta"] == pytest.approx((0.5 - 0.5 + 0.5 + 0) / 4)


def test_pairing_narrows_the_interval() -> None:
    """Rows of very different difficulty, each a little better after: unpaired, the difference would drown."""
    before = {f"r{i:03}": [i % 2, i % 2, i % 2, 0] for i in range(100)}
    after = {row: [*given[:3], 1] for row, given in reversed(before.items())}  # pairs go by row, not by place
    record = record_of(("base", before), ("tuned", after))
    assert record["differences"]["tuned-base"] == {
        "delta": 0.25, "ci95": [0.25, 0.25], "lenient": {"delta": 0.25, "ci95": [0.25, 0.25]},
    }  # fmt: skip
    low, high = record["models"]["base"]["ci95"]
    assert high - low > 0.1


def test_a_clear_difference_excludes_zero_and_none_does_not() -> None:
    generator = numpy.random.default_rng(1)
    before = {f"r{i:03}": generator.integers(0, 2, 4).tolist() for i in range(200)}
    better = {row: [max(given), *given[1:]] for row, given in before.items()}
    other = {f"r{i:03}": generator.integers(0, 2, 4).tolist() for i in range(200)}
    assert record_of(("base", before), ("tuned", better))["differences"]["tuned-base"]["ci95"][0] > 0
    low, high = record_of(("base", before), ("tuned", other))["differences"]["tuned-base"]["ci95"]
    assert low < 0 < high


@pytest.mark.parametrize("value", [0.0, 0.25, 1.0])
def test_where_all_rows_agree_the_interval_is_a_point(value: float) -> None:
    assert _interval(numpy.full(300, value)) == [value, value]
    assert _interval(numpy.array([value])) == [value, value]


def test_the_interval_has_the_width_that_theory_gives() -> None:
    values = numpy.random.default_rng(0).integers(0, 2, 300).astype(float)
    low, high = _interval(values)
    half = 1.96 * values.std() / math.sqrt(300)
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.01)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), min_size=1, max_size=40))
def test_intervals_are_finite_and_hold_the_mean(values: list[float]) -> None:
    low, high = _interval(numpy.array(values))
    assert min(values) <= low <= numpy.mean(values) + 1e-12
    assert numpy.mean(values) - 1e-12 <= high <= max(values)


@pytest.mark.parametrize("rows", [2, 3, 30, 300])
@pytest.mark.parametrize("odd", [0.25, 1.0])
def test_one_row_that_differs_from_all_others_still_gives_an_interval(rows: int, odd: float) -> None:
    """The hardest case for the bootstrap: a third of the resamples do not hold that row at all."""
    for values in (numpy.zeros(rows), numpy.full(rows, 0.5)):
        values[0] = odd if odd != values[1] else 0.0
        low, high = _interval(values)
        assert math.isfinite(low) and math.isfinite(high) and low <= values.mean() <= high


def test_greedy_answers_are_reported_beside_and_not_mixed_in() -> None:
    base = answers("base", BASE, {"a": 1, "b": 1, "c": 0, "d": 1})
    tuned = answers("tuned", TUNED, {"d": 1, "c": 1, "b": 1, "a": 1})
    record = evaluation_record(RECIPE, base + tuned, PROMPTS)
    assert record["models"]["base"]["accuracy"] == pytest.approx(3 / 8)
    assert record["models"]["base"]["greedy"]["accuracy"] == 3 / 4
    low, high = record["models"]["tuned"]["greedy"]["ci95"]
    assert 0.4 < low < 1.0 == pytest.approx(high)  # Wilson: four of four is not certainty
    assert record["differences"]["tuned-base"]["greedy"]["delta"] == pytest.approx(1 / 4)
    assert record["differences"]["tuned-base"]["delta"] == pytest.approx(3 / 8)


def test_strict_lenient_format_length_and_cut_are_counted_apart() -> None:
    given = [
        answer("base", "a", 0, 1, tokens=4),
        answer("base", "a", 1, 0, lenient=True, well_formed=True, tokens=8, truncated=True),
        answer("base", "b", 0, 0, lenient=True, tokens=6),
        answer("base", "b", 1, 0, tokens=2),
    ]
    model = evaluation_record(RECIPE, given, PROMPTS[:2])["models"]["base"]
    assert (model["accuracy"], model["lenient_accuracy"], model["format_rate"]) == (0.25, 0.75, 0.5)
    assert (model["mean_tokens"], model["truncated"]) == (5.0, 0.25)


def test_the_prompt_hash_depends_on_the_prompts() -> None:
    shares = answers("base", BASE)
    hashes = {evaluation_record(RECIPE, shares, p)["prompts_sha256"] for p in (PROMPTS, PROMPTS[::-1], [[1, 2]])}
    assert len(hashes) == 3


def test_the_record_is_shown_with_every_model(capsys: pytest.CaptureFixture[str]) -> None:
    show(record_of(("base", BASE), ("warmup", WARM), ("tuned", TUNED)))
    shown = capsys.readouterr().out
    assert "75.0%" in shown and "37.5%" in shown and "+37.5" in shown
    assert all(name in shown for name in ("base", "warmup", "tuned", "tuned-warmup"))


# The step around the record.


def test_the_step_asks_every_model_the_same_and_keeps_every_answer(tmp_path: Path) -> None:
    from pyarrow import parquet

    record, asked = evaluate(RECIPE, tmp_path)
    run = RunDir(tmp_path)
    assert [call.pop("adapter") for call in asked] == [None, "warmup", "tuned"]
    assert asked[0] == asked[1] == asked[2]
    accuracies = {name: (m["accuracy"], m["greedy"]["accuracy"]) for name, m in record["models"].items()}
    assert accuracies == {"base": (0.0, 0.0), "warmup": (0.5, 1.0), "tuned": (1.0, 1.0)}
    assert json.loads(run.evaluation.read_text()) == record
    kept = parquet.read_table(run.eval_completions).to_pylist()
    assert len(kept) == 3 * 4 * (2 + 1)
    assert {"model", "row_id", "question", "gold", "sample", "completion", "strict", "lenient"} <= set(kept[0])
    assert {entry["sample"] for entry in kept} == {GREEDY, 0, 1}
    tuned = [entry for entry in kept if entry["model"] == "tuned"]
    assert all(entry["strict"] and entry["gold"] in entry["completion"] for entry in tuned)


def test_a_run_without_an_adapter_is_an_error_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError) as caught:
        evaluate(RECIPE, tmp_path, adapters=("warmup",))
    assert caught.value.exit_code == 2 and "--resume" in str(caught.value.hint)


def test_more_rows_than_are_held_out_is_an_error_with_the_number(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="asks for 5 rows, the task has 4"):
        evaluate(small_recipe("org/model", eval={"rows": 5}), tmp_path)


def test_answers_are_written_whole(tmp_path: Path) -> None:
    from pyarrow import parquet

    given = answers("base", BASE)
    write_answers(tmp_path / "answers.parquet", given)
    assert parquet.read_table(tmp_path / "answers.parquet").to_pylist() == given
    assert [path.name for path in tmp_path.iterdir()] == ["answers.parquet"]
