"""The adapter between trainer, file and Unsloth's vLLM. Its form on a processor, with a real vLLM, is tests/test_unsloth_vllm.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from models import child_environment


@pytest.fixture(scope="module")
def facts(base: Path, device: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if device != "cuda":
        pytest.skip("no CUDA device")
    script = Path(__file__).with_name("lora_side.py")
    environment = child_environment()
    environment["PYTHONPATH"] += f":{script.parents[1]}"
    found = subprocess.run(
        [sys.executable, str(script), str(base)], cwd=tmp_path_factory.mktemp("lora"), capture_output=True, text=True,
        timeout=1800, env=environment,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-3000:]
    return json.loads(found.stdout.rpartition("FACTS ")[2])


def test_what_is_saved_is_the_adapter_tensor_for_tensor(facts: dict[str, Any]) -> None:
    assert facts["tensors that differ"] == facts["tensors that differ in ours"] == []


def test_vllm_answers_with_the_saved_adapter_as_with_the_live_one(facts: dict[str, Any]) -> None:
    assert facts["adapter changes"] and facts["saved as live"]


def test_vllms_log_probabilities_are_nearer_to_the_model_than_to_the_base(facts: dict[str, Any]) -> None:
    apart, apart_from_base = facts["guard"]
    assert apart < apart_from_base / 3
