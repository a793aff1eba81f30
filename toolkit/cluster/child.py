"""A process of the toolkit that a Ray worker starts: its lines handed on, asked to stop, gone when the worker is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import toolkit
from toolkit.cluster.post import Kind, Message

PACKAGE = Path(toolkit.__file__).parent
TETHER = PACKAGE / "tether.py"
ASK_S = 0.3
RUN_LINE = "run: "
"""How `toolkit train` says which folder it has made."""
SETTINGS = (
    "HF_DATASETS_OFFLINE", "HF_HUB_OFFLINE", "OMP_NUM_THREADS", "TOOLKIT_CACHE", "TOOLKIT_GSM8K_DIR", "TOOLKIT_TRAIN_ANYWAY",
    "UNSLOTH_FORCE_CPU",
)  # fmt: skip
"""Variables that go along to every machine: switches and folders. What is secret must be set on the machines themselves."""


def settings() -> dict[str, str]:
    """Those of the user's environment."""
    return {name: os.environ[name] for name in SETTINGS if name in os.environ}


def environment(given: Mapping[str, str], threads: int | None) -> dict[str, str]:
    """This worker's environment for a child: the user's settings, and its share of the cores unless the user says otherwise.

    Ray's own OMP_NUM_THREADS goes: it is 1 beside a GPU. So does its token, which is for Ray's processes.
    """
    ours = ("OMP_NUM_THREADS", "RAY_AUTH_TOKEN")
    inherited = {name: value for name, value in os.environ.items() if name not in ours}
    share = {"OMP_NUM_THREADS": str(threads)} if threads else {}
    paths = [str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")]
    return inherited | share | {"PYTHONPATH": os.pathsep.join(filter(None, paths))} | dict(given)


def run_child(
    words: Sequence[str],
    *,
    sender: int,
    post: Any,
    folder: str,
    env: Mapping[str, str],
    stoppable: bool = True,
    shown: bool = True,
    heard: Callable[[str], None] = lambda _: None,
) -> int:
    """`python -m toolkit WORDS` in `folder`; its exit code, negative where a signal ended it.

    Every line goes to the post, and those of stdout to `heard`; they are `shown`, or only logged. Where the post says stop, a
    `stoppable` child gets one SIGINT.
    """
    import ray  # type: ignore[import-not-found]

    process = subprocess.Popen(
        [sys.executable, "-u", "-P", str(TETHER), "toolkit", *words],
        cwd=folder, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, errors="backslashreplace", start_new_session=True,
    )  # fmt: skip
    assert process.stdout and process.stderr

    def read(stream: IO[str], kind: Kind) -> None:
        for line in stream:
            post.put.remote(Message(kind, sender, line.rstrip("\n")))
            if kind != "err":
                heard(line.rstrip("\n"))

    readers = [
        threading.Thread(target=read, args=pair)
        for pair in ((process.stdout, "out" if shown else "log"), (process.stderr, "err"))
    ]
    for reader in readers:
        reader.start()
    asked = False
    while True:
        try:
            code = process.wait(ASK_S)
            break
        except subprocess.TimeoutExpired:
            if stoppable and not asked and ray.get(post.stopping.remote()):
                asked = True
                process.send_signal(signal.SIGINT)
    for reader in readers:
        reader.join()
    return code
