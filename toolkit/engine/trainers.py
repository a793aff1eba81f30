"""Builds and runs TRL's trainers on a loaded policy: the supervised warm-up, then GRPO. It writes no records of its own."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.engine.adapter_guard import require_handed_over, require_trained_adapter
from toolkit.engine.arguments import DECIDED, FROM_RECIPE, grpo_arguments, warmup_arguments
from toolkit.engine.lean import exact_for, lean_trainer
from toolkit.engine.lean_packed import can_pack
from toolkit.engine.lean_parallel import averaging_trainer
from toolkit.engine.load import Policy, quiet_progress
from toolkit.engine.machine import return_memory
from toolkit.engine.resample import resampling_trainer
from toolkit.engine.rollout import ROW_COLUMN, Entry, RewardRecorder, rollouts
from toolkit.engine.sampled import comparing_trainer
from toolkit.engine.surroundings import surroundings
from toolkit.engine.trackers import prepare_tracker
from toolkit.errors import EngineError
from toolkit.parallel.environment import first as first_process

if TYPE_CHECKING:
    from toolkit.recipe import Recipe
    from toolkit.tasks import Row

WarmupStep = Callable[[int, dict[str, Any]], bool]
"""Called after a supervised step with its number and logs; True asks to stop."""
GrpoStep = Callable[[int, dict[str, Any], list[Entry]], bool]
"""Called after a GRPO step with its number, logs and completions; True asks to save and stop."""


def run_warmup(
    policy: Policy,
    recipe: Recipe,
    examples: Sequence[tuple[list[dict[str, str]], str]],
    folder: Path,
    on_step: WarmupStep,
) -> None:
    """Supervised steps on (prompt messages, worked completion) pairs; the adapter in `policy` learns."""
    import trl
    from datasets import Dataset

    rows = [
        {"prompt": policy.template.chat(prompt), "completion": [{"role": "assistant", "content": completion}]}
        for prompt, completion in examples
    ]
    with quiet_progress():
        trainer = trl.SFTTrainer(
            model=policy.model,
            args=trl.SFTConfig(**warmup_arguments(recipe, policy.setting, folder)),
            train_dataset=Dataset.from_list(rows),
            processing_class=policy.tokenizer,
            callbacks=[_after_each_step(on_step)],
        )
        _without_printer(trainer)
        trainer.train()


def run_grpo(
    policy: Policy,
    recipe: Recipe,
    rows: Sequence[Row],
    folder: Path,
    on_step: GrpoStep,
    *,
    resume: Path | None,
) -> bool:
    """GRPO on these rows from the adapter in `policy`, or from a checkpoint. False where `on_step` stopped it early."""
    around = surroundings(recipe, policy)
    rewards = [reward.within(around) for reward in recipe.rewards]
    recorder = RewardRecorder(rewards, {row.id: row for row in rows}, stop_token_ids=policy.stop_token_ids)
    callback = _after_each_step(lambda step, logs: on_step(step, logs, recorder.take()))
    if policy.setting.generator == "unsloth":
        require_trained_adapter(policy)
    elif policy.remote and first_process():
        require_handed_over(policy)
    with quiet_progress():
        trainer = build_grpo_trainer(policy, recipe, rows, recorder, folder, [callback])
        trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    return trainer.state.global_step >= recipe.grpo.max_steps


def build_grpo_trainer(
    policy: Policy,
    recipe: Recipe,
    rows: Sequence[Row],
    recorder: RewardRecorder,
    folder: Path,
    callbacks: list[Any],
) -> Any:
    """TRL's GRPOTrainer as the recipe and the machine want it."""
    import trl
    from datasets import Dataset

    prepare_tracker(recipe.report_to, folder.parent)
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # rollout_func is experimental, and pinned
    logging.getLogger("trl.trainer.grpo_trainer").setLevel(logging.ERROR)  # prints whole completions that nobody judged
    lean = (
        policy.setting.device == "cpu" and recipe.grpo.beta == 0 and exact_for(policy.model) and can_pack(policy.model)
    )
    kind: Any = trl.GRPOTrainer if policy.setting.device == "cuda" else comparing_trainer(trl.GRPOTrainer)
    kind = lean_trainer(kind) if lean else kind
    kind = averaging_trainer(kind) if lean and policy.setting.processes > 1 else kind
    if recipe.grpo.resample_rounds:
        kind = resampling_trainer(kind, recorder, recipe, [row.id for row in rows])
    arguments = grpo_arguments(recipe, policy.setting, folder)
    config = _as_asked(trl.GRPOConfig, arguments)
    _unnumbered(config)
    trainer = kind(
        model=policy.model,
        args=config,
        train_dataset=Dataset.from_list(
            [{"prompt": policy.template.chat(recipe.task.messages(row)), ROW_COLUMN: row.id} for row in rows]
        ),
        reward_funcs=recorder.functions,
        processing_class=policy.tokenizer,
        callbacks=callbacks,
        rollout_func=rollouts(policy, recipe),
    )
    _require_held(trainer.args, arguments)  # Unsloth's changes it once more while the trainer is built
    _without_printer(trainer)
    if "ref" in getattr(policy.model, "peft_config", ()):
        # TRL's copy of the adapter as it is now. Without it the KL term's reference is the base model, as in Unsloth's trainer.
        policy.model.delete_adapter("ref")
    return trainer


def _as_asked(kind: Any, arguments: dict[str, Any]) -> Any:
    """The configuration with these arguments. Unsloth's replaces some that it holds for mistakes: that is an error here."""
    config = kind(**arguments)
    _require_held(config, arguments)
    return config


def _unnumbered(config: Any) -> None:
    """accelerate numbers the processor by process, as cpu:1; where a trainer reads its state to that place, torch knows none."""
    if config.device.type == "cpu" and config.device.index is not None:
        config.distributed_state.device = config.__dict__["_setup_devices"] = type(config.device)("cpu")


HELD = (
    *DECIDED, *FROM_RECIPE, "optim", "per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation",
    "use_vllm", "reward_weights", "seed", "data_seed", "gradient_checkpointing",
)  # fmt: skip
"""What is read back from a configuration."""


def _require_held(config: Any, arguments: dict[str, Any]) -> None:
    for name in HELD:
        held, asked = getattr(config, name), arguments[name]
        if held != asked:
            hint = f"grpo.{name}: {held}" if name in FROM_RECIPE else None
            raise EngineError(f"the trainer would use {name} {held!r} where {asked!r} was asked for", hint=hint)


def _without_printer(trainer: Any) -> None:
    from transformers import PrinterCallback

    trainer.remove_callback(PrinterCallback)


def _after_each_step(on_step: Callable[[int, dict[str, Any]], bool]) -> Any:
    from transformers import TrainerCallback

    class AfterEachStep(TrainerCallback):
        """Hands each step's log to the caller, who may ask to stop; what was reached is saved then."""

        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
            return_memory()
            if logs and "loss" in logs and on_step(state.global_step, logs):
                control.should_save = True
                control.should_training_stop = True

    return AfterEachStep()
