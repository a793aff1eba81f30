"""The bound C library of llama.cpp, loaded once and silent: what it logs is kept for error messages."""

from __future__ import annotations

import ctypes
import os
from collections import deque
from functools import cache
from typing import Any

from toolkit.errors import MissingExtraError

_log: deque[str] = deque(maxlen=30)
_alive: list[Any] = []


@cache
def library() -> Any:
    """The library, started."""
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # else an abort starts a debugger on this process
    try:
        from llama_cpp import llama_cpp
    except ImportError:
        raise MissingExtraError("llama-cpp-python", "cpu") from None

    @llama_cpp.llama_log_callback
    def keep(_level: int, text: bytes, _user: Any) -> None:
        _log.append(text.decode("utf-8", errors="replace"))

    llama_cpp.llama_log_set(keep, ctypes.c_void_p(0))
    _alive.append(keep)  # ctypes keeps no reference
    llama_cpp.llama_backend_init()
    return llama_cpp


def last_log_lines(count: int = 8) -> list[str]:
    """What llama.cpp said last."""
    return [line for line in "".join(_log).splitlines() if line.strip(" .")][-count:]
