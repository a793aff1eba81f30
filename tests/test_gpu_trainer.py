"""What Unsloth makes of TRL's trainer on a GPU is still what the toolkit counts on. Nothing is computed here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from models import child_environment
from toolkit.engine.resample import _PADDING

PICTURES = {
    "image_grid_thw", "image_position_ids", "image_sizes", "mm_token_type_ids", "num_images", "num_tiles",
    "pixel_attention_mask", "pixel_values", "spatial_shapes", "token_type_ids",
}  # fmt: skip
OFF = {"importance_sampling_ratio", "tool_mask", "unsloth_rollout_logps_as_old", "unsloth_sample_weight"}
"""Only with settings that the toolkit never makes."""


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """It writes its generated source into the folder that it runs in."""
    script = Path(__file__).with_name("gpu_trainer_side.py")
    found = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path_factory.mktemp("gpu"), capture_output=True, text=True, timeout=300,
        env=child_environment(),
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-3000:]
    return json.loads(found.stdout.rpartition("FACTS ")[2])


def test_its_configuration_takes_every_argument_and_keeps_it(facts: dict[str, Any]) -> None:
    assert facts["generated"] == "UnslothGRPOTrainer"
    assert (facts["kept"], facts["with dapo"]) == ("as asked", "as asked")


def test_with_vllm_it_keeps_every_argument_as_well(facts: dict[str, Any]) -> None:
    """For top_k 0 it would write -1: it is told so in the first place."""
    assert (facts["kept with vllm"], facts["kept with vllm and top_k"]) == ("as asked", "as asked")


def test_it_leaves_generating_to_the_toolkit(facts: dict[str, Any]) -> None:
    assert facts["promises broken"] == []


def test_the_warm_ups_configuration_takes_every_argument_and_keeps_it(facts: dict[str, Any]) -> None:
    assert facts["warm-up"] == "UnslothSFTTrainer"
    assert facts["changed in the warm-up"] == {}


def test_for_full_finetuning_it_holds_all_weights_in_float32_where_it_is_told_to(facts: dict[str, Any]) -> None:
    """As `load_arguments` tells it; left alone it trains bfloat16 weights, which is an error before the first step."""
    told, left_alone = facts["full fine-tuning"]
    assert told == "all of it" and "is in torch.bfloat16" in left_alone


def test_what_it_would_change_is_an_error(facts: dict[str, Any]) -> None:
    assert "scale_rewards" in facts["with dr_grpo"]


def test_all_that_it_puts_into_a_batch_of_text_can_be_put_together(facts: dict[str, Any]) -> None:
    known = {*_PADDING, "advantages", "num_items_in_batch", "max_left_pad"}
    assert set(facts["batch"]) == known | PICTURES | OFF
