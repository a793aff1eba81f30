"""What is made once a session and shared between test files: a pytest plugin, `pytest_plugins = ("shared",)`.

Unsloth must be imported before transformers, and one pytest process runs all test files: what needs unsloth runs in
`unsloth_process`, or as `python -m toolkit` in a process of its own.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from models import SMOLLM2, byte_tokenizer, tiny_llama


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Llama with the byte tokenizer as a checkpoint folder, for `model.source`."""
    folder = tmp_path_factory.mktemp("tiny") / "checkpoint"
    tiny_llama().save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The checkpoint folder of the default base model, converted once a session into a cache of its own."""
    from toolkit.engine.gguf_checkpoint import converted
    from toolkit.engine.source import local_path

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOOLKIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield converted(local_path(SMOLLM2))


@pytest.fixture(scope="session")
def unsloth_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """Calls a function of unsloth_side.py in one process that imported unsloth first; answers must pickle."""
    import unsloth_side

    folder = str(tmp_path_factory.mktemp("unsloth"))
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, initializer=unsloth_side.begin, initargs=(folder,)) as pool:
        yield lambda function, *arguments: pool.submit(function, *arguments).result(timeout=300)
