"""Imports Unsloth as on a machine with a GPU and writes, as JSON, what its generated GRPO trainer takes and makes.

Run by test_gpu_trainer.py in a process and a folder of its own; no GPU is needed, as nothing is computed.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

HERE = {"bf16": False, "use_cpu": True, "use_vllm": False, "dataloader_pin_memory": False}
"""What a machine without a GPU cannot be told."""


def generated() -> Any:
    """The module trl, with the trainer that Unsloth generates for a GPU in it."""
    os.environ.update(UNSLOTH_ALLOW_CPU="1", UNSLOTH_DISABLE_STATISTICS="1")
    import unsloth  # noqa: F401  (before trl)
    from unsloth.models.rl import _patch_trl_rl_trainers

    _patch_trl_rl_trainers("grpo_trainer")
    import trl

    return trl


def kept(trl: Any, **grpo: object) -> str:
    """Whether the configuration takes a recipe's arguments and holds them; else what it would do instead."""
    from models import small_recipe
    from toolkit.engine.arguments import grpo_arguments
    from toolkit.engine.machine import Machine, resolve
    from toolkit.engine.trainers import _as_asked
    from toolkit.errors import EngineError

    recipe = small_recipe("org/base", grpo=grpo)
    gpu = Machine("cuda", bf16=True, name="a GPU", threads=8, memory_gib=64.0)
    try:
        _as_asked(trl.GRPOConfig, grpo_arguments(recipe, resolve(recipe, gpu), Path("folder")) | HERE)
    except EngineError as error:
        return error.message
    return "as asked"


def batch_keys(trainer: type) -> list[str]:
    """All names under which the trainer puts something into a generated batch."""
    maker = next(kind for kind in trainer.__mro__ if "_generate_and_score_completions" in vars(kind))
    module = inspect.getmodule(maker)
    assert module is not None
    source = inspect.getsource(module)
    start = source.index("def _generate_and_score_completions")
    body = source[start : source.index("\n    def ", start)]
    literal = re.findall(r'"(\w+)":', body[body.index("output = {") :].partition("}")[0])
    return sorted({*literal, *re.findall(r'output\["(\w+)"\] =', body)})


def main() -> None:
    trl = generated()
    facts = {
        "generated": trl.GRPOTrainer.__name__,
        "kept": kept(trl),
        "with dapo": kept(trl, loss_type="dapo"),
        "with dr_grpo": kept(trl, loss_type="dr_grpo"),
        "batch": batch_keys(trl.GRPOTrainer),
    }
    sys.stdout.write("\nFACTS " + json.dumps(facts))


if __name__ == "__main__":
    main()
