"""From a recipe and a machine's setting to the arguments of Unsloth, peft and TRL: pure mappings, nothing is built here.

Every argument that decides the algorithm is passed, never left to a default: TRL's defaults and Unsloth's differ, and both change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from toolkit.engine.completions import Sampling
from toolkit.engine.trackers import tracker_arguments

if TYPE_CHECKING:
    from pathlib import Path

    from toolkit.engine.machine import Setting
    from toolkit.recipe import Recipe


DECIDED: dict[str, Any] = {
    # How several rewards become one advantage: the weighted sum, then `scale_rewards`. The other way is GDPO (arXiv 2601.05242).
    "multi_objective_aggregation": "sum_then_normalize",
    # The KL estimator of GRPO's paper (arXiv 2402.03300, eq. 4); DeepSeek-V3.2's correction of it is TRL's default.
    "use_bias_correction_kl": False,
    # The reference stays the base model: no TR-DPO (arXiv 2404.09656).
    "sync_ref_model": False,
    # All tokens are trained on, whatever their entropy (not arXiv 2506.01939) and however far the policy has moved
    # (not arXiv 2512.02556); no bonus for entropy.
    "top_entropy_quantile": 1.0,
    "off_policy_mask_threshold": None,
    "entropy_coef": 0.0,
    "use_adaptive_entropy": False,
    # vLLM's log-probabilities and the trainer's differ a little. Uncorrected, as in Unsloth: one algorithm on GPU and CPU.
    "vllm_importance_sampling_correction": False,
    "vllm_importance_sampling_mode": "sequence_mask",
    "vllm_importance_sampling_clip_max": 3.0,
    "vllm_importance_sampling_clip_min": None,
    # Nothing is added to what the recipe says of sampling and of the chat template.
    "generation_kwargs": None,
    "chat_template_kwargs": None,
    "vllm_structured_outputs_regex": None,
    # The model computes as it was loaded.
    "disable_dropout": False,
    "cast_lm_head_to_fp32": False,
    "router_aux_loss_coef": 0.0,
    "use_liger_kernel": False,
    # The batch is the recipe's, a resumed run goes on in the data where it stopped, and the last weights are the result.
    "auto_find_batch_size": False,
    "ignore_data_skip": False,
    "load_best_model_at_end": False,
    # The optimiser and its schedule, where the recipe has no key.
    "adam_epsilon": 1e-8,
    "optim_args": None,
    "optim_target_modules": None,
    "lr_scheduler_kwargs": None,
    "neftune_noise_alpha": None,
}
"""What decides the algorithm and is no key of a recipe. With TRL's and Unsloth's defaults it would change under a recipe."""

FROM_RECIPE = (
    "num_generations", "max_completion_length", "max_steps", "learning_rate", "temperature", "top_p", "top_k", "min_p",
    "repetition_penalty", "beta", "loss_type", "scale_rewards", "importance_sampling_level", "epsilon", "epsilon_high",
    "delta", "num_iterations", "mask_truncated_completions", "adam_beta1", "adam_beta2", "weight_decay", "warmup_steps",
    "lr_scheduler_type", "max_grad_norm", "save_steps",
)  # fmt: skip
"""Keys of `grpo` that TRL knows by the same name."""


def load_arguments(recipe: Recipe, setting: Setting, source: str) -> dict[str, Any]:
    """For `FastLanguageModel.from_pretrained`."""
    model = recipe.model
    arguments: dict[str, Any] = {
        "model_name": source,
        "revision": None if setting.generator == "unsloth" else model.revision,  # its vLLM gets that revision's folder
        "max_seq_length": model.max_seq_length,
        "load_in_4bit": model.load_in_4bit,
        "load_in_8bit": setting.load_in_8bit,
        "full_finetuning": model.full_finetuning,
        "dtype": setting.dtype,
        "fast_inference": setting.generator == "unsloth",
        "use_gradient_checkpointing": checkpointing(recipe),
        "random_state": recipe.seed,
    }
    if model.full_finetuning and setting.device == "cuda":
        # The weights in float32, the arithmetic in `dtype`. Unsloth's own choice for bfloat16 is weights in bfloat16, whose
        # steps are larger than an optimiser's. (Its CPU loader knows no such argument, and loads `dtype`: float32.)
        arguments["float32_mixed_precision"] = True
    if setting.generator == "unsloth":
        arguments |= {"gpu_memory_utilization": model.gpu_memory_utilization, "max_lora_rank": model.lora.r}
    return arguments


def adapter_arguments(recipe: Recipe) -> dict[str, Any]:
    """For `FastLanguageModel.get_peft_model`."""
    lora = recipe.model.lora
    return {
        "r": lora.r,
        "lora_alpha": lora.lora_alpha,
        "lora_dropout": lora.lora_dropout,
        "target_modules": list(lora.target_modules),
        "use_rslora": lora.use_rslora,
        "bias": "none",
        "random_state": recipe.seed,
        "use_gradient_checkpointing": checkpointing(recipe),
    }


def checkpointing(recipe: Recipe) -> str | bool:
    """Unsloth's own kind, which also moves activations off the GPU, or none."""
    return "unsloth" if recipe.grpo.gradient_checkpointing else False


def grpo_arguments(recipe: Recipe, setting: Setting, folder: Path) -> dict[str, Any]:
    """For `trl.GRPOConfig`."""
    grpo = recipe.grpo
    passes = grpo.completions_per_step // setting.processes // setting.batch_rows
    return {
        **_common(recipe, setting, folder),
        **DECIDED,
        **{name: getattr(grpo, name) for name in FROM_RECIPE},
        "optim": setting.optim,
        "per_device_train_batch_size": setting.batch_rows,
        "gradient_accumulation_steps": passes,
        "steps_per_generation": passes,
        "reward_weights": [reward.weight for reward in recipe.rewards],
        "gradient_checkpointing": grpo.gradient_checkpointing,
        "use_vllm": setting.generator == "unsloth",
        "top_k": top_k(recipe, setting),
        "logging_steps": 1,
        "save_strategy": "steps",
        "save_total_limit": 2,
        "shuffle_dataset": True,
        "remove_unused_columns": False,
        **tracker_arguments(recipe.report_to, folder.parent.name),
    }


def top_k(recipe: Recipe, setting: Setting) -> int:
    """As the trainer is told: where it knows of vLLM, "all tokens" is -1, and Unsloth's writes that for 0."""
    return -1 if setting.generator == "unsloth" and recipe.grpo.top_k == 0 else recipe.grpo.top_k


def warmup_arguments(recipe: Recipe, setting: Setting, folder: Path) -> dict[str, Any]:
    """For `trl.SFTConfig`. Only the completion is learned, not the prompt."""
    warmup = recipe.warmup
    assert warmup is not None
    return {
        **_common(recipe, setting, folder),
        "max_steps": warmup.max_steps,
        "per_device_train_batch_size": warmup.batch_size // setting.processes,
        "gradient_accumulation_steps": 1,
        "learning_rate": warmup.learning_rate,
        "lr_scheduler_type": "linear",
        "warmup_steps": 0.1,
        "optim": setting.optim,
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "max_length": recipe.model.max_seq_length,
        "completion_only_loss": True,
        "packing": False,
        "save_strategy": "no",
        "logging_steps": 1,
        "gradient_checkpointing": recipe.grpo.gradient_checkpointing,
    }


def _common(recipe: Recipe, setting: Setting, folder: Path) -> dict[str, Any]:
    return {
        "output_dir": str(folder),
        "seed": recipe.seed,
        "data_seed": recipe.seed,
        "bf16": setting.device == "cuda" and setting.dtype == "bfloat16",
        "fp16": setting.device == "cuda" and setting.dtype == "float16",
        "use_cpu": setting.device == "cpu",
        # Torch's DDP: every adapter takes part in every pass. On a GPU Unsloth decides, by the kind of model.
        **({"ddp_find_unused_parameters": False} if setting.device == "cpu" and setting.processes > 1 else {}),
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": setting.device == "cuda",
    }


def training_sampling(recipe: Recipe, stop_token_ids: tuple[int, ...]) -> Sampling:
    """How rollouts are drawn, and the samples of the evaluation."""
    grpo = recipe.grpo
    return Sampling(
        max_new_tokens=grpo.max_completion_length,
        temperature=grpo.temperature,
        top_p=grpo.top_p,
        top_k=grpo.top_k,
        min_p=grpo.min_p,
        repetition_penalty=grpo.repetition_penalty,
        stop_token_ids=stop_token_ids,
    )
