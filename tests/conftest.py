"""Every test runs offline, on one thread. Set before any test imports a heavy library."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

import offline

os.environ.update(
    HF_HUB_OFFLINE="1",
    HF_DATASETS_OFFLINE="1",
    HF_HUB_DISABLE_TELEMETRY="1",
    OMP_NUM_THREADS="1",  # two OpenMP threads beside another busy process stall
    TOKENIZERS_PARALLELISM="false",
)
# A shell lets what it starts in the background ignore Ctrl-C, and children inherit that: tests of Ctrl-C would wait in vain.
signal.signal(signal.SIGINT, signal.default_int_handler)
offline.refuse_other_machines()
offline.for_child_processes(os.environ)


@pytest.fixture(autouse=True)
def no_other_machine() -> Iterator[None]:
    """A refused connection fails the test even where a library caught the error and went on."""
    offline.attempts.clear()
    yield
    if offline.attempts:
        pytest.fail(f"tried to reach another machine: {', '.join(offline.attempts)}")
