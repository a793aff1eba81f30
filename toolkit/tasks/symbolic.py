"""Whether two mathematical expressions are the same, exactly for numbers, else by the library math-verify.

The library computes in a process of its own (symbolic_worker.py), so it may be asked from any thread, and no
text can hang, fill or end this process. Which text of a completion is the answer is the caller's decision.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from toolkit.answers import Number, number
from toolkit.answers.numbers import same
from toolkit.errors import ToolkitError

TIMEOUT_S = 5.0
MAX_CHARS = 1_000
"""Longer texts are no expressions: nothing is parsed whose size could be an attack."""

_WORKER = Path(__file__).with_name("symbolic_worker.py")
_SHORT_FRACTION = re.compile(r"\\([dt]?frac)\s?([0-9])\s?([0-9])(?![0-9])")
# A number and nothing else. A letter might be a variable, `!` a factorial, a bracket an interval or a point.
_COMMANDS = re.compile(r"\\(?:[dt]?frac|boxed|left|right)(?![a-zA-Z])")
_NUMERIC = re.compile(r"[0-9\s.,/+\-\u2212\u2013$€£%{}\\\u00a0\u2009\u202f]+")
# What makes a text more than a number in words: an operator, a variable, a constant, a function.
_ALGEBRA = re.compile(
    r"[=^!_|*+\\{}()\[\]<>]|[0-9][^\W\d_]|\b(?![aI]\b)[^\W\d_]\b"
    r"|\b(?:pi|alpha|beta|gamma|theta|lambda|mu|sigma|tau|phi|omega|sin|cos|tan|log|ln|exp|sqrt|root)\b",
    re.IGNORECASE,
)
_MATH = re.compile(
    r"(?<!\\)\$\$(.+?)(?<!\\)\$\$|(?<!\\)\$(.+?)(?<!\\)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]",
    re.DOTALL,
)
_DELIMITER = re.compile(r"\\?\$|(?<!\\)\\[()\[\]]")
# What may stand between two pieces of mathematics that are one list.
_LIST = re.compile(r"[\s,;]*(?:and|or)?[\s,;]*")
_POWER = re.compile(r"(?<=[\w)}\]])\*\*(?=[\w({\[\\-])")
# A word, to the library, is the product of its letters: seat would be east.
_WORDS = re.compile(r"(?!infinity)[^\W\d_]{4,}(?:[ -][^\W\d_]+)*")
# `5 \text{ cm}^2`: a unit behind a value is no factor.
_UNIT = re.compile(r"(?<=[\d\s})])\\(?:text|mathrm|mbox)\s?\{[^{}]*\}\s*(?:\^\s*(?:\d|\{\d\}))?\s*$")


def same_expression(answer: str, gold: str, *, timeout_s: float = TIMEOUT_S) -> bool | None:
    """Whether the answer means the gold; None where the gold cannot be read or the time limit is reached.

    Two numbers are compared by the exact reader: nothing is rounded, 50% is not 0.5. `timeout_s` limits the
    computing time; the waiting time is at most four times as long. Raises ToolkitError only where the library
    is not installed.
    """
    numbers = _number(answer), _number(gold)
    if all(numbers):
        return same(*numbers)
    if numbers[1] and not _ALGEBRA.search(answer) and same(number(answer), numbers[1]):
        return True  # `72 clips`, as for every other grader
    wanted, found = expression(gold), expression(answer)
    if wanted is None:
        return None
    if found in (None, wanted):
        readable = is_readable(gold, timeout_s=timeout_s)
        return found is not None if readable else None
    return _asked(wanted, found, timeout_s)


def is_readable(text: str, *, timeout_s: float = TIMEOUT_S) -> bool | None:
    """Whether a text, a gold say, states one expression; None where the time limit is reached."""
    if _number(text):
        return True
    wanted = expression(text)
    return wanted is not None and _asked(wanted, None, timeout_s)


def expression(text: str) -> str | None:
    """The LaTeX of what a text states: its mathematics, or all of it. None for several statements, or for none.

    Mathematics in several pieces is one list where only commas, `and` or `or` stand between them.
    """
    text = text.strip()
    if not text or len(text) > MAX_CHARS:
        return None
    pieces = list(_MATH.finditer(text))
    if pieces and "\\boxed" not in text:  # else the library takes what is in the boxes
        gaps = (text[left.end() : right.start()] for left, right in pairwise(pieces))
        if not all(_LIST.fullmatch(gap) for gap in gaps):
            return None
        text = ",".join(next(filter(None, piece.groups())) for piece in pieces)
    return _plain(text) or None


def _plain(text: str) -> str:
    """Without what sets mathematics off from text, and with a notation that the library takes as it is meant."""
    text = _POWER.sub("^", " ".join(_DELIMITER.sub(" ", text).split())).strip("*` ")
    text = _UNIT.sub("", _braced(text))
    return f"\\text{{{text}}}" if _WORDS.fullmatch(text) else text


def _number(text: str) -> Number | None:
    text = _braced(text)
    return number(text) if _NUMERIC.fullmatch(_COMMANDS.sub("", text)) else None


def _braced(text: str) -> str:
    """`\\frac12` is one half to LaTeX."""
    return _SHORT_FRACTION.sub(r"\\\1{\2}{\3}", text)


@lru_cache(maxsize=1 << 16)
def _asked(gold: str, answer: str | None, timeout_s: float) -> bool | None:
    """A group of completions gives the same answer again and again."""
    return _process.ask({"gold": gold, "answer": answer, "timeout_s": timeout_s})


class _Process:
    """The worker: started when first asked, one question at a time, gone with this process."""

    def __init__(self) -> None:
        self.forget()
        atexit.register(self.stop)
        # A forked child must not talk into its parent's conversation.
        os.register_at_fork(after_in_child=self.forget)

    def ask(self, question: dict[str, Any]) -> bool | None:
        """The worker's answer. None where it could not decide."""
        line = json.dumps(question)
        with self._lock:
            try:
                return self._exchange(line)
            except OSError:  # killed from outside, for no question can end it
                self.stop()
            except BaseException:  # interrupted: the answer that is on its way would be taken for the next one
                self.stop()
                raise
            return self._exchange(line)

    def stop(self) -> None:
        """End the worker and whatever it started."""
        running, self._running = self._running, None
        if running is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            running.communicate()

    def forget(self) -> None:
        self._lock = threading.Lock()
        self._running: subprocess.Popen[str] | None = None

    def _exchange(self, line: str) -> bool | None:
        if self._running is None:
            self._running = _start()
            self._expect_ready()
        return json.loads(self._say(line))

    def _say(self, line: str) -> str:
        assert self._running and self._running.stdin and self._running.stdout
        self._running.stdin.write(line + "\n")
        self._running.stdin.flush()
        reply = self._running.stdout.readline()
        if not reply:
            raise BrokenPipeError
        return reply

    def _expect_ready(self) -> None:
        assert self._running and self._running.stdout
        greeting = self._running.stdout.readline()
        if greeting != "ready\n":
            raise ToolkitError(f"math-verify cannot be loaded: {greeting.strip() or 'its process ended'}")


def _start() -> subprocess.Popen[str]:
    if importlib.util.find_spec("math_verify") is None:
        raise ToolkitError("the package math-verify is not installed", hint="make setup")
    # Of this process's variables only what finds libraries: a token is nothing for it. Hashes decide sympy's order.
    variables = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    variables |= {"PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    return subprocess.Popen(
        [sys.executable, "-P", str(_WORKER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
        env=variables,
        start_new_session=True,  # Ctrl-C in the terminal is not meant for it
    )


_process = _Process()
