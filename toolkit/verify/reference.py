"""The models that files are compared with, in fp32 through plain transformers: texts, distributions,
greedy answers."""

from __future__ import annotations

import copy
import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.engine.peft_reference import with_adapter
from toolkit.llamacpp import common_length

if TYPE_CHECKING:
    import numpy


@dataclass(frozen=True, slots=True)
class Text:
    """Token ids, and from which one on predictions are compared."""

    ids: tuple[int, ...]
    start: int


@contextmanager
def quiet() -> Iterator[None]:
    """The libraries' import-time remarks and progress bars say nothing about the export."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        from transformers.utils import logging as transformers_logging

        transformers_logging.disable_progress_bar()
        yield
    finally:
        logging.disable(before)


@contextmanager
def loaded(folder: Path, *, adapter: Path | None = None) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The folder's model in fp32 as transformers opens it, and what was missing or too much in the folder.

    An adapter is put on through PEFT and not merged.
    """
    import torch
    from transformers import AutoModelForCausalLM

    opened: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, local_files_only=True, output_loading_info=True
    )
    model, loading = opened
    del opened
    if adapter is not None:
        model = with_adapter(model, adapter)
    try:
        yield model.eval(), loading
    finally:
        del model
        gc.collect()


def tokenizer_of(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


def log_probabilities(model: Any, texts: list[Text]) -> list[numpy.ndarray]:
    """For each text a row of log-probabilities per compared token. What all texts begin with is computed
    once."""
    import torch

    shared = min(common_length([text.ids for text in texts]), min(text.start for text in texts) - 1)
    rows = []
    with torch.inference_mode():
        prefix = model(torch.tensor([texts[0].ids[:shared]]), use_cache=True).past_key_values if shared else None
        for text in texts:
            logits = model(
                torch.tensor([text.ids[shared:-1]]),
                past_key_values=copy.deepcopy(prefix),
                use_cache=True,
                logits_to_keep=len(text.ids) - text.start,
            ).logits[0]
            rows.append(torch.log_softmax(logits.float(), dim=-1).numpy())
    return rows


SIDE_BY_SIDE = 32
"""Answers that are generated together; more are no faster on a CPU, and take more memory."""


def greedy(model: Any, prompts: list[list[int]], *, stops: list[int], max_new: int) -> list[list[int]]:
    """The likeliest continuation of each prompt, up to and with its stop token."""
    groups = [prompts[at : at + SIDE_BY_SIDE] for at in range(0, len(prompts), SIDE_BY_SIDE)]
    return [ids for group in groups for ids in _greedy_group(model, group, stops, max_new)]


def _greedy_group(model: Any, prompts: list[list[int]], stops: list[int], max_new: int) -> list[list[int]]:
    import torch
    from transformers import GenerationConfig

    longest, pad = max(len(prompt) for prompt in prompts), stops[0]
    settings = GenerationConfig(max_new_tokens=max_new, do_sample=False, eos_token_id=stops, pad_token_id=pad)
    padded = torch.tensor([[pad] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    model.generation_config = settings  # else the folder's own fills what stands at its default here
    with torch.inference_mode():
        written = model.generate(padded, attention_mask=mask, generation_config=settings)[:, longest:].tolist()
    return [_cut(ids, stops) for ids in written]


def _cut(ids: list[int], stops: list[int]) -> list[int]:
    ends = [at for at, token in enumerate(ids) if token in stops]
    return ids[: ends[0] + 1] if ends else ids
