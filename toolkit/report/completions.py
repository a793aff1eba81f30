"""The data of the completion browser: texts and what each was paid, as columns, from a run's parquet files.

What does not fit into one page is left out in whole steps or whole problems, evenly, and counted. Nothing is graded anew where
a record says it: right is what the evaluation's grade, or in training a reward that reads the gold, said.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.report.records import Records
from toolkit.rewards import REWARDS
from toolkit.tasks.base import Row, grade

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData

RIGHT, LENIENT, FORMED, CUT, UNUSED = 1, 2, 4, 8, 16
"""Bits of `flags`: right; right when tags are ignored; in the answer format; cut off; drawn, but not trained on."""
MOST_ROWS = 24_000
MOST_BYTES = 32_000_000
"""Of completions in one page: a browser opens this in about a second."""

Entry = dict[str, Any]


def training_table(records: Records) -> dict[str, Any] | None:
    """Every completion that GRPO drew, or those of evenly chosen steps; None where none was recorded."""
    from pyarrow import parquet

    files = sorted(records.run.completions.glob("[0-9]*.parquet"))
    sizes = [_size(parquet.read_metadata(file)) for file in files]
    if not sum(rows for rows, _ in sizes):
        return None
    kept = _evenly(files, stride(sum(rows for rows, _ in sizes), sum(size for _, size in sizes)))
    entries = [entry for file in kept for entry in parquet.read_table(file).to_pylist()]
    judged = _training_judge(records)
    table = _columns(entries, question="prompt", when=lambda entry: entry["step"], flags=judged)
    return table | {"left_out": sum(rows for rows, _ in sizes) - len(entries), "groups": None}


def answers_table(records: Records) -> dict[str, Any] | None:
    """Every answer of the evaluation, or those to evenly chosen problems; None where there was none."""
    from pyarrow import parquet

    file = records.run.eval_completions
    if not file.is_file():
        return None
    read = parquet.read_table(file)
    entries = _whole_problems(read.to_pylist(), stride(read.num_rows, read.nbytes))
    if not entries:
        return None
    models = list(dict.fromkeys(entry["model"] for entry in entries))
    table = _columns(
        entries, question="question", when=lambda entry: models.index(entry["model"]), flags=_recorded_flags
    )
    return table | {
        "left_out": read.num_rows - len(entries),
        "groups": models,
        "sample": [entry.get("sample", 0) for entry in entries],
    }


def stride(rows: int, size_bytes: int) -> int:
    """Every how many-th step or problem fits into the page."""
    return max(1, math.ceil(rows / MOST_ROWS), math.ceil(size_bytes / MOST_BYTES))


def _size(metadata: FileMetaData) -> tuple[int, int]:
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    return metadata.num_rows, sum(group.total_byte_size for group in groups)


def _evenly(files: Sequence[Path], step: int) -> list[Path]:
    """Every step-th, and the last: how it ended is what people look for."""
    kept = list(files[::step])
    return kept if kept[-1] == files[-1] else [*kept, files[-1]]


def _whole_problems(entries: Sequence[Entry], step: int) -> list[Entry]:
    kept = set(list(dict.fromkeys(entry["row_id"] for entry in entries))[::step])
    return [entry for entry in entries if entry["row_id"] in kept]


def _columns(
    entries: Sequence[Entry],
    *,
    question: str,
    when: Callable[[Entry], int],
    flags: Callable[[Entry], int],
) -> dict[str, Any]:
    prompts = {entry["row_id"]: entry for entry in entries}
    place = {row: number for number, row in enumerate(prompts)}
    names = dict.fromkeys(key for entry in entries for key in entry if key.startswith("reward/"))
    return {
        "prompts": [
            [row, entry[question], entry.get("gold"), entry.get("level") or None] for row, entry in prompts.items()
        ],
        "prompt": [place[entry["row_id"]] for entry in entries],
        "when": [when(entry) for entry in entries],
        "text": [entry["completion"] for entry in entries],
        "tokens": [entry.get("tokens") for entry in entries],
        "flags": [flags(entry) for entry in entries],
        "reward": _rounded(entry.get("reward") for entry in entries),
        "rewards": {name.removeprefix("reward/"): _rounded(entry.get(name) for entry in entries) for name in names},
    }


def _rounded(values: Iterable[float | None]) -> list[float | None]:
    return [None if value is None or not math.isfinite(value) else round(value, 4) for value in values]


def _training_judge(records: Records) -> Callable[[Entry], int]:
    """Flags of a training completion: what a reward that reads the gold paid decides; without one, the number reader."""
    reads = [name for name in records.weights if name in REWARDS and REWARDS[name].reads_gold]

    def flags(entry: Entry) -> int:
        bits = (CUT if entry.get("cut_off") else 0) | (0 if entry.get("used", True) else UNUSED)
        if not records.graded:
            return bits
        found = grade(entry["completion"], Row(entry["row_id"], entry["prompt"], entry.get("gold") or ""))
        paid = [entry.get(f"reward/{name}") for name in reads]
        right = any(value is not None and value > 0 for value in paid) if reads else found.strict
        bits |= RIGHT if right else 0
        return bits | (LENIENT if right or found.lenient else 0) | (FORMED if found.well_formed else 0)

    return flags


def _recorded_flags(entry: Entry) -> int:
    named = {"strict": RIGHT, "lenient": LENIENT, "well_formed": FORMED, "truncated": CUT}
    return sum(bit for name, bit in named.items() if entry.get(name))
