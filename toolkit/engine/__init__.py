"""Loads base models, trains adapters, generates text. The only importer of unsloth, trl, peft and vllm.

It knows nothing of run folders' meaning, evaluation or export: steps call it.
"""
