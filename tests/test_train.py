"""A run's records say what happened, and an interrupted run goes on as if it had never been interrupted."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from models import small_recipe
from run_files import lines, steps
from toolkit.engine.rollout import ROW_COLUMN, RewardRecorder, without_gaps
from toolkit.errors import DataError, EngineError
from toolkit.rewards import RewardBase
from toolkit.rundir import RunDir
from toolkit.tasks.base import Row
from toolkit.train import _say_notices
from toolkit.train.display import LOSS_NOTE, Display
from toolkit.train.record import Recorder, last_checkpoint, read_state, write_state
from toolkit.train.rows import short_enough, worked_examples
from toolkit.train.signals import stop_on_signals

LOGS: dict[str, Any] = {
    "loss": 0.0, "reward": 99.0, "frac_reward_zero_std": 0.99, "entropy": 0.3, "kl": float("nan"),
    "clip_ratio/region_mean": float("inf"), "grad_norm": 0.1, "learning_rate": 1e-5, "rewards/correctness/mean": 99.0,
}  # fmt: skip
"""As TRL logs them; what completions earned is not taken from here."""


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    folder = RunDir(tmp_path / "run")
    folder.path.mkdir()
    return folder


def entry(row: str, correct: float | None, total: float | None, **changes: Any) -> dict[str, Any]:
    base = {
        "row_id": row, "prompt": "?", "gold": "1", "completion": "text", "tokens": 3, "cut_off": False, "used": True,
        "reward": total, "reward/correctness": correct, "reward/judge": None,
    }  # fmt: skip
    return base | changes


def completions_table() -> list[dict[str, Any]]:
    """Two groups with spread and two without."""
    pairs = {
        "a": ((1.0, 2.0), (0.0, 1.0)),
        "b": ((0.0, 0.0),) * 2,
        "c": ((1.0, 1.0),) * 2,
        "d": ((0.5, 3.0), (0.5, 0.0)),
    }
    return [
        entry(row, *said, tokens=3 + at, cut_off=bool(at))
        for row, both in pairs.items()
        for at, said in enumerate(both)
    ]


def recorded(run: RunDir, *, warmup: int = 2, grpo: int = 3) -> None:
    first = Recorder(run, "warmup")
    first.rewind(None)
    for step in range(1, warmup + 1):
        first.warmup_step(step, {"loss": 1.0 / step})
    second = Recorder(run, "grpo")
    second.rewind(None)
    for step in range(1, grpo + 1):
        second.grpo_step(step, LOGS, completions_table())


def checkpoint(run: RunDir, step: int, *, whole: bool = True) -> Path:
    path = run.checkpoints / f"checkpoint-{step}"
    path.mkdir(parents=True)
    (path / "adapter_model.safetensors").touch()
    if whole:
        (path / "trainer_state.json").write_text("{}")
    return path


def completion_files(run: RunDir) -> list[str]:
    return sorted(path.name for path in run.completions.iterdir())


def test_a_step_becomes_one_line_and_one_file(run: RunDir) -> None:
    from pyarrow import parquet

    recorded(run)
    assert steps(run) == [("warmup", 1), ("warmup", 2), ("grpo", 1), ("grpo", 2), ("grpo", 3)]
    line = lines(run)[2]
    assert (line["reward"], line["dead_groups"], line["cut_off"], line["completion_length"]) == (1.0, 0.5, 0.5, 3.5)
    assert line["reward_std"] == pytest.approx(1.0690, abs=1e-4)  # of all completions, as TRL defines it
    assert line["rewards"]["correctness"] == 0.5 and line["completion_tokens"] == 28
    assert (line["entropy"], line["grad_norm"], line["learning_rate"]) == (0.3, 0.1, 1e-5)
    assert line["seconds"] >= 0 and line["tokens_per_second"] > 0
    assert completion_files(run) == ["000001.parquet", "000002.parquet", "000003.parquet"]
    (first, *rest) = parquet.read_table(run.completions / "000002.parquet").to_pylist()
    assert first == {"step": 2} | completions_table()[0] and len(rest) == 7


def test_what_was_drawn_and_not_used_is_counted_as_cost_and_nowhere_else(run: RunDir) -> None:
    recorder = Recorder(run, "grpo")
    recorder.rewind(None)
    unused = [entry(row, 9.0, 9.0, used=False, tokens=100) for row in ("e", "e", "f", "f")]
    with_them = recorder.grpo_step(1, LOGS, completions_table() + unused)
    without = recorder.grpo_step(2, LOGS, completions_table())
    for name in ("reward", "reward_std", "dead_groups", "rewards", "completion_length", "cut_off"):
        assert with_them[name] == without[name]
    cost = ("resampled_groups", "resampled_completions", "resampled_tokens", "completion_tokens")
    assert [with_them[name] for name in cost] == [2, 4, 400, 428]
    assert [without[name] for name in cost] == [0, 0, 0, 28]


def test_what_is_no_number_never_reaches_json(run: RunDir) -> None:
    recorded(run, grpo=1)
    assert "NaN" not in run.metrics.read_text() and "Infinity" not in run.metrics.read_text()
    line = lines(run)[-1]
    assert line["kl"] is None and line["clip_ratio"] is None


def test_a_step_on_old_completions_earns_nothing_new(run: RunDir) -> None:
    recorder = Recorder(run, "grpo")
    recorder.rewind(None)
    shown = recorder.grpo_step(1, {"loss": 0.0}, [])
    assert shown["entropy"] is None and shown["reward"] is None and shown["dead_groups"] is None


def test_a_reward_that_abstains_is_null_and_a_number_in_the_table(run: RunDir) -> None:
    """Not Arrow's null type, which cannot be read together with the other steps' numbers."""
    import pyarrow
    from pyarrow import dataset, parquet

    recorder = Recorder(run, "grpo")
    recorder.rewind(None)
    recorder.grpo_step(1, LOGS, [entry("a", 1.0, 1.0)])
    recorder.grpo_step(2, LOGS, [entry("a", None, None)])
    assert parquet.read_schema(run.completions / "000002.parquet").field("reward").type == pyarrow.float64()
    read = dataset.dataset(run.completions).to_table().sort_by("step")
    assert read["reward/correctness"].to_pylist() == [1.0, None] and read["reward/judge"].type == pyarrow.float64()


def test_the_share_of_what_a_reward_could_not_judge_is_recorded_where_there_is_any(run: RunDir) -> None:
    recorder = Recorder(run, "grpo")
    recorder.rewind(None)
    half = recorder.grpo_step(1, LOGS, [entry("a", 1.0, 1.0), entry("a", None, 1.0)])
    assert half["abstained"] == {"correctness": 0.5, "judge": 1.0}
    assert half["rewards"] == {"correctness": 1.0, "judge": None}
    judged = [entry("a", 1.0, 1.0, **{"reward/judge": 0.0})]
    assert "abstained" not in recorder.grpo_step(2, LOGS, judged)


@pytest.mark.parametrize(("said", "judged", "spread"), [((1.0, 0.0), 1, 1), ((1.0, 1.0), 1, 0), ((None, None), 0, 0)])
def test_the_record_knows_whether_anything_was_judged_and_differed(
    said: tuple[float | None, ...], judged: int, spread: int, run: RunDir
) -> None:
    recorder = Recorder(run, "grpo")
    recorder.rewind(None)
    recorder.grpo_step(1, LOGS, [entry("a", value, value) for value in said])
    recorder.grpo_step(2, LOGS, [])
    assert (recorder.was_judged(), recorder.saw_spread()) == (bool(judged), bool(spread))


def test_rewinding_forgets_what_came_after_the_checkpoint(run: RunDir) -> None:
    recorded(run, grpo=4)
    Recorder(run, "grpo").rewind(checkpoint(run, 2))
    assert steps(run) == [("warmup", 1), ("warmup", 2), ("grpo", 1), ("grpo", 2)]
    assert completion_files(run) == ["000001.parquet", "000002.parquet"]
    assert run.checkpoints.is_dir()


def test_rewinding_to_the_start_keeps_the_warm_up_and_drops_half_checkpoints(run: RunDir) -> None:
    recorded(run)
    checkpoint(run, 2, whole=False)
    assert last_checkpoint(run) is None
    Recorder(run, "grpo").rewind(None)
    assert steps(run) == [("warmup", 1), ("warmup", 2)]
    assert completion_files(run) == [] and not run.checkpoints.exists()


def test_a_warm_up_that_starts_again_forgets_its_first_try(run: RunDir) -> None:
    recorded(run, warmup=2, grpo=0)
    Recorder(run, "warmup").rewind(None)
    assert lines(run) == []


def test_a_half_written_line_is_dropped(run: RunDir) -> None:
    recorded(run)
    with run.metrics.open("a") as file:
        file.write('{"stage": "grpo", "step": 4, "rew')
    Recorder(run, "grpo").rewind(checkpoint(run, 3))
    assert steps(run)[-1] == ("grpo", 3)
    assert run.metrics.read_text().endswith("}\n")


def test_the_last_checkpoint_is_the_newest_whole_one(run: RunDir) -> None:
    assert last_checkpoint(run) is None
    for step in (2, 10, 9):
        checkpoint(run, step)
    checkpoint(run, 12, whole=False)
    assert last_checkpoint(run) == run.checkpoints / "checkpoint-10"


def test_the_state_names_its_schema_and_time(run: RunDir) -> None:
    write_state(run, "running")
    state = read_state(run)
    assert (state["state"], state["schema"]) == ("running", 1) and state["time"][:2] == "20"


def test_the_first_signal_asks_and_the_second_stops() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), stop_on_signals() as request:
        assert not request.asked
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0)
        assert request.asked
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def rows(*lengths: int, solution: str | None = "1 = 1") -> list[Row]:
    return [Row(str(at), "x" * length, "1", solution) for at, length in enumerate(lengths)]


POLICY: Any = SimpleNamespace(prompt_ids=lambda messages: list(messages[-1]["content"]))


def test_rows_with_long_prompts_are_left_out_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = small_recipe("org/model")
    kept = short_enough(POLICY, recipe, rows(10, 96, 97, 200))
    assert [len(row.question) for row in kept] == [10, 96]
    assert "2 of 4 rows have prompts over 96 tokens" in capsys.readouterr().err
    assert len(short_enough(POLICY, recipe, rows(1, 2))) == 2
    assert capsys.readouterr().err == ""


def test_too_few_rows_for_a_step_is_an_error_with_the_way_out() -> None:
    with pytest.raises(DataError, match="one step needs 2 rows, and there are 1") as caught:
        short_enough(POLICY, small_recipe("org/model"), rows(10, 200, 200))
    assert "grpo.max_prompt_length" in str(caught.value.hint)


def test_what_was_done_to_the_rows_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    said = {"train": ["a [b] was renamed"], "heldout": ["a [b] was renamed", "2 left out"]}
    _say_notices(cast(Any, SimpleNamespace(task=SimpleNamespace(notices=said.get))))
    assert capsys.readouterr().err.splitlines() == ["a [b] was renamed", "2 left out"]


def test_a_warm_up_without_worked_solutions_is_an_error_with_the_way_out() -> None:
    recipe = small_recipe("org/model")
    some = rows(1, 1, 1, 1, 1)
    assert [chat for chat, _ in worked_examples(recipe, some)] == [recipe.task.messages(row) for row in some[:4]]
    with pytest.raises(DataError, match="the task has 0") as caught:
        worked_examples(recipe, rows(1, 1, 1, solution=None))
    assert "warmup" in str(caught.value.hint)


def test_without_a_terminal_each_step_is_one_plain_line(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = small_recipe("org/model")
    step = {
        "reward": 1.25, "reward_std": 0.5, "dead_groups": 0.5, "completion_length": 11.6, "cut_off": 0.25, "seconds": 2.0,
        "tokens_per_second": 41.7, "resampled_groups": 3, "resampled_completions": 12,
    }  # fmt: skip
    with Display(recipe) as display:
        display.warmup({"step": 2, "loss": 0.5})
        display.step(step | {"step": 1})
        display.step(step | {"step": 2, "reward": None, "reward_std": None})
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("warm-up 2/2") and shown[1] == LOSS_NOTE and len(shown) == 4
    assert shown[2].split("  ")[0] == "step 1/2" and "reward 1.25 ± 0.50" in shown[2] and "no spread 50%" in shown[2]
    assert "left 0:00:02" in shown[2] and "left 0:00:00" in shown[3]
    assert "drawn again" not in shown[2]
    with Display(small_recipe("org/model", grpo={"resample_rounds": 1})) as display:
        display.step(step | {"step": 1})
    assert "drawn again 3 (+12 completions)" in capsys.readouterr().out


def test_a_reward_that_judged_nothing_in_a_step_is_warned_of_once(capsys: pytest.CaptureFixture[str]) -> None:
    step = {
        "reward": None, "reward_std": None, "dead_groups": 1.0, "completion_length": 11.6, "cut_off": 0.25, "seconds": 2.0,
        "tokens_per_second": 41.7, "resampled_groups": 0, "resampled_completions": 0,
    }  # fmt: skip
    with Display(small_recipe("org/model")) as display:
        display.step(step | {"step": 1, "abstained": {"judge": 0.9}})
        display.step(step | {"step": 2, "abstained": {"judge": 1.0, "other": 0.1}})
        display.step(step | {"step": 3, "abstained": {"judge": 1.0}})
    assert capsys.readouterr().err.count("warning") == 1


# What TRL calls: the recipe's rewards, and the table of what they paid.


class Judge(RewardBase):
    """Pays what the text says, in figures; nothing can be said of other texts."""

    name: str = "judge"

    def score(self, text: str, row: Row) -> float | None:
        return float(text) if text else None


def paid(
    texts: list[str], *rewards: RewardBase, of: Sequence[str] | None = None
) -> tuple[list[Any], list[dict[str, Any]]]:
    recorder = RewardRecorder(rewards, {row.id: row for row in rows(3, 3)}, stop_token_ids=(7,))
    columns = {
        ROW_COLUMN: of or ["0"] * len(texts),
        "completion_ids": [[*[1] * len(text), 7] for text in texts],
        "more": 1,
    }
    values = [
        function(completions=[[{"content": text}] for text in texts], **columns) for function in recorder.functions
    ]
    return values, recorder.take() + recorder.take()


def test_every_completion_is_kept_with_what_each_reward_paid() -> None:
    values, table = paid(["1", "2.5"], Judge(weight=2.0), Judge(name="again", weight=-1.0))
    assert values == [[1.0, 2.5], [1.0, 2.5]]
    assert [entry["reward"] for entry in table] == [1.0, 2.5]
    assert table[1] == {
        "row_id": "0", "prompt": "xxx", "gold": "1", "completion": "2.5", "tokens": 4, "cut_off": False, "used": True,
        "reward/judge": 2.5, "reward/again": 2.5, "reward": 2.5,
    }  # fmt: skip


def test_rewards_see_whole_batches_with_the_number_of_tokens() -> None:
    class Counted(Judge):
        def score_batch(self, texts: Any, rows: Any, *, ids: Any = None) -> list[float | None]:
            return [float(10 * len(rows) + count) for count in map(len, ids)]

    assert paid(["a", "bcd"], Counted())[0] == [[22.0, 24.0]]


def test_a_completion_without_a_stop_token_was_cut_off() -> None:
    recorder = RewardRecorder([Judge()], {row.id: row for row in rows(3)}, stop_token_ids=(7, 8))
    answers, ids = [[{"content": "1"}]] * 3, [[1, 8], [8, 1], [7]]
    recorder.functions[0](completions=answers, completion_ids=ids, **{ROW_COLUMN: ["0"] * 3})
    assert [entry["cut_off"] for entry in recorder.take()] == [False, True, False]


def test_a_reward_that_cannot_judge_gives_no_advantage_for_or_against() -> None:
    """In TRL it would count as 0, which is the lowest there is for most rewards."""
    values, table = paid(["", "3", "1", "", ""], Judge(weight=2.0), of=["0", "0", "0", "1", "1"])
    assert values == [[2.0, 3.0, 1.0, None, None]]
    assert [entry["reward"] for entry in table] == [4.0, 6.0, 2.0, None, None]
    assert [entry["reward/judge"] for entry in table] == [None, 3.0, 1.0, None, None]


@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e-9, 123456.7])
@pytest.mark.parametrize("size", [2, 3, 7, 16])
def test_the_mean_of_equal_values_is_that_value(value: float, size: int) -> None:
    """Else what could not be judged would differ from the rest by a rounding error, and TRL would scale that up."""
    assert without_gaps([None, *[value] * size], ["group"] * (size + 1)) == [value] * (size + 1)


def test_a_total_adds_up_what_could_be_judged() -> None:
    class Half(Judge):
        name: str = "half"

        def score(self, text: str, row: Row) -> float | None:
            return None

    _, table = paid(["3", "1"], Judge(weight=2.0), Half())
    assert [entry["reward"] for entry in table] == [6.0, 2.0] and table[0]["reward/half"] is None


@pytest.mark.parametrize("text", ["nan", "inf", "-inf"])
def test_a_reward_that_is_no_number_stops_the_training_and_is_named(text: str) -> None:
    with pytest.raises(EngineError, match=f"judge gave {text} for row 0"):
        paid([text], Judge())


def test_the_functions_carry_the_rewards_names_which_trl_logs() -> None:
    recorder = RewardRecorder([Judge(), Judge(name="again")], {})
    assert [function.__name__ for function in recorder.functions] == ["judge", "again"]
