"""Fields of TRL's GRPOConfig that the toolkit leaves at their defaults, each with the reason why that decides no result.

A new TRL may bring a field that stands neither here nor among the arguments: then somebody has to think about it.
"""

from __future__ import annotations

UNDECIDED: dict[str, str] = {
    "the number of steps decides": "num_train_epochs",
    "follows from others that are passed": "generation_batch_size",
    "the model is loaded by then": "model_init_kwargs trust_remote_code",
    "TRL's trainer for GRPO does not read it": """
        label_smoothing_factor label_names train_sampling_strategy length_column_name prediction_loss_only liger_kernel_config
        dataloader_drop_last do_train do_eval do_predict resume_from_checkpoint
    """,
    "speed, memory and rounding": """
        tf32 gradient_checkpointing_kwargs torch_compile torch_compile_backend torch_compile_mode use_cache
        torch_empty_cache_steps full_determinism pad_to_multiple_of cache_implementation bf16_full_eval fp16_full_eval
        dataloader_persistent_workers dataloader_prefetch_factor dataloader_multiprocessing_context dataloader_in_order
    """,
    "logs, hubs and checkpoints": """
        logging_strategy logging_first_step log_on_each_node logging_nan_inf_filter include_num_input_tokens_seen log_level
        log_level_replica run_name project trackio_space_id trackio_bucket_id trackio_static_space_id save_only_model
        save_on_each_node enable_jit_checkpoint push_to_hub hub_token hub_private_repo hub_model_id hub_strategy
        hub_always_push hub_revision restore_callback_states_from_checkpoint debug skip_memory_metrics log_completions
        log_multimodal num_completions_to_print log_unique_prompts log_completions_hub_repo
    """,
    "there is no evaluation while it trains": """
        eval_strategy eval_steps eval_delay per_device_eval_batch_size eval_on_start eval_do_concat_batches
        eval_use_gather_object eval_accumulation_steps include_for_metrics batch_eval_metrics metric_for_best_model
        greater_is_better num_generations_eval
    """,
    "one process": """
        average_tokens_across_devices accelerator_config parallelism_config ddp_find_unused_parameters ddp_bucket_cap_mb
        ddp_broadcast_buffers ddp_static_graph ddp_backend ddp_timeout fsdp fsdp_config deepspeed local_rank
        ds3_gather_for_generation
    """,
    "the toolkit or Unsloth generates": """
        vllm_mode vllm_model_impl vllm_enable_sleep_mode vllm_server_base_url vllm_server_host vllm_server_port
        vllm_server_timeout vllm_group_port vllm_gpu_memory_utilization vllm_max_model_length vllm_tensor_parallel_size
        use_transformers_continuous_batching transformers_continuous_batching_config use_transformers_paged
    """,
    "belongs to something that is passed as off": """
        ref_model_mixup_alpha ref_model_sync_steps entropy_coef_min entropy_coef_max entropy_coef_delta entropy_target
        vllm_importance_sampling_cap
    """,
    "belongs to a loss that no recipe can name": """
        sapo_temperature_neg sapo_temperature_pos vespo_k_pos vespo_lambda_pos vespo_k_neg vespo_lambda_neg
    """,
    "there are no tools": "max_tool_calling_iterations",
}


def undecided() -> list[str]:
    return [name for names in UNDECIDED.values() for name in names.split()]
