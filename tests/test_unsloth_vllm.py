"""vLLM answers with the adapter that is trained, as Unsloth hands it over: on a real engine, on a processor."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from models import byte_tokenizer, child_environment, tiny_llama

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("vllm")
    # vLLM's attention kernel for processors wants heads of 32.
    tiny_llama(head_dim=32, hidden_size=128, vocab_size=288).save_pretrained(folder / "base")
    byte_tokenizer().save_pretrained(folder / "base")
    script = Path(__file__).with_name("unsloth_vllm_side.py")
    found = subprocess.run(
        [sys.executable, str(script), str(folder / "base")], cwd=folder, capture_output=True, text=True, timeout=600,
        env=child_environment(),
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-3000:]
    return json.loads(found.stdout.rpartition("FACTS ")[2])


def test_log_probabilities_are_those_of_the_model_in_training(facts: dict[str, Any]) -> None:
    assert max(facts["apart"]) < 1e-4 and facts["adapter changes"]


def test_the_adapter_goes_along_as_it_is_now(facts: dict[str, Any]) -> None:
    worst, differs = facts["follows training"]
    assert worst < 1e-4 and differs


def test_vllm_leaves_the_live_weights_alone(facts: dict[str, Any]) -> None:
    """Where types are the same it would multiply `lora_B` by alpha / r in place, with every draw."""
    assert facts["live weights stay"] and facts["guard leaves"]


def test_a_saved_adapter_answers_as_the_live_one(facts: dict[str, Any]) -> None:
    assert facts["saved as live"]


def test_a_draw_depends_on_its_seed_and_prompt_alone(facts: dict[str, Any]) -> None:
    assert facts["whatever is beside it"] and facts["seeds differ"]
    assert sorted(facts["order"]) == [0, 0, 0, 1, 1, 1, 2, 2, 2] and facts["greedy first"]


def test_a_stop_token_of_the_toolkit_stops(facts: dict[str, Any]) -> None:
    assert facts["stops"] == [True, True, False]


def test_the_engine_is_read_back(facts: dict[str, Any]) -> None:
    assert "model.gpu_memory_utilization" in facts["read back"]


def test_the_guard_tells_the_adapter_from_the_base(facts: dict[str, Any]) -> None:
    apart, apart_from_base = facts["guard"]
    assert apart < 1e-4 and apart_from_base > 0.1


@pytest.mark.parametrize("fault", ["adapter lost", "saved adapter lost", "stale id"])
def test_an_adapter_that_does_not_reach_vllm_is_an_error(facts: dict[str, Any], fault: str) -> None:
    assert "does not reach vLLM" in facts[fault]


def test_an_adapter_on_another_scale_is_an_error(facts: dict[str, Any]) -> None:
    assert "does not answer as the model in training" in facts["other scale"]
