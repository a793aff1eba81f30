"""The certificate for readers: CERTIFICATE.md, written from the record and nothing else. It measures nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from toolkit.atomic import replacing
from toolkit.verify.record import Check, FileResult, VerifyRecord
from toolkit.verify.table import COLUMNS, rows

LONGEST_CELL = 160
WHOLE = "the weights as they were trained (full fine-tuning: there is no adapter)"
LOSSY = (
    "The base was computed back from a 4-bit copy: these files are proven to be the model that was trained, on weights that "
    "differ from the base's 16-bit original."
)


def write_certificate(path: Path, record: VerifyRecord) -> None:
    """Complete or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(certificate(record), encoding="utf-8")


def certificate(record: VerifyRecord) -> str:
    """The text: verdict, table, every check of every file, every hash, versions."""
    parts = [
        _head(record),
        *(_checks(result) for result in [record.merged, *record.files]),
        _hashes(record),
        _made_with(record),
    ]
    return "\n\n".join(parts) + "\n"


def _head(record: VerifyRecord) -> str:
    verdict = "every file passed" if record.passed else "NOT every file passed"
    graded = "graded as in training" if "strict" in record.merged.task else "not graded: the task has no right answers"
    asked = f"{record.reference.get('problems', 0)} held-out problems, {graded}"
    texts = f"{record.reference.get('texts', 0)} texts ({record.reference.get('tokens', 0)} predicted tokens)"
    trained = WHOLE if record.full_finetuning else "base and adapter through PEFT"
    lines = [
        f"# Certificate of {record.run}: {verdict}",
        "",
        f"On {record.date}, every file named here was opened and compared with the trained model: the merged folder in plain "
        f"transformers (fp32) with {trained}, every GGUF file in llama.cpp with the merged folder. Base: "
        f"`{record.base}`. Compared on {texts} and {asked}. The certificate speaks of exactly the bytes "
        "whose SHA-256 stand below; `verify.json` holds the same numbers for programs. What each check means, where its limit "
        "comes from, and what is not proven: docs/export.md.",
        "",
        *([LOSSY, ""] if record.lossy_base else []),
        *_table(COLUMNS, rows(record)),
        "",
        f"Recommended: **{record.recommended}**, {record.recommendation}." if record.recommended else f"{record.recommendation}.",
    ]  # fmt: skip
    return "\n".join(lines)


def _checks(result: FileResult) -> str:
    title = f"## {result.file}: {'passed' if result.passed else 'FAILED'}"
    types = ", ".join(f"{count} × {kind}" for kind, count in result.tensor_types.items())
    speed = ", ".join(f"{name} {value:.0f}" for name, value in result.tokens_per_second.items())
    notes = [f"Tensors: {types}."] if types else []
    notes += [f"Tokens per second of processor time, one thread: {speed}."] if speed else []
    cells = ((check.name, _value(check.value), _limit(check), _verdict(check), check.why) for check in result.checks)
    table = _table(("check", "measured", "allowed", "verdict", "what it says"), cells)
    return "\n".join([title, "", *([*notes, ""] if notes else []), *table])


def _limit(check: Check) -> str:
    if check.limit is None:
        return "–"
    return f"{check.limit[0]:g} to {check.limit[1]:g}" if _is_range(check.limit) else _value(check.limit)


def _is_range(limit: Any) -> bool:
    return isinstance(limit, list) and len(limit) == 2 and all(isinstance(end, float) for end in limit)


def _verdict(check: Check) -> str:
    return "FAILED" if not check.passed else "noted" if check.limit is None else "passed"


def _value(value: Any) -> str:
    if value == []:
        return "none"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST_CELL else text[:LONGEST_CELL] + "…"


def _hashes(record: VerifyRecord) -> str:
    folder = {f"{record.merged.file}/{name}": digest for name, digest in record.merged.hashes.items()}
    files = {name: digest for result in record.files for name, digest in result.hashes.items()}
    adapter = {f"adapter/{name}": digest for name, digest in record.adapter.items()}
    lines = [f"{digest}  {name}" for name, digest in [*files.items(), *folder.items(), *adapter.items()]]
    return "\n".join(
        ["## SHA-256", "", "As `sha256sum --check` reads them, in the export's folder:", "", "```", *lines, "```"]
    )


def _made_with(record: VerifyRecord) -> str:
    return "## Versions\n\n" + ", ".join(f"{name} {version}" for name, version in record.versions.items()) + "."


def _table(columns: Sequence[str], cells: Iterable[Sequence[str]]) -> Iterator[str]:
    yield _line(columns)
    yield _line(["---"] * len(columns))
    yield from (_line(row) for row in cells)


def _line(cells: Sequence[str]) -> str:
    """One row. A cell is text of a model or a file at times: it must not end the row, nor the table."""
    return "| " + " | ".join(map(_cell, cells)) + " |"


def _cell(text: str) -> str:
    printable = "".join(letter if letter.isprintable() else " " for letter in text)
    return " ".join(printable.replace("|", "\\|").replace("<", "\\<").split())
