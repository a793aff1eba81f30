"""The probe: what it forecasts follows from what it saw, and what it saw came the way of training."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from models import child_environment, small_recipe
from toolkit.cli import main
from toolkit.engine.rollout import has_spread
from toolkit.estimate.pace import Range
from toolkit.probe import show, with_spread
from toolkit.probe.forecast import BUCKETS, Measured, forecast, histogram, memory, run_seconds, share_range
from toolkit.tasks.base import Row

pytest_plugins = ("shared",)

MEASURED = Measured(
    sampling_s=2.0, sampled_tokens=84, step_s=10.0, warmup_step_s=3.0, loaded_gib=2.0, peak_gib=5.0, step_tokens=54
)  # fmt: skip


def entries(*right: float, tokens: int = 6) -> list[dict[str, Any]]:
    """Groups of four, each with this share of right answers."""
    return [
        {
            "row_id": f"row{row}", "completion": f"{row} {number}", "tokens": tokens + row, "cut_off": False, "dead": share in (0, 1),
            "right": number < 4 * share, "well_formed": True, "reward/correctness": 2.0 * (number < 4 * share),
        }
        for row, share in enumerate(right)
        for number in range(4)
    ]  # fmt: skip


# Arithmetic -------------------------------------------------------------------------------------------


def test_prompts_are_counted_by_their_share_of_right_answers() -> None:
    groups = [entries(share) for share in (0, 0, 0.25, 0.5, 0.75, 1)]
    assert histogram(groups) == dict(zip(BUCKETS, (2, 1, 1, 1, 0, 1), strict=True))


def test_a_share_has_wilsons_interval() -> None:
    found = share_range(0, 10)
    assert (found.likely, found.low) == (0, 0) and found.high == pytest.approx(0.2775, abs=1e-4)


def test_the_forecast_follows_from_the_completions() -> None:
    recipe = small_recipe("org/model", eval={"rows": 300, "samples": 4})
    found = forecast("mine", recipe, entries(0, 0.5, 1), MEASURED, heldout=4)
    assert (found.prompts, found.accuracy, found.format_rate) == (3, 0.5, 1.0)
    assert found.dead_groups.likely == pytest.approx(2 / 3)
    assert found.completion_length.likely == 7 and found.completion_length.low < 7 < found.completion_length.high
    assert found.tokens_per_second == 84 / 2
    assert found.rewards["correctness"].spread == pytest.approx(1)
    # 2 warm-up steps, 2 GRPO steps, 4 rows * (4 samples + greedy) * 3 models at 2 s for 12 answers
    assert found.run_s.likely == 2 * 3 + 2 * 10 + 60 * 2 / 12
    # GRPO twice as quick, the evaluation in batches of 32; at most, 12 tokens for all instead of 7 on average
    assert found.run_s.low == pytest.approx(2 * 3 + 10 + 60 * 2 / 32)
    assert found.run_s.high == pytest.approx(2 * 3 + (20 + 10) * 12 / 7)


def test_time_is_at_most_that_of_the_longest_completions_drawn_again() -> None:
    recipe = small_recipe("org/model", grpo={"resample_rounds": 1}, warmup=None)
    found = run_seconds(recipe, MEASURED, 6.0, Range(0.0, 0.0, 0.0))
    assert (found.low, found.likely, found.high) == (10, 20, 2 * 10 * 2 * 2)


def test_memory_grows_with_the_longest_prompt_and_completion() -> None:
    found = memory(small_recipe("org/model"), MEASURED)
    assert (found.likely, found.high) == (5.0, 2.0 + 2 * 3.0)  # 96 + 12 tokens are twice 54


def test_without_golds_the_spread_of_rewards_is_shown_instead(capsys: pytest.CaptureFixture[str]) -> None:
    task = {"name": "prompts", "prompts": ["a", "b", "c"], "heldout_rows": 1}
    recipe = small_recipe("org/model", warmup=None).model_copy(update={"task": _task(task)})
    found = forecast("mine", recipe, [entry | {"right": None} for entry in entries(0, 0.5)], MEASURED, heldout=1)
    assert found.pass_rates is None and found.accuracy is None
    show(found)
    shown = capsys.readouterr().out
    assert "right" not in shown and "spread where it differs" in shown and "base model" in shown


def _task(values: dict[str, Any]) -> Any:
    from pydantic import TypeAdapter

    from toolkit.tasks import Task

    return TypeAdapter(Task).validate_python(values)


@pytest.mark.parametrize(("other_work", "warned"), [(0.1, False), (4.0, True)])
def test_a_busy_machine_is_said_to_be_one(other_work: float, warned: bool, capsys: pytest.CaptureFixture[str]) -> None:
    measured = replace(MEASURED, other_work=other_work)
    show(forecast("mine", small_recipe("org/model"), entries(0, 0.5), measured, heldout=4))
    assert ("others use this machine" in capsys.readouterr().err) is warned


def test_after_a_warm_up_the_forecast_is_said_to_be_the_bases(capsys: pytest.CaptureFixture[str]) -> None:
    show(forecast("mine", small_recipe("org/model"), entries(0, 0.5), MEASURED, heldout=4))
    shown = capsys.readouterr().out
    assert "warm-up" in shown and "prompts by right answers" in shown and "groups without spread" in shown


def test_the_step_that_is_measured_has_groups_to_learn_from() -> None:
    recipe = with_spread(small_recipe("org/model"))
    row = Row("1", "1 + 1?", "2")
    totals = [sum(reward.weight * (reward.score(text, row) or 0) for reward in recipe.rewards) for text in ("a", "bcd")]
    assert has_spread(totals) and abs(totals[0] - totals[1]) < 0.01
    assert with_spread(recipe) is recipe


def test_a_probe_of_no_prompts_is_the_users_error() -> None:
    assert main(["check", "smoke", "--probe", "0"]) == 2


# The real way -----------------------------------------------------------------------------------------

_TWICE = """
import sys
from toolkit.cli import main
for name in ("graded.yaml", "goldless.yaml"):
    main(["check", name, "--probe", "3", "--json"])
    print("=" * 9, flush=True)
"""


@pytest.fixture(scope="module")
def probed(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What `toolkit check --probe` prints of a tiny model, for a task with golds and for one without."""
    folder = tmp_path_factory.mktemp("probe")
    graded = small_recipe(str(tiny_checkpoint)).model_dump(mode="json")
    goldless = graded | {
        "task": {"name": "prompts", "prompts": [f"Say {word}." for word in "abcdef"], "heldout_rows": 2},
        "rewards": [{"name": "length", "ideal": 8, "unit": "tokens", "form": "distance"}],
        "warmup": None,
    }
    for name, recipe in (("graded", graded), ("goldless", goldless)):
        (folder / f"{name}.yaml").write_text(json.dumps(recipe), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", _TWICE], capture_output=True, text=True, env=child_environment(), cwd=folder, timeout=300
    )
    assert not list(folder.glob("runs*")), "a probe keeps nothing"
    parts = done.stdout.split("=" * 9)
    assert len(parts) == 3, done.stderr[-3000:]
    return [json.loads(part) for part in parts[:2]]


def test_a_real_probe_forecasts_everything(probed: list[dict[str, Any]]) -> None:
    found = probed[0]["forecast"]
    assert found["prompts"] == 3 and found["group_size"] == 4 and sum(found["pass_rates"].values()) == 3
    assert 0 < found["completion_length"]["likely"] <= 12 and found["tokens_per_second"] > 0
    assert 0 <= found["dead_groups"]["low"] <= found["dead_groups"]["likely"] <= found["dead_groups"]["high"] <= 1
    assert found["step_s"] > 0 and 0 < found["run_s"]["low"] <= found["run_s"]["likely"] <= found["run_s"]["high"]
    assert 0 < found["memory_gib"]["likely"] <= found["memory_gib"]["high"] < 8
    assert set(found["rewards"]) == {"correctness", "xmlcount"} and found["has_warmup"]


def test_a_real_probe_without_golds_shows_rewards(probed: list[dict[str, Any]]) -> None:
    found = probed[1]["forecast"]
    assert found["pass_rates"] is None and found["accuracy"] is None and not found["has_warmup"]
    paid = found["rewards"]["length"]
    assert paid["lowest"] <= paid["mean"] <= paid["highest"] <= 0


def test_the_check_itself_is_as_without_a_probe(probed: list[dict[str, Any]]) -> None:
    assert probed[0]["passed"] and {finding["part"] for finding in probed[0]["findings"]} >= {"data", "rewards", "plan"}
