"""Imports Unsloth as on a machine with a GPU and prints, as JSON, what its generated GRPO trainer takes and makes.

Run by test_gpu_trainer.py in a process and a folder of its own; no GPU is needed, as nothing is computed.
"""

from __future__ import annotations

import os

os.environ.update(UNSLOTH_ALLOW_CPU="1", UNSLOTH_DISABLE_STATISTICS="1")

import inspect
import json
import re
from pathlib import Path

import unsloth  # noqa: F401  (before trl)
from unsloth.models.rl import _patch_trl_rl_trainers

_patch_trl_rl_trainers("grpo_trainer")
import trl

from models import small_recipe
from toolkit.engine.arguments import grpo_arguments
from toolkit.engine.machine import Machine, resolve
from toolkit.engine.trainers import _as_asked
from toolkit.errors import EngineError

HERE = {"bf16": False, "use_cpu": True, "use_vllm": False, "dataloader_pin_memory": False}
"""What a machine without a GPU cannot be told."""


def kept(**grpo: object) -> str:
    """The configuration takes the recipe's arguments and holds them; else what it would do instead."""
    recipe = small_recipe("org/base", grpo=grpo)
    gpu = Machine("cuda", bf16=True, name="a GPU", threads=8, memory_gib=64.0)
    try:
        _as_asked(trl.GRPOConfig, grpo_arguments(recipe, resolve(recipe, gpu), Path("folder")) | HERE)
    except EngineError as error:
        return error.message
    return "as asked"


maker = next(kind for kind in trl.GRPOTrainer.__mro__ if "_generate_and_score_completions" in vars(kind))
source = inspect.getsource(inspect.getmodule(maker))  # type: ignore[arg-type]
start = source.index("def _generate_and_score_completions")
body = source[start : source.index("\n    def ", start)]
literal = re.findall(r'"(\w+)":', body[body.index("output = {") :].partition("}")[0])
facts = {
    "generated": trl.GRPOTrainer.__name__,
    "kept": kept(),
    "with dapo": kept(loss_type="dapo"),
    "with dr_grpo": kept(loss_type="dr_grpo"),
    "batch": sorted({*literal, *re.findall(r'output\["(\w+)"\] =', body)}),
}
print("\nFACTS " + json.dumps(facts))
