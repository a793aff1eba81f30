"""A user's own table as a task: columns by name, golds by their grading, halves that never meet, TRL's names kept free."""

from __future__ import annotations

import importlib.util
import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tables import write
from toolkit.answers import is_well_formed
from toolkit.errors import DataError, RecipeError
from toolkit.prompts import SYSTEM_PROMPT
from toolkit.recipe import load_recipe
from toolkit.tasks import TLDR, PromptList, ReasoningGym, Row, Table, accepts, folded
from toolkit.tasks.halves import overlap, repeats, set_aside
from toolkit.tasks.table_rows import TAKEN

ROWS = [{"prompt": f"What is {n} + 1?", "gold": n + 1, "solution": f"{n} + 1 = {n + 1}", "n": n} for n in range(40)]


def table(path: Path, rows: Any = ROWS, **knobs: Any) -> Table:
    return Table(train_file=str(write(path / "rows.jsonl", rows)), **knobs)


def answer(text: str) -> str:
    return f"<reasoning>\nso\n</reasoning>\n<answer>\n{text}\n</answer>"


# Columns and golds --------------------------------------------------------------------------------


def test_a_table_of_prompts_has_no_golds_and_no_system_message(tmp_path: Path) -> None:
    task = table(tmp_path)
    row = task.rows("train")[0]
    assert not task.graded and row.gold == "" and task.worked(row) is None
    assert task.messages(row) == [{"role": "user", "content": row.question}]
    grade = task.grade(answer("1"), row)
    assert (grade.strict, grade.lenient, grade.well_formed) == (False, False, True)


def test_a_gold_column_brings_the_answer_format(tmp_path: Path) -> None:
    task = table(tmp_path, gold="gold", solution="solution")
    row = next(row for row in task.rows("train") if row.question == "What is 4 + 1?")
    assert task.graded and task.messages(row)[0] == {"role": "system", "content": SYSTEM_PROMPT}
    assert row.gold == "5" and task.grade(answer("5.0"), row).strict and not task.grade(answer("6"), row).strict
    worked = task.worked(row)
    assert worked is not None and is_well_formed(worked) and task.grade(worked, row).strict
    assert table(tmp_path, gold="gold", system_prompt="").messages(row)[0]["role"] == "user"


def test_a_solution_in_the_format_stands_as_it_is(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}", "gold": n, "solution": answer(str(n))} for n in range(5)]
    task = table(tmp_path, rows, gold="gold", solution="solution")
    assert all(task.worked(row) == answer(row.gold) for row in task.rows("train"))
    free = table(tmp_path, rows, solution="solution")
    assert all(free.worked(row) == row.solution for row in free.rows("train"))


@pytest.mark.parametrize(
    ("gold", "right", "wrong"),
    [
        ("Paris", ["paris", " PARIS ", "Par\u0069s"], ["Paris.", "Rome", ""]),
        ("Zoë  Straße", ["zoe\u0308 strasse", "ZOË\nSTRASSE"], ["Zoe Strasse"]),
        ("1.50", ["1.50"], ["1.5"]),
    ],
)
def test_texts_are_compared_without_case_spacing_and_spelling_of_letters(
    tmp_path: Path, gold: str, right: list[str], wrong: list[str]
) -> None:
    rows = [{"prompt": "Which?", "gold": gold}, {"prompt": "Other?", "gold": gold}]
    (row,) = pickle.loads(pickle.dumps(table(tmp_path, rows, gold="gold", grading="text").rows("train")))
    assert row.gold == gold and accepts(row, gold)
    assert all(accepts(row, text) for text in right) and not any(accepts(row, text) for text in wrong)


def test_expressions_are_compared_by_computer_algebra(tmp_path: Path) -> None:
    rows = [{"prompt": f"Expand {n}", "gold": "x^2 - 1"} for n in "ab"]
    (row,) = pickle.loads(pickle.dumps(table(tmp_path, rows, gold="gold", grading="math").rows("train")))
    assert accepts(row, "x^2 - 1") and accepts(row, "(x-1)(x+1)") and not accepts(row, "x^2 + 1")
    rows[1]["gold"] = "$x$ is what $y$ was"
    with pytest.raises(DataError, match=r"line 2: .* is no expression"):
        table(tmp_path, rows, gold="gold", grading="math").rows("train")


def test_golds_that_cannot_be_read_are_rejected_with_every_line(tmp_path: Path) -> None:
    rows = [{"prompt": "?", "gold": gold} for gold in (1, "five", "3,5", None, "", [1], True, 2, "x", "y")]
    with pytest.raises(DataError) as error:
        table(tmp_path, rows, gold="gold").rows("train")
    message = error.value.message
    assert message.startswith("8 of 10 rows cannot be used: line 2: the gold 'five' states no number; line 3:")
    assert "line 4: the gold is empty" in message and "line 6: the gold holds a list" in message
    assert message.endswith("and 7, 9, 10") and error.value.where == str(tmp_path / "rows.jsonl")


def test_one_bad_row_is_pointed_at(tmp_path: Path) -> None:
    for suffix, place in ((".csv", ":4"), (".jsonl", ":3"), (".json", ":10"), (".parquet", ":3")):
        rows = [{"prompt": "a", "gold": "1"}, {"prompt": "b", "gold": "2"}, {"prompt": " ", "gold": "3"}]
        path = write(tmp_path / f"rows{suffix}", rows)
        with pytest.raises(DataError, match="the prompt is empty") as error:
            Table(train_file=str(path), gold="gold").rows("train")
        assert error.value.where == f"{path}{place}"


def test_half_a_character_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "a\\ud800"}\n')
    with pytest.raises(DataError, match="half of a surrogate pair"):
        Table(train_file=str(tmp_path / "a.jsonl")).rows("train")


@pytest.mark.parametrize(
    ("knobs", "message", "hint"),
    [
        ({"prompt": "promt"}, "no column 'promt'; columns found: prompt, gold, solution, n", "task.prompt: prompt"),
        ({"gold": "answer"}, "no column 'answer'", "task.gold"),
        ({"solution": "solutoin"}, "no column 'solutoin'", "task.solution: solution"),
    ],
)
def test_a_missing_column_names_those_that_exist(
    tmp_path: Path, knobs: dict[str, Any], message: str, hint: str
) -> None:
    with pytest.raises(DataError, match=message) as error:
        table(tmp_path, **knobs).rows("train")
    assert hint in str(error.value.hint)


def test_the_datas_own_columns_are_there_for_rewards(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}", "level": n, "share": 0.5, "tags": ["a"], "gold": n} for n in range(3)]
    row = table(tmp_path, rows, gold="gold").rows("train")[0]
    assert row.columns == {"level": int(row.gold), "share": 0.5, "tags": ["a"], "gold": row.gold}
    assert type(row.columns["share"]) is float


def test_columns_with_trls_names_are_renamed_with_a_notice(tmp_path: Path) -> None:
    rows = [{"prompt": "p", "question": f"q{n}", "completions": "c", "data_prompt": "d"} for n in range(4)]
    task = table(tmp_path, rows, prompt="question")
    row = task.rows("train")[0]
    assert row.columns == {"data_data_prompt": "p", "data_completions": "c", "data_prompt": "d"}
    told = task.notices("train")
    assert len(told) == 2 and any("'completions' is called 'data_completions'" in notice for notice in told)


def test_every_name_that_trl_hands_to_rewards_is_taken() -> None:
    """Read from the installed trainer: a new TRL that hands on more fails here."""
    spec = importlib.util.find_spec("trl")
    assert spec is not None and spec.origin is not None
    source = (Path(spec.origin).parent / "trainer" / "grpo_trainer.py").read_text(encoding="utf-8")
    body = source[source.index("def _calculate_rewards") : source.index("def _tokenize_prompts")]
    handed = set(re.findall(r'reward_kwargs\["(\w+)"\] =', body))
    for call in re.findall(r"(\w+=\w+(?:, \w+=\w+)*), \*\*reward_kwargs", body):
        handed |= set(re.findall(r"(\w+)=", call))
    dropped = re.search(r"if key not in (\[[^]]+\])", body)
    assert dropped is not None
    handed |= set(json.loads(dropped[1]))
    assert {"completions", "trainer_state", "log_extra", "log_metric", "prompt"} <= handed
    assert handed <= set(TAKEN)


# Halves -------------------------------------------------------------------------------------------


def test_rows_are_set_aside_whatever_the_order_and_the_format(tmp_path: Path) -> None:
    held = {row.question for row in table(tmp_path, heldout_rows=7).rows("heldout")}
    assert len(held) == 7
    turned = Table(train_file=str(write(tmp_path / "a.csv", ROWS[::-1])), heldout_rows=7)
    assert {row.question for row in turned.rows("heldout")} == held
    assert held.isdisjoint(row.question for row in turned.rows("train"))
    assert len(turned.rows("train")) == 33
    other = table(tmp_path, heldout_rows=7, split_seed=1)
    assert {row.question for row in other.rows("heldout")} != held


def test_rows_that_differ_in_case_and_spacing_only_are_never_in_both_halves(tmp_path: Path) -> None:
    rows = [{"prompt": text.format(n)} for n in range(20) for text in ("Say {}", "say  {} ", "SAY\t{}")]
    task = table(tmp_path, rows, heldout_rows=5)
    train, heldout = task.rows("train"), task.rows("heldout")
    assert len(heldout) == 5 and len(train) == 45
    assert {folded(row.text) for row in train}.isdisjoint(folded(row.text) for row in heldout)
    assert (overlap(train, heldout).exact, overlap(train, heldout).folded) == (0, 0)
    assert task.notices("train") == ["10 rows ask what a row that was set aside asks, and are left out"]
    assert repeats(train) == 30


def test_limits_come_after_the_split(tmp_path: Path) -> None:
    whole, cut = table(tmp_path, heldout_rows=7), table(tmp_path, heldout_rows=7, max_train=5, max_heldout=2)
    assert cut.rows("train") == whole.rows("train")[:5]
    assert cut.rows("heldout") == whole.rows("heldout")[:2]


def test_a_tenth_is_set_aside_where_no_number_is_named(tmp_path: Path) -> None:
    assert len(table(tmp_path).rows("heldout")) == 4
    assert len(table(tmp_path, ROWS[:3]).rows("heldout")) == 1
    many = [Row(str(n), str(n), "") for n in range(5000)]
    assert len(set_aside(many, None, seed=0, where="").heldout) == 300


@pytest.mark.parametrize(("rows", "count"), [(ROWS, 40), (ROWS[:1] * 3, 1), (ROWS[:1], None)])
def test_a_split_that_leaves_nothing_to_train_on_is_refused(tmp_path: Path, rows: Any, count: int | None) -> None:
    with pytest.raises(DataError, match="none is left to train on"):
        table(tmp_path, rows, heldout_rows=count).rows("train")


def test_a_held_out_file_is_read_as_it_is(tmp_path: Path) -> None:
    other = write(tmp_path / "other.csv", [{"prompt": "Other?"}, {"prompt": "what is 4 + 1?"}])
    task = table(tmp_path, heldout_file=str(other))
    assert [row.question for row in task.rows("heldout")] == ["Other?", "what is 4 + 1?"]
    train = task.rows("train")
    assert len(train) == 40
    assert (overlap(train, task.rows("heldout")).exact, overlap(train, task.rows("heldout")).folded) == (0, 1)


# The recipe ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({}, "one of train_file and dataset is needed, got neither"),
        ({"train_file": "a.csv", "dataset": "a/b"}, "got both"),
        ({"train_file": "a.csv", "config": "main"}, "config belongs to a dataset on the Hub"),
        ({"train_file": "a.csv", "train_split": "all"}, "train_split belongs to"),
        ({"dataset": "a/b", "heldout_split": "test", "heldout_file": "b.csv"}, "take one"),
        ({"train_file": "a.csv", "heldout_file": "b.csv", "heldout_rows": 5}, "nothing is set aside"),
        ({"train_file": "a.csv", "streaming": True}, "streaming is refused"),
        ({"train_file": "a.csv", "grading": "fuzzy"}, "'number', 'text' or 'math'"),
    ],
)
def test_what_does_not_agree_is_refused_when_the_recipe_is_read(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Table(**knobs)


def test_streaming_is_refused_in_one_line_at_its_place(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("extends: smoke\ntask:\n  name: table\n  train_file: a.csv\n  streaming: true\n")
    with pytest.raises(RecipeError) as error:
        load_recipe(str(path))
    (fault,) = error.value.faults
    assert (fault.line, fault.key) == (5, "task.streaming") and "streaming is refused" in fault.message
    path.write_text(path.read_text().replace("true", "false"))
    assert isinstance(load_recipe(str(path)).recipe.task, Table)
    with pytest.raises(RecipeError) as error:
        load_recipe("smoke", ["task.streaming=true"])
    assert "streaming is refused" in error.value.faults[0].message


def test_a_data_set_of_the_hub_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`datasets` reads a folder as it reads the Hub."""
    pytest.importorskip("datasets").disable_progress_bars()
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "org"
    folder.mkdir()
    talk = [[{"role": "user", "content": row["prompt"], "name": None}] for row in ROWS]
    records = [{**row, "messages": messages} for row, messages in zip(ROWS, talk, strict=True)]
    write(folder / "train.parquet", records)
    write(folder / "test.parquet", records[:3])
    local = table(tmp_path, gold="gold", heldout_file=str(folder / "test.parquet"))
    task = Table(dataset=str(folder), heldout_split="test", gold="gold", prompt="messages")
    for split in ("train", "heldout"):
        assert [(row.question, row.gold) for row in task.rows(split)] == [
            (row.question, row.gold) for row in local.rows(split)
        ]
    with pytest.raises(DataError, match="tset") as error:
        Table(dataset=str(folder), heldout_split="tset").rows("heldout")
    assert "task.train_file" in str(error.value.hint)


# Summaries, lists of prompts, mixes ---------------------------------------------------------------


def test_posts_are_asked_as_they_are_and_their_summaries_warm_up(tmp_path: Path) -> None:
    posts = [{"prompt": f"POST: {n}\n\nTL;DR:", "completion": f" summary {n}"} for n in range(3)]
    train = str(write(tmp_path / "a.parquet", posts))
    heldout = str(write(tmp_path / "b.csv", posts[:1]))
    task = TLDR(train_file=train, heldout_file=heldout, max_train=2)
    first, second = task.rows("train")
    assert task.messages(first) == [{"role": "user", "content": "POST: 0\n\nTL;DR:"}]
    assert not task.graded and task.worked(second) == "summary 1"
    assert len(task.rows("heldout")) == 1
    assert not task.grade("summary 0", first).lenient


def test_without_files_the_posts_come_from_the_hub() -> None:
    with pytest.raises(DataError, match="from the Hub: the Hub does not answer, and no copy is kept here") as error:
        TLDR().rows("train")
    assert error.value.where == "mlabonne/smoltldr, split train" and "task.train_file" in str(error.value.hint)


def test_prompts_stand_in_the_recipe_or_in_a_file(tmp_path: Path) -> None:
    listed = PromptList(prompts=("One.", "Two.", "Three."), heldout_rows=1)
    (tmp_path / "a.txt").write_bytes(b"One.\r\n\n  Two. \n\nThree.")
    filed = PromptList(file=str(tmp_path / "a.txt"), heldout_rows=1)
    tabled = PromptList(file=str(write(tmp_path / "a.csv", [{"prompt": row} for row in ("One.", "Two.", "Three.")])))
    for split in ("train", "heldout"):
        assert filed.rows(split) == tabled.rows(split)
        assert [row.question for row in filed.rows(split)] == [row.question for row in listed.rows(split)]
    assert len(listed.rows("train")) == 2 and listed.worked(listed.rows("train")[0]) is None


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({}, "got neither"),
        ({"prompts": ["a"], "file": "b.txt"}, "got both"),
        ({"prompts": ["a", " "]}, "the prompt is empty"),
        ({"prompts": []}, "must not be empty"),
    ],
)
def test_a_list_of_prompts_has_one_source(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        PromptList(**knobs)


def test_a_single_prompt_cannot_be_split() -> None:
    with pytest.raises(DataError, match="there are 1 different ones") as error:
        PromptList(prompts=("a", "A")).rows("train")
    assert error.value.hint == "bring more rows"
    with pytest.raises(DataError) as error:
        PromptList(prompts=("a", "b", "c"), heldout_rows=3).rows("train")
    assert error.value.hint == "bring more rows, or task.heldout_rows: 2 at most"


def test_where_a_task_names_the_columns_the_way_out_is_a_table(tmp_path: Path) -> None:
    path = str(write(tmp_path / "a.csv", [{"question": "q", "completions": "c"}]))
    for task in (PromptList(file=path), TLDR(train_file=path, heldout_file=path)):
        with pytest.raises(DataError, match="no column 'prompt'; columns found: question") as error:
            task.rows("train")
        assert "task.name: table" in str(error.value.hint)


def test_every_task_tells_which_columns_are_renamed(tmp_path: Path) -> None:
    rows = [{"prompt": f"p{n}", "completion": f"c{n}", "completions": "x"} for n in range(4)]
    path = str(write(tmp_path / "a.csv", rows))
    for task in (PromptList(file=path), TLDR(train_file=path, heldout_file=path)):
        assert any("'completions' is called 'data_completions'" in notice for notice in task.notices("train"))


SUMS = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


def mixed(**knobs: Any) -> ReasoningGym:
    parts = [
        {"dataset": "chain_sum", "weight": 2, "parameters": SUMS},
        {"dataset": "gcd"},
        {"dataset": "lcm", "weight": 0.5},
    ]
    return ReasoningGym(**{"mix": parts, "train_rows": 100, "heldout_rows": 30, **knobs})


def test_a_mix_keeps_to_its_weights_all_along() -> None:
    for split, wanted in (
        ("train", {"chain_sum": 57, "gcd": 29, "lcm": 14}),
        ("heldout", {"chain_sum": 17, "gcd": 9, "lcm": 4}),
    ):
        names = [row.id.split("/")[0] for row in mixed().rows(split)]  # type: ignore[arg-type]
        assert {name: names.count(name) for name in wanted} == wanted
        for end in range(1, len(names)):
            for name, count in wanted.items():
                assert abs(names[:end].count(name) - count * end / len(names)) < 1
    assert mixed().rows("train") == mixed().rows("train")


def test_a_mixs_rows_say_where_they_come_from_and_accept_their_golds() -> None:
    rows = mixed().rows("heldout")
    assert {str(row.level).split(":")[0] for row in rows} == {"chain_sum", "gcd", "lcm"}
    assert all(accepts(row, row.gold) for row in rows)
    assert len({row.id for row in rows}) == 30


def test_the_halves_of_a_mix_never_meet_across_its_parts() -> None:
    """Both parts make the same small sums: what one holds out the other must not train on."""
    parts = [
        {"dataset": "chain_sum", "parameters": SUMS | {"allow_negation": False}},
        {"dataset": "chain_sum", "parameters": SUMS},
    ]
    task = mixed(mix=parts, train_rows=60, heldout_rows=40)
    held, train = task.rows("heldout"), task.rows("train")
    assert {row.question for row in held}.isdisjoint(row.question for row in train) and len(train) == 60
    assert task.overlap_removed > 0 and str(task.overlap_removed) in task.notices("train")[0]
    assert {row.id.split("/")[0] for row in train} == {"chain_sum", "chain_sum-2"}
    assert len({row.id for row in train}) == 60


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"mix": None}, "one of dataset and mix is needed, got neither"),
        ({"dataset": "gcd"}, "got both"),
        ({"mix": []}, "must not be empty"),
        ({"mix": [{"dataset": "chain_sums"}]}, "did you mean chain_sum"),
        ({"mix": [{"dataset": "gcd", "parameters": {"min_number": 2}}]}, "did you mean min_numbers"),
        ({"mix": [{"dataset": "gcd", "weight": 0}]}, "greater than 0"),
        ({"mix": [{"dataset": "gcd"}, {"dataset": "gcd", "weight": 2}]}, "stands in the mix twice"),
        ({"mix": [{"dataset": "gcd", "weight": 1000}, {"dataset": "lcm"}]}, "lcm gets none of the 100"),
        ({"parameters": SUMS}, "each part has its own parameters"),
    ],
)
def test_a_wrong_mix_is_refused_when_the_recipe_is_read(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        mixed(**knobs)


def test_a_fault_in_a_mix_is_found_at_its_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    text = (
        "extends: smoke\ntask:\n  dataset: null\n  parameters: null\n"
        "  mix:\n    - dataset: gcd\n    - dataset: {}\n      weight: 2\n"
    )
    path.write_text(text.format("lmc"))
    with pytest.raises(RecipeError) as error:
        load_recipe(str(path))
    (fault,) = error.value.faults
    assert (fault.line, fault.key) == (7, "task.mix[1].dataset") and "did you mean lcm" in fault.message
    path.write_text(text.format("lcm"))
    task = load_recipe(str(path)).recipe.task
    assert isinstance(task, ReasoningGym) and len(task.rows("heldout")) == 8
