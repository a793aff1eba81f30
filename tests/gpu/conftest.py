"""Where the GPU tests run: on a GPU; without one they are skipped, or fail where REQUIRE_GPU=1.

TOOLKIT_GPU_TESTS_ON_CPU=1 runs the same bodies on the processor with a tiny model, to know that they run at all.
TOOLKIT_GPU_MODEL names a folder with real weights; without it models with random weights of real shapes are made.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from shapes import CPU_SHAPE, SHAPES, write_shape


@pytest.fixture(scope="session")
def device() -> str:
    """ "cuda", or "cpu" where that was asked for."""
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if os.environ.get("REQUIRE_GPU") == "1":
        pytest.fail("REQUIRE_GPU=1, and there is no CUDA device")
    if os.environ.get("TOOLKIT_GPU_TESTS_ON_CPU") != "1":
        pytest.skip("no CUDA device")
    return "cpu"


@pytest.fixture(scope="session", params=SHAPES)
def base(request: pytest.FixtureRequest, device: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint folder to train: the real one, else one of each shape."""
    named = os.environ.get("TOOLKIT_GPU_MODEL")
    if named and request.param != next(iter(SHAPES)):
        pytest.skip("TOOLKIT_GPU_MODEL is the one model")
    if named:
        return Path(named)
    shape = SHAPES[request.param] if device == "cuda" else CPU_SHAPE[request.param]
    return write_shape(tmp_path_factory.mktemp("gpu") / request.param, request.param, shape)
