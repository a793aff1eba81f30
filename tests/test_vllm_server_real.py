"""A real vLLM server, started by `trl vllm-serve` on this machine: what the stand-in of test_vllm_server.py is held to.

vLLM's server needs some forty packages that the tests' environment has not (docs/scaling.md). VLLM_SERVER_SITE names a folder
with them; without it these tests are skipped.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import requests

import unsloth_side
import vllm_remote_side as side
from models import byte_tokenizer, small_recipe, tiny_llama
from run_files import lines
from toolkit.engine.completions import Sampling
from toolkit.engine.machine import Machine
from toolkit.engine.vllm_server import command
from toolkit.preflight.vllm_server import server_findings, way_findings
from toolkit.recipe import Recipe
from toolkit.rundir import RunDir

pytest_plugins = ("shared",)
SITE = os.environ.get("VLLM_SERVER_SITE")
if SITE is None:
    pytest.skip("VLLM_SERVER_SITE names no folder with what vLLM's server needs", allow_module_level=True)

Call = Callable[..., Any]
EXACT, STALE = 1e-3, 0.5
ON_A_CPU = {
    "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "0-1", "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
    "VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "VLLM_USE_AOT_COMPILE": "0", "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "0", "CUDA_VISIBLE_DEVICES": "",
}  # fmt: skip
SAMPLING = Sampling(max_new_tokens=12, temperature=0.9, stop_token_ids=tuple(range(0, 256, 9)))


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Llama with heads as wide as vLLM's kernel needs them."""
    folder = tmp_path_factory.mktemp("wide") / "checkpoint"
    tiny_llama(num_attention_heads=2, num_key_value_heads=1).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


@contextmanager
def started(recipe: Recipe, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The command that the toolkit names for this recipe, until its server answers."""
    words = [str(Path(sys.executable).with_name("trl")), *command(recipe).split()[1:], "--enforce_eager", "true"]
    environment = os.environ | ON_A_CPU | {"PYTHONPATH": f"{SITE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    with log.open("wb") as out:
        server = subprocess.Popen(
            [*words, "--dtype", "float32", "--no-enable-chunked-prefill"],
            env=environment,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        end = time.monotonic() + 180
        while not _healthy(str(recipe.model.vllm_server)):
            assert server.poll() is None and time.monotonic() < end, log.read_text(encoding="utf-8")[-3000:]
            time.sleep(0.5)
        yield server
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(60)


def _healthy(address: str) -> bool:
    try:
        return requests.get(f"{address}/health", timeout=2).ok
    except requests.RequestException:
        return False


@pytest.fixture(scope="session")
def recipe(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recipe]:
    """A recipe whose server runs. In the session's environment, as the training side reads the key there, too."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    model = {"vllm_server": f"http://127.0.0.1:{port}", "max_seq_length": 256}
    made = small_recipe(str(checkpoint), model=model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_API_KEY", "geheim")
        with started(made, tmp_path_factory.mktemp("log") / "server.log"):
            yield made


@pytest.fixture
def there(recipe: Recipe, unsloth_process: Call) -> Call:
    return lambda function, *arguments, **named: unsloth_process(partial(function, **named), *arguments)


def test_a_real_server_is_what_the_check_expects(recipe: Recipe) -> None:
    found = [
        *server_findings(recipe, details := {}),
        *way_findings(recipe, Machine("cpu", True, "a", 2, 8.0, vllm=True)),
    ]
    assert {finding.status for finding in found} == {"ok"} and len(found) >= 5, found
    assert details["vllm_server"]["device"] == "cpu" and details["vllm_server"]["transfer"] == "nccl"


def test_its_key_is_asked_for(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "wrong")
    (found,) = server_findings(recipe, {})
    assert found.status == "failed" and found.hint and "VLLM_API_KEY" in found.hint


def test_it_follows_every_change_of_the_adapter(recipe: Recipe, there: Call) -> None:
    assert max(there(side.followed, recipe, 3)) < EXACT
    assert there(side.stale, recipe) > STALE


def test_it_takes_what_a_4_bit_base_is_trained_with(recipe: Recipe, there: Call) -> None:
    four = recipe.model_copy(update={"model": recipe.model.model_copy(update={"load_in_4bit": True})})
    assert max(there(side.followed, four, 1)) < EXACT


def test_the_proof_before_a_training(recipe: Recipe, there: Call) -> None:
    apart, apart_from_base = there(side.proven, recipe)
    assert apart < EXACT and apart_from_base > 100 * EXACT


@pytest.mark.parametrize("changes", [{}, {"top_k": 40}, {"top_p": 0.9}, {"min_p": 0.02}])
def test_its_log_probabilities_are_the_trainers(changes: dict[str, Any], recipe: Recipe, there: Call) -> None:
    found = there(side.logprob_differences, recipe, replace(SAMPLING, **changes))
    assert len(found) > 60 and max(found) < EXACT


def test_a_draw_depends_on_seed_prompt_and_sample_alone(recipe: Recipe, there: Call) -> None:
    calls = [{"samples": 2, "seed": 4}, {"samples": 2, "seed": 4, "batch_rows": 2},
             {"samples": 2, "seed": 4, "part": (3, None), "first": 3}, {"samples": 2, "seed": 5}]  # fmt: skip
    drawn = there(side.drawn, recipe, SAMPLING, calls)
    whole, small, half, other = ([row.token_ids for row in rows] for rows in drawn)
    assert whole == small and half == whole[6:] and other != whole
    assert len({tuple(ids) for ids in whole}) == len(whole)
    for row in drawn[0]:
        stopped = [token in SAMPLING.stop_token_ids for token in row.token_ids]
        assert sum(stopped[:-1]) == 0 and row.truncated != stopped[-1] and len(row.logprobs) == len(row.token_ids)


def test_a_training_draws_from_it(recipe: Recipe, there: Call) -> None:
    found = there(unsloth_side.train_tiny, recipe)
    assert found["raised"] is None, found
    steps = [line for line in lines(RunDir(Path(found["run"]))) if line["stage"] == "grpo"]
    assert max(line["logp_difference_max"] or 0 for line in steps) < EXACT
