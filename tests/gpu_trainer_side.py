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

HERE = {"bf16": False, "use_cpu": True, "dataloader_pin_memory": False}
"""What a machine without a GPU cannot be told."""


def generated() -> Any:
    """The module trl, with the trainer that Unsloth generates for a GPU in it."""
    os.environ.update(UNSLOTH_ALLOW_CPU="1", UNSLOTH_DISABLE_STATISTICS="1")
    import unsloth  # noqa: F401  (before trl)
    from unsloth.models.rl import _patch_trl_rl_trainers

    _patch_trl_rl_trainers("grpo_trainer")
    _patch_trl_rl_trainers("sft_trainer")
    import trl

    return trl


def kept(trl: Any, *, vllm: bool = False, **grpo: object) -> str:
    """Whether the configuration takes a recipe's arguments and holds them; else what it would do instead."""
    from models import small_recipe
    from toolkit.engine.arguments import grpo_arguments
    from toolkit.engine.machine import Machine, resolve
    from toolkit.engine.trainers import _as_asked
    from toolkit.errors import EngineError

    recipe = small_recipe("org/base", model={"dtype": "auto"}, grpo=grpo)
    setting = resolve(recipe, Machine("cuda", bf16=True, name="a GPU", threads=8, memory_gib=64.0, vllm=vllm))
    assert setting.generator == ("unsloth" if vllm else "transformers")
    try:
        _as_asked(trl.GRPOConfig, grpo_arguments(recipe, setting, Path("folder")) | HERE)
    except EngineError as error:
        return error.message
    return "as asked"


def changed_in_warmup(trl: Any) -> dict[str, Any]:
    """What the configuration of the warm-up holds otherwise than it was told, as [told, held]."""
    from models import small_recipe
    from toolkit.engine.arguments import warmup_arguments
    from toolkit.engine.machine import Machine, resolve

    recipe = small_recipe("org/base")
    gpu = Machine("cuda", bf16=True, name="a GPU", threads=8, memory_gib=64.0)
    told = warmup_arguments(recipe, resolve(recipe, gpu), Path("folder"))
    told |= {name: value for name, value in HERE.items() if name in told}
    held = trl.SFTConfig(**told)
    both = {name: (value, getattr(held, name)) for name, value in told.items()}
    both.pop("report_to")  # "none" becomes an empty list
    return {name: list(map(str, pair)) for name, pair in both.items() if pair[0] != pair[1]}


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


PROMISES = {
    "a model with an engine turns use_vllm on": "== False):\n                args.use_vllm = True",
    "rollout_func generates": "output = self.rollout_func(prompts, self)",
    "a shared engine gets no weights": "if not getattr(getattr(self.vllm_generation, 'llm', None), 'shared_weights', False)",
    "it goes back to training after generating": "self.model.for_training(use_gradient_checkpointing=_use_gc)",
}
"""What the toolkit counts on, by the lines that do it."""


def trained_whole(*, float32: bool) -> str:
    """What `whole` says of a bfloat16 model that Unsloth prepares for full fine-tuning on a GPU."""
    import torch
    from unsloth_zoo.training_utils import prepare_model_for_training

    from models import tiny_llama
    from toolkit.engine.whole import require_trainable
    from toolkit.errors import EngineError

    whole = dict.fromkeys(("full_finetuning", "train_layernorms", "train_embedding", "train_lm_head"), True)
    model = tiny_llama().to(torch.bfloat16)
    model.config.dtype = torch.bfloat16
    prepare_model_for_training(
        model, use_gradient_checkpointing=False, use_reentrant=True, float32_mixed_precision=float32, **whole
    )
    try:
        require_trainable(model)
    except EngineError as error:
        return error.message
    return "all of it"


def main() -> None:
    trl = generated()
    source = inspect.getsource(inspect.getmodule(trl.GRPOTrainer))  # type: ignore[arg-type]
    facts = {
        "kept with vllm": kept(trl, vllm=True),
        "kept with vllm and top_k": kept(trl, vllm=True, top_k=5),
        "promises broken": [promise for promise, line in PROMISES.items() if line not in source],
        "generated": trl.GRPOTrainer.__name__,
        "kept": kept(trl),
        "with dapo": kept(trl, loss_type="dapo"),
        "with dr_grpo": kept(trl, loss_type="dr_grpo"),
        "warm-up": trl.SFTTrainer.__name__,
        "changed in the warm-up": changed_in_warmup(trl),
        "batch": batch_keys(trl.GRPOTrainer),
        "full fine-tuning": [trained_whole(float32=True), trained_whole(float32=False)],
    }
    sys.stdout.write("\nFACTS " + json.dumps(facts))


if __name__ == "__main__":
    main()
