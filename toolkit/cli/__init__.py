"""The command line: finds the verb and turns what comes back into an exit code. Verbs stand in `verbs`."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

from toolkit import __version__, console
from toolkit.cli.parsing import Parser
from toolkit.cli.verbs import VERBS
from toolkit.errors import ToolkitError, nearest

# Before libgomp is loaded. By default its threads spin for milliseconds, and two processes that do so on one machine
# stall each other many times over; without any spinning a small model loses a quarter of its speed (measured).
os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def main(argv: Sequence[str] | None = None) -> int:
    """The entry of `toolkit` and `python -m toolkit`. Bugs leave as a traceback, all else as an exit code."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _dispatch(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return code
    except ToolkitError as error:
        console.fail(error)
        return error.exit_code
    except KeyboardInterrupt:
        console.err.print("interrupted")
        return 130
    except BrokenPipeError:
        # The reader has gone, there is nobody to tell. Keep Python from trying once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        console.raw(help_text())
        return 0
    if words[0] in ("-V", "--version"):
        console.raw(f"toolkit {__version__}")
        return 0
    if words[0] not in VERBS:
        near = nearest(words[0], VERBS)
        hint = f"did you mean toolkit {near}?" if near else f"verbs: {', '.join(VERBS)}"
        raise ToolkitError(f"there is no verb {words[0][:60]}", hint=hint)
    verb = VERBS[words[0]]
    parser = Parser(prog=f"toolkit {words[0]}", description=verb.summary, allow_abbrev=False)
    verb.add_arguments(parser)
    try:
        arguments = parser.parse(words[1:])
    except SystemExit as stop:  # argparse leaves this way after --help
        return int(stop.code or 0)
    return verb.run(arguments)


def help_text() -> str:
    """What `toolkit --help` prints."""
    width = max(map(len, VERBS))
    lines = [f"  {name:<{width}} {verb.summary}" for name, verb in VERBS.items()]
    return "\n".join(["usage: toolkit VERB …     (toolkit VERB --help says more)", "", *lines])
