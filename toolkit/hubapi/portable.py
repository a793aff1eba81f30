"""Records as they may leave this machine: without its paths. It reads nothing else out of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

_PATH = re.compile(r"(~|[A-Za-z]:)?[/\\][^\s'\"]*[/\\][^\n]*")
"""Absolute, with a folder in it: `/no_think`, which some models are told, is none."""


def portable(value: Any) -> Any:
    """A JSON value in which each text that is an absolute path is only its last part, and no text names the home folder."""
    if isinstance(value, dict):
        return {key: portable(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [portable(part) for part in value]
    if not isinstance(value, str):
        return value
    if _PATH.fullmatch(value) or (value.startswith("/") and "\n" not in value and Path(value).exists()):
        return re.split(r"[/\\]", value.rstrip("/\\"))[-1]
    for folder in (Path.cwd(), Path.home()):
        value = value.replace(f"{folder}/", "") if len(folder.parts) > 1 else value
    return value


def portable_file(path: Path) -> bytes:
    """A JSON file's bytes: its own where it names no path."""
    data = path.read_bytes()
    value = json.loads(data)
    changed = portable(value)
    return data if changed == value else (json.dumps(changed, indent=2, ensure_ascii=False) + "\n").encode()
