"""The process in which math-verify computes for `symbolic.py`: a line of JSON in, `true`, `false` or `null` out.

It runs as a script and imports nothing of the toolkit. It decides nothing: every question is computed in a
fork, which the kernel ends at its limits, so no question can hang it or leave anything behind for the next.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import resource
import signal
import sys
import warnings
from typing import TextIO

MAX_MEMORY_BYTES = 2 << 30
# Waiting for a busy machine is not the text's fault: the limit is on computing time, this one on all time.
WAITING_FACTOR = 4
_YES, _NO = 10, 11
# Parsed once at the start: what the parser and sympy learn from them, every fork knows. Four times as quick.
_FAMILIAR = (
    "\\frac{1}{2}", "x^2+2x+1", "(x-1)(x+2)", "2\\sqrt{8}", "-2\\pi", "\\{1,2\\}", "[0,1)", "(1,2)", "x=5", "x \\le 5",
    "\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\text{east}", "\\sin x", "\\log_2 8", "e^{x}", "5\\%", "|x|", "1,2", "n!",
    "x_1", "f(x)=x", "\\binom{5}{2}", "1.5", "90^\\circ", "\\infty", "\\pm 2", "3i", "\\frac{a}{b}\\cdot c", "A \\cup B",
)  # fmt: skip


def main() -> None:
    """Answer until the other side closes the pipe."""
    out = _own_output()
    logging.disable()
    warnings.simplefilter("ignore")
    try:
        import math_verify  # noqa: F401
    except Exception as error:
        out.write(f"{type(error).__name__}: {error}".replace("\n", " ") + "\n")
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for expression in _FAMILIAR:
        same(expression, None)
        same("\\frac{x}{2} + y", expression)
    gc.collect()
    gc.freeze()
    out.write("ready\n")
    for line in sys.stdin:
        out.write(json.dumps(_forked(**json.loads(line))) + "\n")


def same(gold: str, answer: str | None) -> bool | None:
    """Whether the answer means the gold; without an answer, whether the gold means itself. None: it cannot be read."""
    from math_verify import verify

    wanted = _parsed(gold)
    if answer is not None and not wanted:
        return None
    # Rounding to 15 decimals is none for what a model writes: 0.3333 is not a third.
    found = wanted if answer is None else _parsed(answer)
    return verify(wanted, found, float_rounding=15, timeout_seconds=None) or _same_as_symbol(wanted, found)


def _same_as_symbol(wanted: list, found: list) -> bool:
    """The library compares a lone symbol by its name only, so that `2x - x` is no `x`."""
    from sympy import Expr, Symbol, simplify

    sides = [*wanted, *found]
    if not all(isinstance(side, Expr) for side in sides) or sum(isinstance(side, Symbol) for side in sides) != 1:
        return False
    return len(sides) == 2 and simplify(sides[0] - sides[1]) == 0


def _parsed(expression: str) -> list:
    """As sympy objects, from LaTeX only: the library's reader of plain expressions would execute them."""
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse

    # Not its units: they drop the last letter of `2t` and of `5 c`.
    dress = NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="all")
    how = LatexExtractionConfig(normalization_config=dress, boxed_match_priority=0)
    return parse(f"$${expression}$$", [how], fallback_mode="no_fallback", parsing_timeout=None)  # pyright: ignore


def _forked(gold: str, answer: str | None, timeout_s: float) -> bool | None:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            _limit(timeout_s)
            verdict = same(gold, answer)
            code = {True: _YES, False: _NO}.get(verdict, code)  # pyright: ignore
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return {_YES: True, _NO: False}.get(os.waitstatus_to_exitcode(status))


def _limit(timeout_s: float) -> None:
    """Let the kernel end this process: nothing that Python runs could hold it up."""
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGPROF, signal.SIGALRM))
    signal.setitimer(signal.ITIMER_PROF, timeout_s)
    signal.setitimer(signal.ITIMER_REAL, WAITING_FACTOR * timeout_s)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))


def _own_output() -> TextIO:
    """Standard output for the answers alone: what the libraries print goes nowhere."""
    out = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return out


if __name__ == "__main__":
    main()
