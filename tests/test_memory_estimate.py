"""The memory estimate against the peak that short, real trainings record: within 20 %. The table in docs/preflight.md is made so.

Completions have the length that the estimate counts with: at temperature 10 SmolLM2 hardly ever stops by itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from models import byte_tokenizer, child_environment, tiny_llama
from toolkit import console
from toolkit.atomic import read_json
from toolkit.engine.machine import this_machine
from toolkit.estimate import MARGIN, estimate, shape_of
from toolkit.recipe import load_recipe

pytest_plugins = ("shared",)

PROMPT = 54
"""Tokens of the prompts below after SmolLM2's template."""
CASES: dict[str, dict[str, Any]] = {
    "smollm2, 8 rows": {"prompts_per_step": 2, "num_generations": 4, "gradient_checkpointing": False},
    "smollm2, 16 rows, checkpointing": {"prompts_per_step": 2, "num_generations": 8},
    "smollm2, 16 rows": {"prompts_per_step": 2, "num_generations": 8, "gradient_checkpointing": False},
    "smollm2, 4 bits, 8 rows": {"prompts_per_step": 2, "num_generations": 4, "load_in_4bit": True},
    "smollm2, 32 rows of 32": {
        "prompts_per_step": 4, "num_generations": 8, "max_completion_length": 32, "gradient_checkpointing": False,
    },
    "random, 16 rows of 200": {
        "prompts_per_step": 4, "num_generations": 4, "max_completion_length": 200, "gradient_checkpointing": False,
        "temperature": 1.0,
    },
}  # fmt: skip
QUICK = ("smollm2, 8 rows", "random, 16 rows of 200")
"""Those that every run of the tests measures: a minute of one core. TEST_MEMORY=1 measures all."""
PROMPT_OF_BYTES = 115


@pytest.fixture(scope="module")
def random_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Few, wide layers and a vocabulary of bytes: activations are nearly all of it. It hardly ever ends an answer: the end
    token's logit is 0, and the others' spread is 3."""
    import torch

    folder = tmp_path_factory.mktemp("random") / "checkpoint"
    sizes = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8, "num_attention_heads": 8}
    model = tiny_llama(**sizes, num_key_value_heads=4, initializer_range=0.02, tie_word_embeddings=False)
    with torch.no_grad():
        model.lm_head.weight.normal_(std=3 / 512**0.5)
        model.lm_head.weight[256] = 0
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def recipe_file(folder: Path, source: Path, case: dict[str, Any], prompt: int) -> Path:
    keys = dict(case)
    batch = keys["prompts_per_step"] * keys["num_generations"]
    grpo = {
        "max_steps": 2, "max_prompt_length": prompt, "max_completion_length": 64, "temperature": 10.0, "save_steps": 9,
        "learning_rate": 1e-6,
    }  # fmt: skip
    in_4bit = keys.pop("load_in_4bit", False)
    recipe = {
        "model": {"source": str(source), "max_seq_length": 512, "load_in_4bit": in_4bit, "fast_inference": False},
        "task": {"name": "prompts", "prompts": [f"Say {'word ' * 20}{n}" for n in range(10, 30)], "heldout_rows": 2},
        "rewards": [{"name": "length", "ideal": 8, "unit": "characters", "form": "distance"}],
        "grpo": grpo | {"per_device_train_batch_size": batch} | keys,
        "export": {"gguf": []},
    }
    (folder / "mine.yaml").write_text(json.dumps(recipe), encoding="utf-8")
    return folder / "mine.yaml"


@pytest.mark.parametrize("name", CASES)
def test_the_estimate_is_within_its_margin_of_the_measured_peak(
    name: str, smollm2: Path, random_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if name not in QUICK and os.environ.get("TEST_MEMORY") != "1":
        pytest.skip("TEST_MEMORY=1 measures every case")
    source, prompt = (random_llama, PROMPT_OF_BYTES) if name.startswith("random") else (smollm2, PROMPT)
    path = recipe_file(tmp_path, source, CASES[name], prompt)
    command = [sys.executable, "-m", "toolkit", "train", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env=child_environment(), cwd=tmp_path, timeout=900)
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-3000:]
    (run,) = (tmp_path / "runs").iterdir()
    lengths = [json.loads(line)["completion_length"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    measured = read_json(run / "state.json")["peak_memory_gib"]["GRPO"]
    recipe = load_recipe(str(path)).recipe
    found = estimate(recipe, shape_of(recipe.model), this_machine())
    figures = f"{name}: estimated {found.gib:.2f}, measured {measured:.2f} GiB, {found.gib / measured - 1:+.0%}"
    if os.environ.get("TEST_MEMORY") == "1":
        with capsys.disabled():
            console.say(figures)
    assert min(lengths) > 0.9 * recipe.grpo.max_completion_length, "else it measures something else"
    assert read_json(run / "manifest.json")["preflight"]["memory"]["peak_gib"] == pytest.approx(found.gib, abs=0.01)
    assert abs(found.gib / measured - 1) < MARGIN, figures
