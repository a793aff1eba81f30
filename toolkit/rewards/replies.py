"""Keeps a judge's replies on disk, by key, in a file that several processes may use at once. It makes no keys.

A cache is a convenience: where its file cannot be used, that is said once and the work goes on without it.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path

_log = logging.getLogger(__name__)
_PATIENCE_S = 30.0
"""How long a process waits while another one writes."""
_UNUSABLE = (sqlite3.Error, OSError)


class Replies:
    """Texts by key in one SQLite file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def find(self, keys: Iterable[str]) -> dict[str, str]:
        """Those of the keys that are there, with their texts."""
        try:
            with self._table() as table:
                rows = [table.execute("SELECT key, text FROM replies WHERE key = ?", (key,)).fetchone() for key in keys]
        except _UNUSABLE as error:
            _say_once(self._file, str(error))
            return {}
        return dict(row for row in rows if row is not None)

    def keep(self, replies: Mapping[str, str]) -> None:
        """Add them in one transaction. Where two processes bring the same key, the later text stays."""
        if not replies:
            return
        try:
            with self._table() as table:
                table.executemany("INSERT OR REPLACE INTO replies VALUES (?, ?)", replies.items())
        except _UNUSABLE as error:
            _say_once(self._file, str(error))

    @contextmanager
    def _table(self) -> Iterator[sqlite3.Connection]:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(self._file, timeout=_PATIENCE_S)) as connection, connection:
            connection.execute("CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, text TEXT NOT NULL)")
            yield connection


@cache
def _say_once(file: Path, reason: str) -> None:
    _log.warning("%s cannot be used (%s), so the judge is asked again each time; remove the file", file, reason)
