"""The numbers behind a verdict, on cases whose answer is known."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.llamacpp.dequantize import TYPES, bits_of
from toolkit.recipe.schema import GgufType
from toolkit.verify.certificate import certificate
from toolkit.verify.contents import Contents
from toolkit.verify.gguf_checks import ordinary
from toolkit.verify.header_checks import check_contents
from toolkit.verify.limits import JUDGED_KL, LIMITS, RECOMMENDED_KL, ROW_ERRORS
from toolkit.verify.merged_checks import _shares
from toolkit.verify.paired import Paired, chance_of_as_many_losses, difference_interval, paired
from toolkit.verify.peft_merge import Merge
from toolkit.verify.recommend import recommend
from toolkit.verify.record import Check, FileResult, VerifyRecord, at_most, equal
from toolkit.verify.spoken import leading
from toolkit.verify.stats import Strength, WeightStrength, distance, perplexity, row_errors, strength
from toolkit.verify.table import COLUMNS, rows

numpy = pytest.importorskip("numpy")


def test_every_type_that_a_recipe_can_name_has_limits() -> None:
    assert set(get_args(GgufType)) == set(LIMITS)
    for kind, limits in LIMITS.items():
        assert 0 < limits.mean_kl < limits.p99_kl and 0 < limits.top1 <= 1 and limits.least_bits > 1, kind
    assert LIMITS["f16"].mean_kl == 1e-4


def test_every_type_of_a_tensor_has_a_limit_and_fewer_bits_may_err_more() -> None:
    assert set(ROW_ERRORS) == {name for name, *_ in TYPES.values()}
    assert all(
        ROW_ERRORS["F32"] < ROW_ERRORS["F16"] < ROW_ERRORS["Q8_0"] < ROW_ERRORS[kind] < 1 for kind in ("Q4_K", "Q2_K")
    )
    assert bits_of("Q4_K") == 4.5 and bits_of("F16") == 16


def test_the_document_states_the_limits_of_the_code() -> None:
    text = (Path(__file__).parent.parent / "docs" / "export.md").read_text(encoding="utf-8")
    for kind, limits in LIMITS.items():
        cells = (kind, limits.least_bits, limits.mean_kl, limits.p99_kl, limits.top1)
        assert f"| {' | '.join(f'{cell:g}' if isinstance(cell, int | float) else cell for cell in cells)} |" in text, (
            kind
        )
    for kind, limit in ROW_ERRORS.items():
        assert f"{kind} {limit:g}" in " ".join(text.split()), kind


def log_probabilities(*logits: list[float]) -> list[Any]:
    values = numpy.array(logits, dtype=numpy.float32)
    return [values - numpy.log(numpy.exp(values).sum(-1, keepdims=True))]


def test_distance_is_zero_to_itself_and_the_known_number_to_another() -> None:
    one, other = log_probabilities([0.0, 0.0]), log_probabilities([math.log(3.0), 0.0])
    assert distance(one, one).mean == 0
    assert distance(one, other).mean == pytest.approx(0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25))


def test_perplexity_is_the_number_of_choices_where_all_are_equally_likely() -> None:
    assert perplexity(log_probabilities([0.0] * 8, [0.0] * 8), [[3, 5]]) == pytest.approx(8)
    assert perplexity(log_probabilities([0.0, math.log(3.0)]), [[1]]) == pytest.approx(4 / 3)


def test_strength_is_0_at_the_base_1_at_the_tuned_model_and_2_for_a_doubled_adapter() -> None:
    base, tuned = log_probabilities([0.0, 1.0, 2.0]), log_probabilities([0.5, 1.0, 1.0])
    twice = [2 * tuned[0] - base[0]]
    assert strength(base, tuned, base).value == pytest.approx(0, abs=1e-6)
    assert strength(base, tuned, tuned).value == pytest.approx(1, abs=1e-6)
    assert strength(base, tuned, twice).value == pytest.approx(2, abs=1e-6)
    assert math.isnan(strength(base, base, base).value)


@pytest.mark.parametrize("truth", [0.0, 1.0])
def test_the_adapter_is_found_in_weights_under_five_times_as_much_noise(truth: float) -> None:
    draw = numpy.random.default_rng(3)
    found = WeightStrength()
    for _ in range(4):
        base = draw.normal(size=(250, 250)).astype("float32")
        way = draw.normal(scale=0.01, size=base.shape).astype("float32")
        noise = draw.normal(scale=0.05, size=base.shape).astype("float32")
        found.add(base, base + way, base + truth * way + noise)
    assert found.result.value == pytest.approx(truth, abs=4 * found.result.error)
    assert found.result.error < 0.05


def test_a_row_error_is_1_for_a_row_of_zeros_and_infinite_for_nan() -> None:
    wanted = numpy.ones((4, 8), dtype="float32")
    stored = wanted.copy()
    stored[1] = 0
    stored[2, 3] = math.nan
    stored[3, :4] = 0
    assert row_errors(stored, wanted).tolist() == [0, 1, math.inf, pytest.approx(math.sqrt(0.5))]


def test_a_row_too_small_for_16_bits_is_no_damage_and_a_row_of_zeros_must_stay_one() -> None:
    wanted = numpy.ones((5, 8), dtype="float32")
    wanted[0], wanted[1] = 1e-9, 0
    stored = wanted.copy()
    stored[0] = 0
    assert row_errors(stored, wanted).max() < 1e-6
    stored[1] = 0.5
    assert row_errors(stored, wanted)[1] > 10


def test_a_paired_test_counts_only_answers_that_differ() -> None:
    assert paired([True, False, False, True], [True, True, False, False]) == Paired(4, lost=1, won=1)
    assert chance_of_as_many_losses(0, 0) == 1
    assert chance_of_as_many_losses(0, 5) == 1
    assert chance_of_as_many_losses(7, 0) == pytest.approx(1 / 128)


def test_the_paired_interval_is_the_published_one() -> None:
    """Airway responsiveness before and after transplantation, 21 children, 7 against 1 (Fagerland et al. 2014, table V)."""
    low, high = difference_interval(Paired(21, lost=7, won=1))
    assert (round(low, 3), round(high, 3)) == (-0.517, -0.026)


def test_without_a_single_difference_the_interval_says_what_so_few_problems_cannot_exclude() -> None:
    z = 1.959964
    for n in (8, 64, 1000):
        assert difference_interval(Paired(n, 0, 0)) == pytest.approx(
            (-z * z / (n + z * z), z * z / (n + z * z)), rel=1e-4
        )
    assert difference_interval(Paired(0, 0, 0)) == (-1, 1)


@given(st.integers(1, 200), st.data())
def test_the_interval_holds_the_difference_and_turns_round_with_it(n: int, data: st.DataObject) -> None:
    lost = data.draw(st.integers(0, n))
    won = data.draw(st.integers(0, n - lost))
    low, high = difference_interval(Paired(n, lost, won))
    assert -1 <= low <= (won - lost) / n <= high <= 1 and low < high
    assert difference_interval(Paired(n, won, lost)) == pytest.approx((-high, -low))


@pytest.mark.parametrize(("worst", "said"), [(1e-4, True), (0.5, False)])
def test_a_type_whose_steps_are_wider_than_the_training_says_so_and_the_way_out(worst: float, said: bool) -> None:
    """Where the rows are right; else the file is another model."""
    found = Contents(missing=[], compared=1.0, share=Strength(0.4, 0.01), worst={"F16": (worst, "blk.0")})
    *_, share = check_contents(found, "f16")
    assert not share.passed and share.name == "training in the weights"
    assert ("export.gguf" in share.why) is said


def test_no_number_never_passes() -> None:
    check = at_most("mean KL", math.nan, 1.0, "")
    assert not check.passed
    assert check.value is None


def test_begin_tokens_are_counted_at_the_beginning_only() -> None:
    assert [leading(ids, 1) for ids in ([2, 1], [1, 2, 1], [1, 1, 2], [1, 1], [])] == [0, 1, 2, 2, 0]
    assert leading([5, 6], None) == 0


def test_what_an_answer_can_hold_must_not_end_it() -> None:
    assert ordinary(["<|im_end|>", "\n", " ", "", "<answer>", "</answer>\n", "</s>"]) == [
        "\n",
        " ",
        "",
        "<answer>",
        "</answer>\n",
    ]


def result(
    name: str, size: int, kl: float, *, passed: bool = True, ends: tuple[float, float] | None = (-0.1, 0.1)
) -> FileResult:
    task: dict[str, Any] = {"n": 64} if ends is None else {
        "n": 64, "strict": 30, "difference": sum(ends) / 2, "ci95": list(ends), "lost": 1, "won": 1
    }  # fmt: skip
    return FileResult(
        file=f"run-{name}.gguf", type=name, sha256="0" * 64, size_bytes=size, passed=passed, seconds=1, task=task,
        hashes={f"run-{name}.gguf": "0" * 64}, bits_per_weight=16.0 if name == "f16" else 8.5,
        checks=[at_most("mean KL", kl, 1.0, "why")], tokens_per_second={"prefill": 300.0, "decode": 2.0 if name == "f16" else 3.0},
    )  # fmt: skip


BIG, SMALL = result("f16", 200, 1e-6), result("q4_0", 50, 0.04)


def test_the_smallest_file_that_is_not_shown_to_be_worse_is_recommended() -> None:
    assert recommend([BIG, SMALL])[0] == "run-q4_0.gguf"
    assert recommend([BIG, result("q4_0", 50, RECOMMENDED_KL * 1.01)])[0] == "run-f16.gguf"
    assert recommend([BIG, result("q4_0", 50, 0.04, ends=(-0.2, -0.01))])[0] == "run-f16.gguf"
    assert recommend([BIG, result("q4_0", 50, 0.04, passed=False)])[0] == "run-f16.gguf"
    assert recommend([BIG, result("q4_0", 50, 0.04, ends=None)])[0] == "run-q4_0.gguf", "without golds the KL decides"


def test_where_none_keeps_to_the_rule_the_nearest_is_recommended_and_where_none_passed_none() -> None:
    name, why = recommend([result("q4_0", 50, 0.3), result("q3_k_s", 40, 0.2)])
    assert name == "run-q3_k_s.gguf" and "nearest" in why and "none is" in why
    assert recommend([result("q4_0", 50, 0.01, passed=False)]) == (None, "no GGUF file passed")
    assert recommend([])[0] is None


def record(*files: FileResult, **changes: Any) -> VerifyRecord:
    merged = FileResult(
        file="merged", type="merged", sha256=None, hashes={"model.safetensors": "1" * 64}, size_bytes=400, passed=True,
        checks=[equal("opens", [], [], "it does")], task={"n": 64, "strict": 31}, seconds=1,
    )  # fmt: skip
    values: dict[str, Any] = {
        "run": "run", "passed": True, "files": list(files), "merged": merged, "adapter": {"adapter_config.json": "2" * 64},
        "reference": {"texts": 16, "tokens": 490, "problems": 64}, "versions": {"toolkit": "1"}, "seconds": 1.0,
    }  # fmt: skip
    return VerifyRecord.model_validate(values | changes)


def test_speeds_are_told_as_multiples_of_the_widest_files() -> None:
    cells = [dict(zip(COLUMNS, row, strict=True)) for row in rows(record(BIG, SMALL, recommended="run-q4_0.gguf"))]
    assert [row["speed"] for row in cells] == ["–", "1.00×", "1.50×"]
    assert [row["file"] for row in cells] == ["merged", "…-f16.gguf", "…-q4_0.gguf"]
    assert cells[2]["verdict"] == "passed, recommended" and cells[1]["difference, points"] == "+0.0 (-10.0 to +10.0)"


def test_a_task_without_golds_has_no_right_answers_in_the_table() -> None:
    cells = dict(zip(COLUMNS, rows(record(result("f16", 1, 0.0, ends=None)))[1], strict=True))
    assert cells["right"] == cells["difference, points"] == "–"


def test_the_certificate_names_every_file_every_check_and_every_hash() -> None:
    text = certificate(record(BIG, SMALL, recommended="run-q4_0.gguf", recommendation="the smallest"))
    for digest, name in (
        ("0", "run-f16.gguf"),
        ("1", "merged/model.safetensors"),
        ("2", "adapter/adapter_config.json"),
    ):
        assert f"{digest * 64}  {name}\n" in text
    assert "| mean KL | 0.04 | 1.0 | passed | why |" in text
    assert "Recommended: **run-q4_0.gguf**, the smallest." in text


def test_no_text_of_a_model_breaks_the_certificates_tables() -> None:
    check = Check(name="chats | rendered", value=["a\n| b <script>\x1b[31m"], limit=[], passed=False, why="x\ny")
    text = certificate(record(BIG.model_copy(update={"checks": [check], "passed": False}), passed=False))
    (line,) = [line for line in text.splitlines() if "rendered" in line]
    assert line.count("|") - line.count("\\|") == 6 and "FAILED" in line
    assert "\x1b" not in text and "NOT every file passed" in text


def test_a_lossy_base_is_said_at_the_top() -> None:
    assert "computed back from a 4-bit copy" in certificate(record(BIG, lossy_base=True))
    assert "4-bit" not in certificate(record(BIG))


def shares(value: float, moved: float, *, whole: bool = False, wide: bool = False, unlike: tuple[str, ...] = ()) -> Any:
    """What is said of an export whose predictions and weights went so much of the way."""
    recipe = SimpleNamespace(model=SimpleNamespace(full_finetuning=whole), export=SimpleNamespace(is_wide=wide))
    material: Any = SimpleNamespace(recipe=recipe, merge=Merge(list(unlike), 9, value))
    return _shares(material, value, moved)


def test_a_training_that_16_bits_cannot_hold_fails_with_the_way_out() -> None:
    lost, _ = shares(0.3, 10 * JUDGED_KL)
    assert not lost.passed and all(
        key in lost.why for key in ("grpo.max_steps", "grpo.learning_rate", "export.merged_dtype")
    )
    kept, _ = shares(0.7, 10 * JUDGED_KL)
    assert kept.passed and "rounded away" not in kept.why
    wrong, _ = shares(0.7, 10 * JUDGED_KL, unlike=("model.norm.weight",))
    assert not wrong.passed and "rounded away" not in wrong.why
    assert all(check.passed for check in shares(0.3, JUDGED_KL / 2)), "nothing can be said"


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("moved", [JUDGED_KL / 2, 10 * JUDGED_KL])
def test_where_predictions_cannot_tell_the_weights_of_a_whole_model_decide(
    whole: bool, wide: bool, moved: float
) -> None:
    """An adapter lies beside its merged folder as it was trained; of a whole model the export holds nothing else."""
    seen, weights = shares(0.1, moved, whole=whole, wide=wide)
    assert seen.passed is (moved < JUDGED_KL) and weights.passed is not (whole and moved < JUDGED_KL)
    why = " ".join(check.why for check in (seen, weights) if not check.passed)
    assert ("export.merged_dtype=float32" in why) is (bool(why) and not wide)
    assert ("from adapter/" in why) is (bool(why) and not wide and not whole)
