"""The tasks: rows with golds that can be graded, splits that never meet, errors that name the line."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from effects import TASK_BASES
from toolkit.answers import is_well_formed, read_number
from toolkit.errors import DataError
from toolkit.tasks import GSM8K, TASKS, ReasoningGym, Row, Task, accepts
from toolkit.tasks.catalogue import PARAMETERS
from toolkit.tasks.gsm8k import FOLDER_VARIABLE, split_answer
from toolkit.tasks.problems import steps

FIXTURE = Path(__file__).parent / "data" / "gsm8k"
REAL = os.environ.get(FOLDER_VARIABLE)
SMALL = {"min_terms": 2, "max_terms": 3, "min_digits": 1, "max_digits": 2}


def fixture_task(**knobs: Any) -> GSM8K:
    return GSM8K(train_file=str(FIXTURE / "train.jsonl"), heldout_file=str(FIXTURE / "test.jsonl"), **knobs)


def sums(**knobs: Any) -> ReasoningGym:
    return ReasoningGym(**{"dataset": "chain_sum", "parameters": SMALL, "train_rows": 50, "heldout_rows": 20, **knobs})


def test_gsm8k_reads_golds_and_solutions() -> None:
    task = fixture_task()
    assert [row.gold for row in task.rows("train")] == ["1248", "12", "-7", "54"]
    assert [row.gold for row in task.rows("heldout")] == ["210", "24"]  # the last #### counts
    row = task.rows("train")[0]
    assert row.solution == "It bakes 48*26 = 1,248 rolls."
    assert "’" in task.rows("heldout")[1].question
    assert len(fixture_task(max_train=2).rows("train")) == 2


def test_a_row_without_reasoning_has_no_worked_solution(tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    file.write_text('{"question": "q", "answer": "#### 7"}')
    task = GSM8K(train_file=str(file))
    (row,) = task.rows("train")
    assert row.gold == "7" and task.worked(row) is None


def test_annotations_never_reach_a_gold_or_a_solution() -> None:
    assert split_answer("48/2 = <<48/2=24>>24\n#### <<48/2=24>>24") == ("48/2 = 24", "24")
    assert split_answer("no mark") == ("", None)
    assert split_answer("a #### 1 #### ") == ("a #### 1", None)


def test_messages_carry_the_format_and_the_question() -> None:
    task = fixture_task()
    row = task.rows("train")[0]
    system, user = task.messages(row)
    assert system["role"] == "system" and "<reasoning>" in system["content"] and "</answer>" in system["content"]
    assert user == {"role": "user", "content": row.question}
    assert fixture_task(system_prompt="").messages(row) == [user]


@pytest.mark.parametrize("task", [fixture_task(), sums()], ids=["gsm8k", "reasoning_gym"])
def test_the_worked_completion_is_perfect(task: GSM8K | ReasoningGym) -> None:
    for row in task.rows("train"):
        text = task.worked(row)
        assert text is not None and is_well_formed(text)
        grade = task.grade(text, row)
        assert grade.strict and grade.lenient and grade.well_formed


def test_grades_strict_and_lenient_side_by_side() -> None:
    task, row = fixture_task(), Row("x", "?", "72")
    cases = {
        "<reasoning>\na\n</reasoning>\n<answer>\n72\n</answer>": (True, True, True),
        "<reasoning>\na\n</reasoning>\n<answer>\n72\n</answer>\nIn 2024 too.": (True, True, False),
        "<reasoning>\na\n</reasoning>\n<answer>\n60\n</answer>\nOr 72.": (False, False, False),
        "<reasoning>\na\n</reasoning>\n<answer>\n36 or 72\n</answer>": (False, True, True),
        "The answer is 72.": (False, True, False),
        "#### 72": (False, True, False),
        "72 of 100": (False, False, False),
        "": (False, False, False),
    }
    found = {text: dataclasses.astuple(task.grade(text, row)) for text in cases}
    assert found == cases


def test_unreadable_golds_are_rejected_with_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    answers = ["#### 5", "no mark", "#### five", "#### ", "#### 3,5", "#### 7"]
    file.write_text("\n".join(json.dumps({"question": "?", "answer": answer}) for answer in answers))
    with pytest.raises(DataError) as error:
        GSM8K(train_file=str(file)).rows("train")
    assert error.value.where == str(file)
    assert "4 of 6 rows" in error.value.message
    assert all(f"line {line}:" in error.value.message for line in (2, 3, 4, 5))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"question": "a", "answer": "#### 1"}\n{"question": 5}', r"found: question \(int\)"),
        (
            b'{"question": "a", "answer": "#### 1"}\n{"question": " ", "answer": "#### 1"}',
            r"question \(empty\), answer \(str\)",
        ),
        (b'{"question": "a", "answer": "#### 1"}\n{"question": "b", "answer": 72}', r"answer \(int\)"),
        (b'{"question": "a", "answer": "#### 1"}\n{oops}', "not JSON"),
        (b'{"question": "a", "answer": "#### 1"}\n{"question": "\xff"}', "not UTF-8"),
        (b'{"question": "a", "answer": "#### 1"}\n[1]', "a JSON list"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "train.jsonl"
    file.write_bytes(content)
    with pytest.raises(DataError, match=message) as error:
        GSM8K(train_file=str(file)).rows("train")
    assert error.value.where == f"{file}:2"


def test_a_missing_or_empty_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    for name, message in (("none.jsonl", "cannot be read"), ("empty.jsonl", "no rows")):
        with pytest.raises(DataError, match=message) as error:
            GSM8K(heldout_file=str(tmp_path / name)).rows("heldout")
        assert name in str(error.value.where)


def test_the_folder_variable_stands_in_for_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(FIXTURE))
    assert GSM8K().fingerprint("train") == fixture_task().fingerprint("train")
    assert GSM8K().rows("heldout") == fixture_task().rows("heldout")


def test_a_byte_order_mark_is_no_part_of_a_row(tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + (FIXTURE / "train.jsonl").read_bytes())
    assert GSM8K(train_file=str(file)).rows("train") == fixture_task().rows("train")


@pytest.mark.skipif(not REAL, reason=f"{FOLDER_VARIABLE} is not set")
@pytest.mark.parametrize(("split", "count"), [("train", 7473), ("heldout", 1319)])
def test_every_real_gold_accepts_itself_and_refuses_its_neighbour(split: Any, count: int) -> None:
    rows = GSM8K().rows(split)
    assert len(rows) == count
    for row in rows:
        value = read_number(row.gold)
        assert value is not None and accepts(row, row.gold) and accepts(row, f"${int(value):,}.")
        assert not accepts(row, str(value + 1))
        assert "<<" not in row.gold + str(row.solution)


def test_a_sum_is_worked_from_left_to_right() -> None:
    assert steps("47 + 38 - 12") == "47 + 38 = 85\n85 - 12 = 73"
    assert steps("-1 - -6 - 6") == "-1 - -6 = 5\n5 - 6 = -1"
    assert steps("5") == "5 = 5"


def test_chain_sum_rows_carry_question_solution_and_level() -> None:
    for row in sums().rows("heldout"):
        assert row.question.startswith("State the final answer") and row.question.endswith("=")
        assert row.solution is not None and row.solution.endswith(f"= {row.gold}")
        assert row.level is not None and row.level.endswith("digits")


def test_training_and_held_out_problems_never_meet() -> None:
    parameters = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    task = sums(parameters=parameters, train_rows=200, heldout_rows=60)
    held = {row.question for row in task.rows("heldout")}
    train = task.rows("train")
    assert len(train) == 200 and held.isdisjoint(row.question for row in train)
    assert task.overlap_removed > 0
    assert len({row.id for row in train}) == 200
    assert sums(parameters=parameters, train_rows=200, heldout_rows=60).fingerprint("train") == task.fingerprint(
        "train"
    )


def test_too_small_a_problem_space_is_an_error() -> None:
    parameters = {"min_terms": 1, "max_terms": 1, "min_digits": 1, "max_digits": 1}
    with pytest.raises(DataError, match="only 0 of 50"):
        sums(parameters=parameters, heldout_rows=300).rows("train")


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"dataset": "chain_sums"}, "did you mean chain_sum?"),
        ({"parameters": {"min_term": 2}}, "did you mean min_terms?"),
        ({"parameters": {"seed": 2}}, "use train_seed, heldout_seed"),
        ({"parameters": {"size": 2}}, "use train_rows, heldout_rows"),
        ({"train_seed": 0, "heldout_seed": 0}, "train_seed: 20 would do"),
        ({"train_seed": 10, "heldout_seed": 0}, "overlap"),
        ({"train_seed": 0, "heldout_seed": 49}, "overlap"),
    ],
)
def test_a_wrong_name_or_seed_is_refused_when_the_recipe_is_read(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message.replace("?", r"\?")):
        sums(**knobs)


def test_neighbouring_seeds_are_allowed_where_they_do_not_overlap() -> None:
    assert sums(train_seed=20, heldout_seed=0).rows("train")
    assert sums(train_seed=0, heldout_seed=50).rows("train")


def test_the_librarys_refusal_is_an_error_with_its_reason() -> None:
    with pytest.raises(DataError, match="max_terms must be >= min_terms"):
        sums(parameters={"min_terms": 9}).rows("train")


def test_the_catalogue_is_that_of_the_installed_library() -> None:
    pytest.importorskip("reasoning_gym")
    from reasoning_gym.factory import DATASETS

    installed = {
        name: tuple(field.name for field in dataclasses.fields(config) if field.name not in ("seed", "size"))
        for name, (_, config) in DATASETS.items()
    }
    assert dict(sorted(installed.items())) == PARAMETERS


@pytest.mark.parametrize("dataset", ["countdown", "caesar_cipher", "fraction_simplification", "power_function", "gcd"])
def test_golds_of_other_tasks_accept_themselves_and_travel(dataset: str) -> None:
    task = ReasoningGym(dataset=dataset, train_rows=3, heldout_rows=3)
    for row in pickle.loads(pickle.dumps(task.rows("heldout"))):
        assert accepts(row, f"\n{row.gold}\n")
        assert not any(accepts(row, wrong) for wrong in ("x", "", None))


def test_answers_that_the_library_would_evaluate_are_kept_from_it(tmp_path: Path) -> None:
    sums_to, matrix = (
        ReasoningGym(dataset=dataset, train_rows=1, heldout_rows=1).rows("heldout")[0]
        for dataset in ("countdown", "binary_matrix")
    )
    marker = tmp_path / "called"
    hostile = f"open({str(marker)!r}, 'w')"
    for text in (
        hostile,
        f"[{hostile}]",
        "9**9**9**9",
        "9**99999",
        "factorial(99999)",
        "(" * 5000,
        "\x00",
        "99999!",
    ):
        for row in (sums_to, matrix):
            assert not accepts(row, text)
    assert not marker.exists()


def test_integrals_are_judged_by_meaning() -> None:
    task = ReasoningGym(dataset="simple_integration", train_rows=1, heldout_rows=5)
    for row in task.rows("heldout"):
        assert accepts(row, row.gold) and accepts(row, f"{row.gold} + sin(0)") and not accepts(row, "x**17 + C")


def test_a_mix_of_tasks_is_a_task() -> None:
    parts = [{"name": "chain_sum", "weight": 1.0}, {"name": "gcd", "weight": 1.0, "config": {}}]
    task = ReasoningGym(dataset="composite", parameters={"datasets": parts}, train_rows=8, heldout_rows=8)
    assert all(accepts(row, row.gold) for row in task.rows("train"))


@pytest.mark.parametrize("name", TASKS)
def test_a_task_is_chosen_by_its_name_and_pickles(name: str) -> None:
    given = TASK_BASES[name]
    task = TypeAdapter(Task).validate_python(given)
    assert type(task) is TASKS[name] and pickle.loads(pickle.dumps(task)) == task
    with pytest.raises(ValidationError):
        TypeAdapter(Task).validate_python(given | {"max_trian": 5})


def test_importing_tasks_and_rewards_loads_no_heavy_library() -> None:
    code = (
        "import sys, toolkit.tasks, toolkit.rewards.lint, toolkit.rewards.scoring; "
        "print(sorted({'torch', 'transformers', 'datasets', 'reasoning_gym', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_the_fingerprint_sees_every_field() -> None:
    rows = fixture_task().rows("train")
    from toolkit.tasks import fingerprint

    changed = [dataclasses.replace(rows[0], gold=str(Fraction(rows[0].gold) + 1)), *rows[1:]]
    assert len({fingerprint(rows), fingerprint(changed), fingerprint(rows[::-1]), fingerprint(rows[1:])}) == 4
