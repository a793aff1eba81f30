"""Builds and runs TRL's trainers on a loaded policy: the supervised warm-up, then GRPO. It writes no records of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.engine.arguments import grpo_arguments, warmup_arguments
from toolkit.engine.lean import exact_for, lean_trainer
from toolkit.engine.load import Policy, quiet_progress
from toolkit.engine.machine import return_memory
from toolkit.engine.rollout import ROW_COLUMN, RewardRecorder, rollouts

if TYPE_CHECKING:
    from toolkit.recipe import Recipe
    from toolkit.tasks import Row

WarmupStep = Callable[[int, dict[str, Any]], bool]
"""Called after a supervised step with its number and logs; True asks to stop."""
GrpoStep = Callable[[int, dict[str, Any], list[dict[str, Any]]], bool]
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
        {"prompt": prompt, "completion": [{"role": "assistant", "content": completion}]}
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
    recorder = RewardRecorder(recipe.rewards, {row.id: row for row in rows})
    callback = _after_each_step(lambda step, logs: on_step(step, logs, recorder.take()))
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

    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # rollout_func is experimental, and pinned
    lean = policy.setting.device == "cpu" and recipe.grpo.beta == 0 and exact_for(policy.model)
    kind: Any = lean_trainer(trl.GRPOTrainer) if lean else trl.GRPOTrainer
    trainer = kind(
        model=policy.model,
        args=trl.GRPOConfig(**grpo_arguments(recipe, policy.setting, folder)),
        train_dataset=Dataset.from_list([{"prompt": recipe.task.messages(row), ROW_COLUMN: row.id} for row in rows]),
        reward_funcs=recorder.functions,
        processing_class=policy.tokenizer,
        callbacks=callbacks,
        **({} if policy.setting.fast_inference else {"rollout_func": rollouts(policy, recipe)}),
    )
    _without_printer(trainer)
    return trainer


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
