"""Every key of a recipe changes something that is built, and a machine changes only what it must."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from effects import CLASSIC, CPU, FILES, GPU, SAME, TASK_BASES, setting, warmup_rows
from recipe_keys import EFFECTS, WITH_GPU, base_of, leaves, with_values
from toolkit.engine import arguments, machine
from toolkit.engine.machine import Machine
from toolkit.rewards import REWARDS
from toolkit.tasks import TASKS


@pytest.fixture
def data(tmp_path: Path) -> Iterator[None]:
    """A folder with GSM8K files to be in."""
    lengths = [{"question": "What is " + "1" * n + "?", "answer": "#### 1"} for n in (17, 18, 19, 20)]
    for name, records in {**FILES, "lengths": lengths}.items():
        text = "".join(json.dumps(record) + "\n" for record in records)
        (tmp_path / f"{name}.jsonl").write_text(text, encoding="utf-8")
    (tmp_path / "runs" / "one" / "adapter").mkdir(parents=True)
    (tmp_path / "exports" / "one").mkdir(parents=True)
    with contextlib.chdir(tmp_path):
        yield


def test_every_key_stands_in_the_table_and_nothing_else() -> None:
    keys = set(leaves())
    assert keys - set(EFFECTS) == set(), "a new key needs an entry in recipe_keys.EFFECTS"
    assert set(EFFECTS) - keys == set()
    assert len(keys) > 60


@pytest.mark.parametrize("key", EFFECTS)
@pytest.mark.usefixtures("data")
def test_every_key_changes_what_is_built(key: str) -> None:
    effect = EFFECTS[key]
    before = effect.read(with_values(base_of(key), effect.given))
    after = effect.read(with_values(base_of(key), effect.given, {key: effect.value}))
    assert after != before
    if effect.expected is not None:
        assert after == (effect.value if effect.expected is SAME else effect.expected)


def test_a_name_chooses_the_class() -> None:
    recipe = with_values()
    assert [type(reward) for reward in recipe.rewards] == [REWARDS[name] for name in CLASSIC]
    for name, kind in TASKS.items():
        assert type(with_values({"task": TASK_BASES[name]}).task) is kind


def test_without_a_warm_up_nothing_is_warmed_up() -> None:
    assert warmup_rows(with_values({"warmup": None})) == 0
    assert warmup_rows(with_values()) == 4


# What the machine changes.


def test_a_gpu_keeps_what_it_can_do() -> None:
    recipe = with_values({"grpo.optim": "paged_adamw_8bit"}, WITH_GPU)
    resolved = setting(recipe, GPU)
    assert (resolved.optim, resolved.dtype, resolved.generator) == ("paged_adamw_8bit", "bfloat16", "unsloth")
    assert resolved.changes == ()


def test_a_cpu_replaces_what_it_cannot_do_and_says_so() -> None:
    asked = {
        "grpo.optim": "paged_adamw_8bit",
        "model.dtype": "float16",
        "model.load_in_8bit": True,
        "model.standby": True,
    }
    recipe = with_values(WITH_GPU, asked)
    resolved = setting(recipe)
    assert (resolved.optim, resolved.dtype, resolved.generator) == ("adamw_torch_fused", "bfloat16", "transformers")
    told = {change.key: (change.asked, change.used) for change in resolved.changes}
    assert told == {
        "model.fast_inference": (True, False), "grpo.optim": ("paged_adamw_8bit", "adamw_torch_fused"),
        "model.dtype": ("float16", "bfloat16"), "model.load_in_8bit": (True, False), "model.standby": (True, False),
    }  # fmt: skip
    assert not resolved.load_in_8bit and not resolved.standby
    assert all(change.why for change in resolved.changes)


@pytest.mark.parametrize(
    ("device", "bf16", "asked", "used"),
    [
        ("cpu", True, "auto", "bfloat16"), ("cpu", False, "auto", "float32"), ("cuda", False, "auto", "float16"),
        ("cpu", False, "float16", "float32"), ("cuda", False, "bfloat16", "float16"),
        ("cpu", True, "float32", "float32"), ("cpu", False, "bfloat16", "bfloat16"),
    ],
)  # fmt: skip
def test_the_dtype_is_one_the_machine_is_good_at(device: Any, bf16: bool, asked: str, used: str) -> None:
    resolved = setting(with_values({"model.dtype": asked}), Machine(device, bf16, "m", 2, 8.0))
    assert resolved.dtype == used
    told = any(change.key == "model.dtype" for change in resolved.changes)
    assert told == (asked not in ("auto", used))


@pytest.mark.parametrize(
    ("device", "memory_gib", "keys", "tokens"),
    [
        ("cpu", 8.0, {}, 4096),
        ("cpu", 64.0, {}, 8192),
        ("cuda", 16.0, {"model.fast_inference": False}, 16384),
        ("cuda", 16.0, WITH_GPU | {"model.gpu_memory_utilization": 0.5}, 8192),
        ("cuda", 16.0, WITH_GPU | {"model.gpu_memory_utilization": 0.5, "model.standby": True}, 16384),
        ("cuda", 141.0, {"model.fast_inference": False}, 32768),
    ],
)  # fmt: skip
def test_a_backward_pass_holds_what_the_memory_allows(
    device: Any, memory_gib: float, keys: dict[str, Any], tokens: int
) -> None:
    assert machine.tokens_per_pass(with_values(keys), Machine(device, True, "m", 2, memory_gib, vllm=True)) == tokens


@pytest.mark.parametrize("generations", [2, 3, 8])
@pytest.mark.parametrize("prompts", [1, 5, 8, 64])
@pytest.mark.parametrize("length", [20, 700, 5000])
def test_a_batch_divides_the_step_and_holds_whole_groups_where_they_fit(
    generations: int, prompts: int, length: int
) -> None:
    recipe = with_values(
        {"grpo.num_generations": generations, "grpo.prompts_per_step": prompts, "grpo.max_completion_length": length,
         "model.max_seq_length": 8192}
    )  # fmt: skip
    for on in (CPU, GPU):
        resolved = setting(recipe, on)
        built = arguments.grpo_arguments(recipe, resolved, Path())
        fits = max(1, machine.tokens_per_pass(recipe, on) // (96 + length))
        assert generations * prompts % resolved.batch_rows == 0
        assert resolved.batch_rows <= fits
        assert resolved.batch_rows % generations == 0 or fits < generations
        assert built["per_device_train_batch_size"] * built["steps_per_generation"] == generations * prompts
        assert built["gradient_accumulation_steps"] == built["steps_per_generation"]
