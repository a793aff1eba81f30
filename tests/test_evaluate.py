"""eval.json says what the answers say: pass@1, paired differences and intervals, under the promised keys."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from by_heart import evaluate
from models import small_recipe
from toolkit.errors import DataError, ToolkitError
from toolkit.evaluate import GREEDY
from toolkit.evaluate.record import evaluation_record, write_answers
from toolkit.evaluate.show import show
from toolkit.evaluate.totals import with_totals
from toolkit.rundir import RunDir
from toolkit.statistics import interval

RECIPE = small_recipe("org/model", eval={"rows": 4, "samples": 2})
PROMPTS = [[1, 2], [3], [4], [5]]


def answer(model: str, row: str, sample: int, strict: float, **changes: Any) -> dict[str, Any]:
    right = bool(strict)
    base = {"model": model, "row_id": row, "sample": sample, "strict": right, "lenient": right, "well_formed": right}
    base |= {"question": f"What is {row}?", "gold": "1", "completion": str(right), "answer": "1" if right else "0"}
    paid = {"reward/correctness": 2.0 * right, "reward/xmlcount": 0.25}
    return base | {"tokens": 10, "truncated": False} | paid | changes


def answers(
    model: str, shares: Mapping[str, Sequence[int]], greedy: dict[str, int] | None = None
) -> list[dict[str, Any]]:
    """For each row, which of its samples are right."""
    sampled = [answer(model, row, at, right) for row, given in shares.items() for at, right in enumerate(given)]
    return [answer(model, row, GREEDY, right) for row, right in (greedy or {}).items()] + sampled


BASE = {"a": [0, 0], "b": [0, 1], "c": [0, 0], "d": [1, 1]}
WARM = {"a": [0, 1], "b": [0, 1], "c": [0, 1], "d": [1, 1]}
TUNED = {"d": [1, 1], "c": [1, 1], "b": [0, 0], "a": [1, 1]}


WEIGHTS = {"correctness": 1.0, "xmlcount": 2.0}


def recorded(given: Sequence[dict[str, Any]], prompts: Any = PROMPTS, recipe: Any = RECIPE) -> dict[str, Any]:
    return evaluation_record(recipe, with_totals(given, WEIGHTS), prompts)


def record_of(*models: tuple[str, dict[str, list[int]]]) -> dict[str, Any]:
    return recorded([a for name, shares in models for a in answers(name, shares)])


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
        assert {"lenient_accuracy", "format_rate", "reward", "rewards"} <= set(model)
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


def test_pairing_narrows_theinterval() -> None:
    """Rows of very different difficulty, each a little better after: unpaired, the difference would drown."""
    before = {f"r{i:03}": [i % 2, i % 2, i % 2, 0] for i in range(100)}
    after = {row: [*given[:3], 1] for row, given in reversed(before.items())}  # pairs go by row, not by place
    record = record_of(("base", before), ("tuned", after))
    quarter, half = {"delta": 0.25, "ci95": [0.25, 0.25]}, {"delta": 0.5, "ci95": [0.5, 0.5]}
    assert record["differences"]["tuned-base"] == {**quarter, "lenient": quarter, "reward": half}
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
    assert interval(numpy.full(300, value)) == [value, value]
    assert interval(numpy.array([value])) == [value, value]


def test_the_interval_has_the_width_that_theory_gives() -> None:
    values = numpy.random.default_rng(0).integers(0, 2, 300).astype(float)
    low, high = interval(values)
    half = 1.96 * values.std() / math.sqrt(300)
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.01)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), min_size=1, max_size=40))
def test_intervals_are_finite_and_hold_the_mean(values: list[float]) -> None:
    low, high = interval(numpy.array(values))
    assert min(values) <= low <= numpy.mean(values) + 1e-12
    assert numpy.mean(values) - 1e-12 <= high <= max(values)


@pytest.mark.parametrize("rows", [2, 3, 30, 300])
@pytest.mark.parametrize("odd", [0.25, 1.0])
def test_one_row_that_differs_from_all_others_still_gives_aninterval(rows: int, odd: float) -> None:
    """The hardest case for the bootstrap: a third of the resamples do not hold that row at all."""
    for values in (numpy.zeros(rows), numpy.full(rows, 0.5)):
        values[0] = odd if odd != values[1] else 0.0
        low, high = interval(values)
        assert math.isfinite(low) and math.isfinite(high) and low <= values.mean() <= high


def test_greedy_answers_are_reported_beside_and_not_mixed_in() -> None:
    base = answers("base", BASE, {"a": 1, "b": 1, "c": 0, "d": 1})
    tuned = answers("tuned", TUNED, {"d": 1, "c": 1, "b": 1, "a": 1})
    record = recorded(base + tuned)
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
    model = recorded(given, PROMPTS[:2])["models"]["base"]
    assert (model["accuracy"], model["lenient_accuracy"], model["format_rate"]) == (0.25, 0.75, 0.5)
    assert (model["mean_tokens"], model["truncated"]) == (5.0, 0.25)


def test_the_mean_reward_is_the_weighted_total_averaged_as_accuracy_is() -> None:
    record = record_of(("base", {"a": [1], "b": [0, 0, 0]}), ("tuned", {"a": [1], "b": [1, 1, 1]}))
    base, tuned = record["models"]["base"], record["models"]["tuned"]
    assert base["reward"]["mean"] == pytest.approx(1.0 + 0.5) and tuned["reward"]["mean"] == pytest.approx(2.0 + 0.5)
    assert base["rewards"] == {"correctness": 1.0, "xmlcount": 0.25} and "abstained" not in base
    low, high = base["reward"]["ci95"]
    assert low < base["reward"]["mean"] < high
    assert record["differences"]["tuned-base"]["reward"]["delta"] == pytest.approx(1.0)


def judged(model: str, said: Mapping[str, Sequence[float | None]], sample: int = 0) -> list[dict[str, Any]]:
    """Answers to rows that `correctness` may be unable to judge, without the other reward."""
    return [
        answer(model, row, sample + at, 0, **{"reward/correctness": value, "reward/xmlcount": 0.0})
        for row, values in said.items()
        for at, value in enumerate(values)
    ]


def test_an_abstention_counts_as_the_mean_of_the_rows_other_answers() -> None:
    record = recorded(judged("base", {"a": [1.0, None, 0.0], "b": [4.0]}))
    base = record["models"]["base"]
    assert base["reward"]["mean"] == pytest.approx((0.5 + 4.0) / 2)
    assert base["rewards"]["correctness"] == pytest.approx((0.5 + 4.0) / 2)
    assert base["abstained"] == {"correctness": 0.25}


def test_a_row_that_one_model_was_not_judged_on_is_left_out_for_all() -> None:
    """Else the model whose worse rows nobody could judge would win."""
    base, tuned = {"a": [1.0], "b": [-9.0]}, {"a": [2.0], "b": [None]}
    record = recorded(judged("base", base) + judged("tuned", tuned))
    totals = [record["models"][name]["reward"]["mean"] for name in ("base", "tuned")]
    assert totals == [pytest.approx(0.5), pytest.approx(1.0)]  # on row b only the other reward, 0, is left
    assert record["differences"]["tuned-base"]["reward"]["delta"] == pytest.approx(0.5)
    assert record["models"]["tuned"]["rewards"] == {"correctness": 2.0, "xmlcount": 0.0}


def test_where_nothing_could_be_judged_there_is_no_reward() -> None:
    given = [
        entry | {"reward/xmlcount": None} for entry in judged("base", {"a": [None]}) + judged("tuned", {"a": [1.0]})
    ]
    record = recorded(given)
    assert record["models"]["base"]["reward"] is None and record["models"]["tuned"]["reward"] is None
    assert record["differences"]["tuned-base"]["reward"] is None
    assert record["models"]["base"]["rewards"] == {"correctness": None, "xmlcount": None}
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    show(record)


def test_greedy_rewards_are_reported_beside() -> None:
    given = judged("base", {"a": [1.0], "b": [2.0]}) + judged("base", {"a": [5.0], "b": [None]}, GREEDY)
    base = recorded(given)["models"]["base"]
    assert base["reward"]["mean"] == pytest.approx(1.5) and base["greedy"]["reward"]["mean"] == pytest.approx(2.5)


# Without golds.


class Goldless:
    """The recipe with a task whose rows have no golds."""

    rewards = RECIPE.rewards
    eval, grpo, seed = RECIPE.eval, RECIPE.grpo, RECIPE.seed
    task = SimpleNamespace(graded=False)


def goldless(*, greedy: bool = True) -> dict[str, Any]:
    shares: dict[str, dict[str, list[float | None]]] = {
        "base": {"a": [0.0, 1.0], "b": [1.0, 1.0], "c": [0.5, 0.0]}, "tuned": {"a": [2.0, 3.0], "b": [1.5, 2.0], "c": [1.0, 2.5]},
    }  # fmt: skip
    given = [entry for name, said in shares.items() for entry in judged(name, said)]
    if greedy:
        given += judged("base", {row: [1.0] for row in "abc"}, GREEDY) + judged(
            "tuned", {row: [3.0] for row in "abc"}, GREEDY
        )
    for entry in given:
        del entry["strict"], entry["lenient"], entry["well_formed"], entry["answer"]
    return recorded(given, PROMPTS[:3], Goldless())


def test_without_golds_rewards_are_compared_and_nothing_is_said_of_right_and_wrong() -> None:
    record = goldless()
    assert record["graded"] is False and record["schema"] == 1
    lengths = {"mean_tokens", "median_tokens", "p95_tokens", "truncated"}
    assert set(record["models"]["tuned"]) == {"reward", "rewards", "greedy"} | lengths
    assert set(record["models"]["tuned"]["greedy"]) == {"reward"} | lengths
    change = record["differences"]["tuned-base"]
    assert set(change) == {"reward", "greedy"} and set(change["greedy"]) == {"reward"}
    assert change["reward"]["delta"] == pytest.approx((2.0 + 0.75 + 1.5) / 3)
    assert change["greedy"]["reward"] == {"delta": 2.0, "ci95": [2.0, 2.0]}
    assert json.loads(json.dumps(record, allow_nan=False)) == record


@pytest.mark.parametrize("greedy", [True, False])
def test_without_golds_mean_rewards_are_shown(greedy: bool, capsys: pytest.CaptureFixture[str]) -> None:
    show(goldless(greedy=greedy))
    shown = capsys.readouterr().out
    assert "mean reward" in shown and "right" not in shown and "cut off" in shown
    assert "0.583" in shown and "+1.42" in shown and ("+2 (" in shown) == greedy


def test_the_prompt_hash_depends_on_the_prompts() -> None:
    shares = answers("base", BASE)
    hashes = {recorded(shares, p)["prompts_sha256"] for p in (PROMPTS, PROMPTS[::-1], [[1, 2]])}
    assert len(hashes) == 3


def test_the_record_is_shown_with_every_model(capsys: pytest.CaptureFixture[str]) -> None:
    show(record_of(("base", BASE), ("warmup", WARM), ("tuned", TUNED)))
    shown = capsys.readouterr().out
    assert "75.0%" in shown and "37.5%" in shown and "+37.5" in shown
    assert all(name in shown for name in ("base", "warmup", "tuned", "tuned - warmup"))


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
    assert all(entry["reward/correctness"] == 2.0 * entry["strict"] for entry in kept)
    assert {entry["reward"] for entry in kept if not entry["strict"]} == {kept[0]["reward/xmlcount"]}
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

    given = [entry | {"reward/judge": None} for entry in answers("base", BASE)]
    write_answers(tmp_path / "answers.parquet", given)
    written = parquet.read_table(tmp_path / "answers.parquet")
    assert written.to_pylist() == given and str(written.schema.field("reward/judge").type) == "double"
    assert [path.name for path in tmp_path.iterdir()] == ["answers.parquet"]
