"""Completions by Unsloth's own vLLM, which shares the base's weights with the model that is trained (on a GPU).

The engine holds the bare base. With every call the adapter goes along: the one in training as its tensors
(`load_lora(load_tensors=True)`), a saved one as its folder. TRL's own way through `use_vllm` is not taken: it passes no
seed, no stop tokens beyond the engine's and no round, so that a resumed run would draw something else.

Read in unsloth_zoo/vllm_utils.py and vllm 0.31 (docs/gpu.md), and heeded here:

- an adapter's id is what vLLM knows it by: under an id that it has seen it goes on with the old weights, so every draw
  asks for a new one;
- the tensors are read when the request is first used, and where their type is the engine's vLLM multiplies the live
  `lora_B` by alpha / r in place: it gets copies;
- all adapters of the model would be sent: there must be no other than `default`;
- a sleeping engine is woken by `generate`, and sent to sleep again here.
"""

from __future__ import annotations

import atexit
import hashlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.engine.completions import Completion, Drawn, Prompts, Sampling
from toolkit.engine.generate import like_lengths
from toolkit.engine.machine import Change, Setting
from toolkit.errors import EngineError

if TYPE_CHECKING:
    from toolkit.engine.load import Policy
    from toolkit.recipe import Recipe

TOGETHER = 256
"""Completions handed over at once; vLLM queues what does not fit. A constant, so that a batch is the same everywhere."""
ONLY = "default"
"""The adapter in training."""


def batches(
    policy: Policy,
    adapter: str | None,
    prompts: Prompts,
    sampling: Sampling,
    *,
    samples: int = 1,
    seed: int = 0,
    first: int = 0,
    batch_rows: int = TOGETHER,
    greedy_too: bool = False,
    done: Sequence[Drawn] = (),
) -> Iterator[Drawn]:
    """As `generate.batches`. A row's random numbers follow from the seed, its prompt's number and its sample alone."""
    size = max(1, max(batch_rows, TOGETHER) // (samples + greedy_too))
    order = list(like_lengths(prompts, size))[len(done) :]
    if not order:
        return
    request = _request(policy, adapter)
    try:
        for batch in order:
            seeds = [prompt_seed(seed, first + index) for index in batch]
            yield Drawn(_answers(policy, request, batch, prompts, sampling, samples, seeds, greedy_too))
    finally:
        rest(policy)


def _answers(
    policy: Policy,
    request: Any,
    batch: Sequence[int],
    prompts: Prompts,
    sampling: Sampling,
    samples: int,
    seeds: Sequence[int],
    greedy_too: bool,
) -> list[Completion]:
    """Per prompt the greedy completion, where there is one, then the samples."""
    kinds = [True, False] if greedy_too else [False]
    asked = [(index, seed, greedy) for index, seed in zip(batch, seeds, strict=True) for greedy in kinds]
    outputs = policy.model.fast_generate(
        [{"prompt_token_ids": list(prompts[index])} for index, _, _ in asked],
        sampling_params=[
            parameters(sampling, samples=1 if greedy else samples, seed=seed, greedy=greedy)
            for _, seed, greedy in asked
        ],
        lora_request=request,
        use_tqdm=False,
    )
    return [
        _completion(index, answer, sampling)
        for (index, *_), output in zip(asked, outputs, strict=True)
        for answer in sorted(output.outputs, key=lambda answer: answer.index)
    ]


def parameters(sampling: Sampling, *, samples: int, seed: int, greedy: bool) -> Any:
    """vLLM's SamplingParams with everything that a recipe says of sampling, and nothing that a checkpoint would add.

    `ignore_eos`: the stop tokens are all of them, the generation config's among them (`Policy.stop_token_ids`).
    """
    from vllm import SamplingParams  # type: ignore[import-not-found]

    stop = {"ignore_eos": True, "stop_token_ids": list(sampling.stop_token_ids), "max_tokens": sampling.max_new_tokens}
    told = {"logprobs": 0, "detokenize": False}  # 0: of the token that was drawn
    if greedy and not sampling.greedy:
        return SamplingParams(n=1, temperature=0.0, **stop, **told)
    if sampling.greedy and samples > 1:
        raise EngineError("several greedy completions of one prompt are one")
    return SamplingParams(
        n=samples,
        seed=seed,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p or 0.0,
        repetition_penalty=sampling.repetition_penalty,
        **stop,
        **told,
    )


def prompt_seed(seed: int, prompt: int) -> int:
    """A prompt's own seed, below 2^62: vLLM adds the sample's number to it."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{prompt}".encode()).digest()[:8]) >> 2


def _completion(index: int, answer: Any, sampling: Sampling) -> Completion:
    ids = list(answer.token_ids)
    logprobs = [float(found[token].logprob) for found, token in zip(answer.logprobs, ids, strict=True)]
    return Completion(index, ids, logprobs, truncated=not ids or ids[-1] not in sampling.stop_token_ids)


def _request(policy: Policy, adapter: str | None) -> Any:
    """What makes vLLM answer with this adapter; None is the bare base."""
    if adapter is None or adapter in policy.served:
        return None if adapter is None else policy.served[adapter]
    if adapter != ONLY or list(getattr(policy.model, "peft_config", ())) != [ONLY]:
        held = list(getattr(policy.model, "peft_config", ()))
        raise EngineError(f"vLLM is asked for the adapter {adapter}, and the model holds {held or 'none'}")
    request = policy.model.load_lora(_scratch(), load_tensors=True)
    if getattr(request, "lora_tensors", None) is not None:
        request.lora_tensors = {name: tensor.detach().clone() for name, tensor in request.lora_tensors.items()}
    return request


@cache
def _scratch() -> str:
    """A folder of this process: `load_lora` writes the adapter's configuration there, once, and no weights."""
    folder = tempfile.TemporaryDirectory(prefix="toolkit-lora-")
    atexit.register(folder.cleanup)
    return folder.name


def serve(policy: Policy, folder: Path, name: str) -> None:
    """Let vLLM answer with a saved adapter under this name. The model itself does not get it."""
    from unsloth_zoo.vllm_utils import load_lora

    from toolkit.engine.adapter_guard import require_saved_adapter

    load: Any = load_lora
    policy.served[name] = load(policy.model, str(folder))
    require_saved_adapter(policy, folder, name)


def rest(policy: Policy) -> None:
    """Send the engine to sleep, where it can: what its cache took is free until the next draw."""
    engine = policy.model.vllm_engine
    if engine.llm_engine.vllm_config.model_config.enable_sleep_mode:
        engine.sleep(1)


def read_back(policy: Policy, recipe: Recipe) -> Setting:
    """The setting as the loaded engine has it. What it cannot do after all is an error; what it changed is a change."""
    engine = getattr(policy.model, "vllm_engine", None)
    if engine is None:
        raise EngineError("Unsloth loaded the model without vLLM", hint="model.fast_inference: false")
    config = engine.llm_engine.vllm_config
    context, wanted = config.model_config.max_model_len, recipe.model.max_seq_length
    if context < wanted:
        hint = f"raise model.gpu_memory_utilization, or model.max_seq_length: {context}"
        raise EngineError(
            f"the GPU has room for {context} tokens in a sequence, the recipe asks for {wanted}", hint=hint
        )
    if config.lora_config is None or config.lora_config.max_lora_rank < recipe.model.lora.r:
        raise EngineError("vLLM was started without room for this adapter", hint="model.fast_inference: false")
    return _with_changes(policy.setting, recipe, config)


def _with_changes(setting: Setting, recipe: Recipe, config: Any) -> Setting:
    changes = list(setting.changes)
    asked, held = recipe.model.gpu_memory_utilization, config.cache_config.gpu_memory_utilization
    if abs(held - asked) > 0.005:
        why = "Unsloth chooses it in standby mode" if setting.standby else "Unsloth's estimate of what is left"
        changes.append(Change("model.gpu_memory_utilization", asked, round(held, 3), why))
    sleeps = bool(config.model_config.enable_sleep_mode)
    if setting.standby and not sleeps:
        changes.append(Change("model.standby", True, False, "Unsloth switches it off for models with pictures"))
    return replace(setting, standby=sleeps, changes=tuple(changes))
