"""The one loader: the same rows whatever the file, and a place and a way out for every file that cannot be read."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tables import write
from toolkit.errors import DataError
from toolkit.tasks import GSM8K, Row, Table
from toolkit.tasks.files import READERS, read_file, read_jsonl

ROOT = Path(__file__).resolve().parents[1]
FORMATS = (".csv", ".json", ".jsonl", ".parquet")


def rows_of(path: Path, **knobs: Any) -> list[Row]:
    """All rows of a table, as rows that are held out."""
    return Table(train_file=str(path), heldout_file=str(path), **knobs).rows("heldout")


def asked(rows: list[Row]) -> list[Any]:
    return [(row.id, row.question, row.gold, row.solution, row.chat) for row in rows]


def alike(folder: Path, rows: list[dict[str, Any]], **knobs: Any) -> list[Any]:
    """What is asked, which must be the same from every format."""
    first, *others = [asked(rows_of(write(folder / f"rows{suffix}", rows), **knobs)) for suffix in FORMATS]
    for other in others:
        assert other == first
    return first


# The same rows ------------------------------------------------------------------------------------

TEXTS = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), min_size=1, max_size=30).filter(
    lambda text: text.strip()
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(TEXTS, TEXTS, st.none() | TEXTS), min_size=2, max_size=5))
def test_any_texts_are_the_same_from_every_format(tmp_path: Path, cells: list[tuple[str, str, str | None]]) -> None:
    rows = [{"prompt": prompt, "gold": gold, "solution": solution} for prompt, gold, solution in cells]
    found = alike(tmp_path, rows, gold="gold", grading="text", solution="solution")
    assert [(question, gold) for _, question, gold, *_ in found] == [(p, g.strip()) for p, g, _ in cells]


@pytest.mark.parametrize(
    ("cells", "golds"),
    [
        ([72, -5, 0], ["72", "-5", "0"]),
        ([1.5, 72.0, 1e16, 1e-07], ["1.5", "72", "10000000000000000", "0.0000001"]),
        (["1,248", "$8.50", " 3/4 ", "007"], ["1248", "8.5", "3/4", "7"]),
        ([Decimal("1.50"), Decimal("2.00")], ["1.5", "2"]),
        ([2**62, 2**53 + 1], [str(2**62), str(2**53 + 1)]),
        (["9" * 6000], ["9" * 6000]),
    ],
)
def test_numbers_are_the_same_golds_from_every_format(tmp_path: Path, cells: list[Any], golds: list[str]) -> None:
    rows = [{"prompt": f"Question {at}", "gold": cell} for at, cell in enumerate(cells)]
    assert [gold for _, _, gold, *_ in alike(tmp_path, rows, gold="gold")] == golds


@pytest.mark.parametrize(
    ("cell", "gold"),
    [
        (True, "True"), (72, "72"), (72.0, "72.0"), (datetime.date(2026, 11, 30), "2026-11-30"), ("nan", "nan"),
        (datetime.datetime(2026, 11, 30, 12, 5), "2026-11-30 12:05:00"), ("1.50", "1.50"),
    ],
)  # fmt: skip
def test_typed_cells_are_the_text_that_their_csv_copy_holds(tmp_path: Path, cell: Any, gold: str) -> None:
    rows = [{"prompt": "Which?", "gold": cell}]
    assert alike(tmp_path, rows, gold="gold", grading="text")[0][2] == gold


def test_trailing_zeros_that_a_format_can_hold_are_kept(tmp_path: Path) -> None:
    texts = {
        "a.csv": b"prompt,gold\nq,1.50\n", "a.json": b'[{"prompt": "q", "gold": 1.50}]',
        "a.jsonl": b'{"prompt": "q", "gold": 1.50}',
    }  # fmt: skip
    for name, content in texts.items():
        (tmp_path / name).write_bytes(content)
    write(tmp_path / "a.parquet", [{"prompt": "q", "gold": Decimal("1.50")}])
    for name in (*texts, "a.parquet"):
        assert rows_of(tmp_path / name, gold="gold", grading="text")[0].gold == "1.50"


def test_a_32_bit_float_is_its_shortest_digits(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.table({"prompt": ["a", "b"], "gold": pyarrow.array([0.1, 2.5], pyarrow.float32())})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert [row.gold for row in rows_of(tmp_path / "a.parquet", gold="gold")] == ["0.1", "2.5"]


def test_conversations_are_the_same_from_every_format(tmp_path: Path) -> None:
    talk = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "“Hi”,\nthere"}]
    (found,) = alike(tmp_path, [{"talk": talk, "n": 1}], prompt="talk")
    assert found[1] == "“Hi”,\nthere" and list(found[4]) == talk


def test_line_breaks_inside_quotes_are_kept_and_lines_counted_as_an_editor_does(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'prompt,gold\r\n"one\ntwo\r\n",1\r\n\r\n"a ""b"", c",2\r\nlast,3')
    assert list(read_file(path)) == [
        (2, {"prompt": "one\ntwo\r\n", "gold": "1"}),
        (6, {"prompt": 'a "b", c', "gold": "2"}),
        (7, {"prompt": "last", "gold": "3"}),
    ]


@pytest.mark.parametrize(
    "content",
    [b",prompt\n0,Hi\n1,Ho\n", b"Unnamed: 0,prompt\n0,Hi\n1,Ho\n", b"prompt, \nHi,\nHo,\n", b" prompt \nHi\nHo\n"],
)
def test_index_and_nameless_columns_of_csv_are_ignored(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    assert [record for _, record in read_file(tmp_path / "a.csv")] == [{"prompt": "Hi"}, {"prompt": "Ho"}]


def test_the_index_that_pandas_keeps_in_parquet_is_ignored(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pandas.DataFrame({"prompt": ["Hi", "Ho"]}, index=[5, 7]).to_parquet(tmp_path / "a.parquet")
    assert [record for _, record in read_file(tmp_path / "a.parquet")] == [{"prompt": "Hi"}, {"prompt": "Ho"}]


def test_files_that_pandas_writes_are_read(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"prompt": ["a", "b", "c"], "gold": [1, None, 3.5]}).dropna()
    frame.to_csv(tmp_path / "a.csv")
    frame.to_json(tmp_path / "a.jsonl", orient="records", lines=True)
    frame.to_json(tmp_path / "a.json", orient="records")
    frame.to_parquet(tmp_path / "a.parquet")
    for suffix in FORMATS:
        assert [row.gold for row in rows_of(tmp_path / f"a{suffix}", gold="gold")] == ["1", "3.5"]


@pytest.mark.parametrize("suffix", [".csv", ".json", ".jsonl", ".txt"])
def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path: Path, suffix: str) -> None:
    content = {
        ".csv": "prompt\nHi\n",
        ".json": '[{"prompt": "Hi"}]',
        ".jsonl": '{"prompt": "Hi"}\n',
        ".txt": "Hi\n",
    }
    path = tmp_path / f"a{suffix}"
    path.write_bytes(b"\xef\xbb\xbf" + content[suffix].encode())
    assert [record for _, record in read_file(path)] == [{"prompt": "Hi"}]


def test_files_are_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    rows = [{"prompt": "naïve Größe 漢字 🙂"}]
    code = (
        "import sys, pathlib, locale; from toolkit.tasks.files import read_file; "
        "print(locale.getpreferredencoding(False), "
        "*[ascii(r['prompt']) for p in sys.argv[1:] for _, r in read_file(pathlib.Path(p))], sep='\\n')"
    )
    paths = [str(write(tmp_path / f"a{suffix}", rows)) for suffix in FORMATS]
    environment = {"PYTHONPATH": str(ROOT), "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    out = subprocess.check_output([sys.executable, "-c", code, *paths], text=True, env=os.environ | environment)
    encoding, *found = out.splitlines()
    assert "utf" not in encoding.lower() and found == [ascii(rows[0]["prompt"])] * len(FORMATS)


def test_a_missing_value_is_empty_in_every_format(tmp_path: Path) -> None:
    contents = {
        "a.csv": b"prompt,solution\nHi,\n", "a.json": b'[{"prompt": "Hi", "solution": null}]',
        "a.jsonl": b'{"prompt": "Hi", "solution": NaN}', "b.jsonl": b'{"prompt": "Hi", "solution": ""}',
        "c.jsonl": b'{"prompt": "Hi"}\n{"prompt": "Ho", "solution": "s"}',
    }  # fmt: skip
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        assert rows_of(tmp_path / name, solution="solution")[0].solution is None


# What cannot be read ------------------------------------------------------------------------------

BAD = {
    "ragged.csv": (b"prompt,gold\na,1\nb,2,3\n", 3, "3 cells, the header 2"),
    "short.csv": (b'prompt,gold\n"a\nb",1\nc\n', 4, "1 cells, the header 2"),
    "twice.csv": (b"prompt,gold,prompt\na,1,b\n", 1, "two columns are called 'prompt'"),
    "nameless.csv": (b"prompt,\na,x\n", 2, "column without a name"),
    "open.csv": (b'prompt,gold\na,1\n"b,2\nc,3\n', 3, "not CSV"),
    "semicolons.csv": (b"prompt;gold\na;1\n", 1, "not separated by commas"),
    "latin.csv": ("prompt\na\nnaïve\n".encode("latin-1"), 3, r"not UTF-8 \(byte 0xef\)"),
    "utf16.csv": ("prompt\na\n".encode("utf-16"), 1, "UTF-16"),
    "nul.csv": (b"prompt\na\nb\0c\n", 3, "NUL"),
    "columns.json": (b'{"prompt": ["a", "b"], "gold": [1, 2]}', None, r"column-oriented \(prompt, gold\)"),
    "pandas.json": (b'{"prompt": {"0": "a", "1": "b"}}', None, "column-oriented"),
    "columns.jsonl": (b'{"prompt": ["a", "b"], "gold": ["1", "2"]}', 1, "column-oriented"),
    "object.json": (b'{"data": [{"prompt": "a"}]}', None, "a JSON object, not a list of objects"),
    "text.json": (b'"a"', None, "a JSON text, not a list"),
    "lines.json": (b'{"prompt": "a"}\n{"prompt": "b"}\n', 2, "something follows"),
    "item.json": (b'[\n{"prompt": "a"},\n5]', 3, "a JSON number, not an object"),
    "comma.json": (b'[{"prompt": "a"}\n{"prompt": "b"}]', 2, "a comma or the end"),
    "trailing.json": (b'[{"prompt": "a"},\n]', 2, "not JSON"),
    "rest.json": (b'[{"prompt": "a"}]\nx', 2, "something follows the list"),
    "cut.json": (b'[{"prompt": "a"},\n{"prom', 2, "not JSON"),
    "deep.json": (b"[" * 100_000, 1, "not JSON"),
    "empty.json": (b" \n", None, "empty"),
    "latin.jsonl": ('{"a": 1}\n{"prompt": "naïve"}\n'.encode("latin-1"), 2, "not UTF-8"),
    "utf16.jsonl": ('{"prompt": "a"}\n'.encode("utf-16"), 1, "UTF-16"),
    "twice.jsonl": (b'{"prompt": "a"}\n{"prompt": "b", "gold": 1, "prompt": "c"}', 2, "two values are called 'prompt'"),
    "pretty.jsonl": (b'[\n{"prompt": "a"}\n]', 1, "not JSON"),
    "list.jsonl": (b'[{"prompt": "a"}]', 1, "a JSON list, not an object"),
    "no.parquet": (b"PAR1 and nothing else", None, "as parquet"),
    "latin.txt": ("a\nnaïve\n".encode("latin-1"), 2, "not UTF-8"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_cannot_be_read_names_line_and_way_out(tmp_path: Path, name: str) -> None:
    content, line, message = BAD[name]
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as error:
        list(read_file(path))
    assert error.value.where == (f"{path}:{line}" if line else str(path))
    assert "\n" not in error.value.message


@pytest.mark.parametrize(
    ("name", "hint"),
    [("object.json", "save the list under 'data' alone"), ("text.json", "one list"), ("pretty.jsonl", "called .json")],
)
def test_the_way_out_fits_the_file(tmp_path: Path, name: str, hint: str) -> None:
    path = tmp_path / name
    path.write_bytes(BAD[name][0])
    with pytest.raises(DataError) as error:
        list(read_file(path))
    assert hint in str(error.value.hint)


@pytest.mark.parametrize("name", ["empty.csv", "header.csv", "empty.jsonl", "list.json", "empty.parquet"])
def test_a_file_without_rows_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if path.suffix == ".parquet":
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.table({"prompt": pyarrow.array([], pyarrow.string())}), path)
    else:
        path.write_text({"header.csv": "prompt,gold\n", "list.json": "[]"}.get(name, "\n"))
    with pytest.raises(DataError, match="no rows") as error:
        rows_of(path)
    assert error.value.where == str(path)


def test_parquet_with_two_columns_of_one_name_is_refused(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    twice = pyarrow.Table.from_arrays([pyarrow.array(["a"]), pyarrow.array(["b"])], names=["prompt", "prompt"])
    parquet.write_table(twice, tmp_path / "a.parquet")
    with pytest.raises(DataError, match="two columns are called 'prompt'"):
        list(read_file(tmp_path / "a.parquet"))


def test_a_missing_file_names_the_nearest_one_beside_it(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text("{}\n")
    for name in ("trian.jsonl", "train.jsnl", "train.csv"):
        with pytest.raises(DataError, match="cannot be read: No such file") as error:
            list(read_file(tmp_path / name))
        assert error.value.hint == f"did you mean {tmp_path / 'train.jsonl'}?"
    with pytest.raises(DataError) as error:
        list(read_file(tmp_path / "nowhere" / "train.jsonl"))
    assert error.value.hint == f"there is no folder {tmp_path / 'nowhere'}"


@pytest.mark.parametrize("name", ["a.xlsx", "a.jsonl.gz", "a"])
def test_an_unknown_suffix_names_the_known_ones(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(DataError, match="suffix") as error:
        list(read_file(tmp_path / name))
    assert all(suffix in str(error.value.hint) for suffix in READERS)


@pytest.mark.parametrize("suffix", READERS)
def test_a_folder_is_no_file(tmp_path: Path, suffix: str) -> None:
    folder = tmp_path / f"a{suffix}"
    folder.mkdir()
    with pytest.raises(DataError, match="directory"):
        list(read_file(folder))


def test_a_suffix_is_known_in_capitals(tmp_path: Path) -> None:
    (tmp_path / "A.CSV").write_bytes(b"prompt\nHi\n")
    assert [record for _, record in read_file(tmp_path / "A.CSV")] == [{"prompt": "Hi"}]


def test_json_numbers_are_read_exactly(tmp_path: Path) -> None:
    digits = "7" * 6000
    (tmp_path / "a.jsonl").write_text(f'{{"a": {digits}, "b": 0.1}}\n')
    ((_, record),) = read_jsonl(tmp_path / "a.jsonl")
    assert record["b"] == Decimal("0.1") and record["a"] % 1000 == 777


# GSM8K through the same loader --------------------------------------------------------------------


def test_gsm8k_is_the_same_from_every_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fixture = Path(__file__).parent / "data" / "gsm8k"
    records = {name: [record for _, record in read_jsonl(fixture / f"{name}.jsonl")] for name in ("train", "test")}
    wanted = GSM8K(train_file=str(fixture / "train.jsonl"), heldout_file=str(fixture / "test.jsonl"))
    for suffix in FORMATS:
        folder = tmp_path / suffix[1:]
        folder.mkdir()
        for name, rows in records.items():
            write(folder / f"{name}{suffix}", rows)
        monkeypatch.setenv("TOOLKIT_GSM8K_DIR", str(folder))
        for split in ("train", "heldout"):
            assert GSM8K().rows(split) == wanted.rows(split)
            assert GSM8K().fingerprint(split) == wanted.fingerprint(split)
