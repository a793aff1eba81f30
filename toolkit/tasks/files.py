"""Reads a table from a file, its kind known by the suffix: the one loader behind every task. It knows no columns.

Records come with their place: the physical line on which they begin, in parquet the row, both counted from 1.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

from toolkit.answers import json_int
from toolkit.errors import DataError, nearest
from toolkit.tasks.cells import stored

Record = tuple[int, dict[str, Any]]
_MAX_CELL_CHARS = 2**31 - 1
# What pandas calls an index that it wrote without a name, read back, or kept in parquet.
_INDEX = re.compile(r"(?:Unnamed: 0(?:\.\d+)?|__index_level_\d+__)?")
_BLANK = re.compile(r"[ \t\r\n]*")
_UTF8 = "save the file as UTF-8"
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_file(path: Path) -> Iterator[Record]:
    """Every record of a file with its line (parquet: row). Index columns are left out. DataError with the place and a way out."""
    reader = READERS.get(path.suffix.lower())
    if reader is None and path.is_file():
        hint = f"known are {', '.join(READERS)}"
        raise DataError(f"the suffix {path.suffix or 'that it lacks'} says nothing known", where=str(path), hint=hint)
    try:
        for number, record in (reader or read_jsonl)(path):
            yield number, {name: value for name, value in record.items() if not _INDEX.fullmatch(name)}
    except OSError as cause:
        raise _unreadable(path, cause) from cause


def read_jsonl(path: Path) -> Iterator[Record]:
    """JSON lines: every object with its line. Blank lines are skipped."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, _object(_parsed(path, number, line), f"{path}:{number}")
    except OSError as cause:
        raise _unreadable(path, cause) from cause


def read_json(path: Path) -> Iterator[Record]:
    """A JSON list of objects, each with the line on which it begins."""
    text = _text(path)
    at = _skip(text, 0)
    line, counted = 1, 0
    if not text.startswith("[", at):
        raise _no_list(text, path)
    at = _skip(text, at + 1)
    more = not text.startswith("]", at)
    while more:
        value, end = _decode(text, at, path)
        line, counted = line + text.count("\n", counted, at), at
        yield line, _object(value, f"{path}:{line}")
        at = _skip(text, end)
        more = text.startswith(",", at)
        if more:
            at = _skip(text, at + 1)
        elif not text.startswith("]", at):
            raise _not_json(path, text, at, "a comma or the end of the list is missing")
    rest = _skip(text, at + 1)
    if rest < len(text):
        raise _not_json(path, text, rest, "something follows the list")


def read_csv(path: Path) -> Iterator[Record]:
    """CSV with commas and a header, every cell as text. Line breaks inside quotes are kept as they are."""
    csv.field_size_limit(_MAX_CELL_CHARS)
    names: list[str] | None = None
    for line, cells in _csv_rows(path):
        where = f"{path}:{line}"
        if names is None:
            names = _header(cells, where)
        elif len(cells) != len(names):
            hint = "quote cells that hold commas, quotes or line breaks"
            raise DataError(f"the row has {len(cells)} cells, the header {len(names)}", where=where, hint=hint)
        else:
            nameless = [at for at, name in enumerate(names) if at and not name and cells[at].strip()]
            if nameless:
                raise DataError(f"cell {nameless[0] + 1} belongs to a column without a name", where=where)
            yield line, {name: cell for name, cell in zip(names, cells, strict=True) if name}


def read_parquet(path: Path) -> Iterator[Record]:
    """Parquet, every row with its number."""
    import pyarrow
    from pyarrow import parquet

    with path.open("rb") as file:
        try:
            table = parquet.ParquetFile(file)
            _refuse_twice(table.schema_arrow.names, str(path))
            number = 0
            for batch in table.iter_batches():
                for record in _exact(batch).to_pylist():
                    number += 1
                    yield number, {name: stored(value) for name, value in record.items()}
        except pyarrow.ArrowException as cause:
            reason = str(cause).split("\n")[0][:200]
            raise DataError(f"the file cannot be read as parquet: {reason}", where=str(path)) from cause


def read_lines(path: Path) -> Iterator[Record]:
    """A text file: every line that is not blank, as the column `prompt`."""
    for number, line in enumerate(io.StringIO(_text(path)), 1):
        if line.strip():
            yield number, {"prompt": line.strip()}


READERS: dict[str, Callable[[Path], Iterator[Record]]] = {
    ".jsonl": read_jsonl,
    ".json": read_json,
    ".csv": read_csv,
    ".parquet": read_parquet,
    ".txt": read_lines,
}
"""What a suffix means."""


def _unreadable(path: Path, cause: OSError) -> DataError:
    reason = cause.strerror or str(cause)
    return DataError(f"the file cannot be read: {reason}", where=str(path), hint=_nearest_file(path))


def _nearest_file(path: Path) -> str | None:
    """The file that was probably meant, beside the one that is not there."""
    if path.exists():
        return None
    try:
        beside = [entry.name for entry in path.parent.iterdir() if entry.is_file()]
    except OSError:
        return f"there is no folder {path.parent}"
    near = nearest(path.name, beside)
    return f"did you mean {path.parent / near}?" if near else None


def _text(path: Path) -> str:
    """The whole file, whatever the locale. Line ends stay as they are."""
    data = path.read_bytes().removeprefix(codecs.BOM_UTF8)
    if data.startswith(_UTF16):
        raise DataError("the file is UTF-16", where=f"{path}:1", hint=_UTF8)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as cause:
        line = data.count(b"\n", 0, cause.start) + 1
        raise DataError(f"not UTF-8 (byte 0x{data[cause.start]:02x})", where=f"{path}:{line}", hint=_UTF8) from cause
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise DataError("a NUL byte stands here: no text file", where=f"{path}:{line}", hint=_UTF8)
    return text


def _missing(_: str) -> None:
    """For NaN and Infinity, which JSON does not know and Python writes all the same: a missing value."""


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object's members. Of two with one name Python would silently keep the second."""
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for at, name in enumerate(names) if name in names[:at])
        raise ValueError(f"two values are called {twice!r}")
    return members


_DECODER = json.JSONDecoder(
    parse_int=json_int, parse_float=Decimal, parse_constant=_missing, object_pairs_hook=_distinct
)


def _parsed(path: Path, number: int, line: bytes) -> Any:
    where = f"{path}:{number}"
    try:
        return _DECODER.decode(line.decode("utf-8-sig" if number == 1 else "utf-8"))
    except UnicodeDecodeError as cause:
        what = "the file is UTF-16" if line.startswith(_UTF16) else f"the line is not UTF-8 (byte {cause.start + 1})"
        raise DataError(what, where=where, hint=_UTF8) from cause
    except (ValueError, RecursionError) as cause:
        whole = number == 1 and line.lstrip(codecs.BOM_UTF8).startswith(b"[")
        hint = (
            "one JSON object a line; a file that holds one list is called .json" if whole else "one JSON object a line"
        )
        raise DataError(f"the line is not JSON: {cause}", where=where, hint=hint) from cause


def _decode(text: str, at: int, path: Path) -> tuple[Any, int]:
    try:
        return _DECODER.raw_decode(text, at)
    except json.JSONDecodeError as cause:
        raise _not_json(path, text, cause.pos, cause.msg) from cause
    except (ValueError, RecursionError) as cause:
        raise _not_json(path, text, at, str(cause)) from cause


def _not_json(path: Path, text: str, at: int, reason: str) -> DataError:
    line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
    hint = "a JSON file holds one list of objects; with one object a line it is called .jsonl"
    return DataError(f"the file is not JSON: {reason} (column {column})", where=f"{path}:{line}", hint=hint)


def _skip(text: str, at: int) -> int:
    """The place of the next character that is no white space."""
    blank = _BLANK.match(text, at)
    return blank.end() if blank else at


def _no_list(text: str, path: Path) -> DataError:
    if not text.strip():
        return DataError("the file is empty", where=str(path))
    value, end = _decode(text, _skip(text, 0), path)
    if _skip(text, end) < len(text):
        return _not_json(path, text, _skip(text, end), "something follows the first value")
    if isinstance(value, dict) and _is_by_columns(value):
        return _by_columns(value, str(path))
    inner = (
        next((key for key, held in value.items() if isinstance(held, list)), None) if isinstance(value, dict) else None
    )
    hint = f"save the list under {inner!r} alone" if inner else "one list, with one object a row"
    return DataError(f"the file holds a JSON {_kind(value)}, not a list of objects", where=str(path), hint=hint)


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DataError(f"this is a JSON {_kind(value)}, not an object", where=where, hint="one object a row")
    if _is_by_columns(value):
        raise _by_columns(value, where)
    return value


def _is_by_columns(value: dict[str, Any]) -> bool:
    """Whether an object is a whole table, one list (or mapping from row numbers, as pandas writes) a column."""
    lists = all(isinstance(column, list) and column and not isinstance(column[0], dict) for column in value.values())
    numbered = all(isinstance(column, dict) and "0" in column for column in value.values())
    return bool(value) and (lists or numbered)


def _by_columns(value: dict[str, Any], where: str) -> DataError:
    return DataError(
        f"the table is column-oriented ({', '.join(value)}), where one object a row is needed",
        where=where,
        hint="with pandas: df.to_json(FILE, orient='records', lines=True), and FILE ends in .jsonl",
    )


def _kind(value: object) -> str:
    kinds: dict[type, str] = {dict: "object", list: "list", str: "text", bool: "boolean", type(None): "null"}
    return kinds.get(type(value), "number")


def _csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Every row that is not blank with the physical line on which it begins."""
    reader = csv.reader(io.StringIO(_text(path), newline=""), strict=True)
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as cause:
            hint = "inside quotes a quote is written twice, and every quote that is opened is closed"
            raise DataError(f"the row is not CSV: {cause}", where=f"{path}:{line}", hint=hint) from cause
        if cells:
            yield line, cells


def _header(cells: list[str], where: str) -> list[str]:
    names = [cell.strip() for cell in cells]
    if len(names) == 1 and re.search(r"[;\t]", names[0]):
        raise DataError("the columns are not separated by commas", where=where, hint="save the file with commas")
    _refuse_twice([name for name in names if name], where)
    return names


def _refuse_twice(names: list[str], where: str) -> None:
    twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
    if twice is not None:
        raise DataError(f"two columns are called {twice!r}", where=where, hint="give each column its own name")


def _exact(batch: Any) -> Any:
    """32-bit floats by their shortest digits: 0.1, not 0.10000000149011612."""
    import pyarrow

    for at, field in enumerate(batch.schema):
        if pyarrow.types.is_float32(field.type):
            column = batch.column(at).cast(pyarrow.string()).to_pylist()
            values = pyarrow.array([None if cell is None else float(cell) for cell in column], pyarrow.float64())
            batch = batch.set_column(at, field.name, values)
    return batch
