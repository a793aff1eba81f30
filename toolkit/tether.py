"""Runs a module as `python -m` does, and ends with the process that started it: `python -P tether.py MODULE [WORD …]`.

The starter holds the other end of this process's standard input and never writes: the input ends when the starter does, even
where it was killed. Standard library only: it runs in the environment of the module, where there is no toolkit.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time

GRACE_S = 10


def _end_with_the_starter() -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os._exit(1)


if __name__ == "__main__":
    # Ray starts its workers with Ctrl-C blocked, which every child inherits.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with_the_starter, daemon=True).start()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
