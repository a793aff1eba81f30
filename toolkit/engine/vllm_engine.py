"""A vLLM engine beside the training model, in its process and on its processor: it draws completions and holds no adapter.

Before it draws, the weights it should draw with go over (`vllm_weights`), unless it has them already. It needs no file of the
model: shapes come from the loaded model's configuration, weights from the loaded model, so that a 4-bit base is sampled
with the very weights that are trained on.
"""

from __future__ import annotations

import gc
import importlib
import itertools
import json
import os
import random
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from toolkit.engine import vllm_weights
from toolkit.engine.completions import Completion, Drawn, Prompts, Sampling
from toolkit.engine.generate import like_lengths
from toolkit.engine.vllm_sampler import Dice, install

if TYPE_CHECKING:
    from toolkit.engine.load import Policy
    from toolkit.recipe import Recipe

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # in this process: it shares the processor, and the weights go over without a copy
    "VLLM_HOST_IP": "127.0.0.1",  # else it asks the network card which address leads outside
    "GLOO_SOCKET_IFNAME": "lo",
    "VLLM_USE_AOT_COMPILE": "0",
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # it wants Triton
}
"""What vLLM reads when it starts; what is set already stays. What it reads at its import is set before Unsloth's (`load`)."""

BLOCK = 32
"""Tokens in a block of the key and value cache, the least that the kernel likes: a group shares its prompt's full blocks."""
COMPILE_FROM = 1_000_000
"""Tokens in a training, at most, from which compiling pays: about a minute, a sixth of the time of a token saved."""
MOST_ROWS = 128
"""Completions that are drawn at a time; a processor is busy with fewer."""
FORMAT = "grpo-toolkit"
"""Our way of loading weights, as vLLM's registry names it."""


PREFILL = 4096
"""Prompt tokens that are computed at a time."""


@dataclass(frozen=True)
class Room:
    """What an engine must have room for: tokens in one sequence, sequences at a time, tokens in all of them."""

    context: int
    rows: int
    tokens: int
    compiled: bool
    """Whether so much is drawn that compiling the model pays."""

    @classmethod
    def of(cls, recipe: Recipe) -> Room:
        """For the rollouts and the evaluations of this recipe."""
        grpo, context = recipe.grpo, recipe.model.max_seq_length
        rows = min(MOST_ROWS, max(grpo.completions_per_step, recipe.eval.batch_size))
        length = min(context, grpo.max_prompt_length + grpo.max_completion_length + BLOCK)
        drawn = grpo.max_steps * grpo.completions_per_step * grpo.max_completion_length
        return cls(context, rows, max(rows * length, context + BLOCK), compiled=drawn >= COMPILE_FROM)

    def cache_bytes(self, config: Any, dtype: str) -> int:
        """Of the key and value cache, for a model of this configuration."""
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        width = 4 if dtype == "float32" else 2
        return 2 * config.num_hidden_layers * heads * size * width * (self.tokens + BLOCK)


@dataclass(frozen=True)
class _Row:
    """One completion that was asked for. Sample -1 is the greedy one before the samples."""

    prompt: int
    sample: int

    @property
    def key(self) -> str:
        return f"{self.prompt}/{self.sample}"


class VllmEngine:
    """The engine, and which weights it has. A process has room for one: starting the next closes it."""

    running: ClassVar[VllmEngine | None] = None

    def __init__(self, policy: Policy, room: Room) -> None:
        if VllmEngine.running:
            VllmEngine.running.close()
        self._policy, self._room, self._dice = policy, room, Dice()
        with prepared() as folder:
            self._llm = _start(policy, room, folder)
            self._llm.collective_rpc(install, args=(self._dice,))
            self._group = _hide_process_group()
        VllmEngine.running = self
        self._core = self._llm.llm_engine
        self._held = vllm_weights.fingerprint(policy.model, None)
        try:
            list(self.batches(None, [[0]], Sampling(max_new_tokens=2, temperature=0.0)))
        except Exception:  # it looks for a kernel that takes this model when it needs one
            self.close()
            raise

    @property
    def context(self) -> int:
        """Tokens that a prompt and its answer may take together."""
        return self._room.context

    def batches(
        self,
        adapter: str | None,
        prompts: Prompts,
        sampling: Sampling,
        *,
        samples: int = 1,
        seed: int = 0,
        first: int = 0,
        batch_rows: int = MOST_ROWS,
        greedy_too: bool = False,
        done: Sequence[Drawn] = (),
    ) -> Iterator[Drawn]:
        """As `generate.batches`. A row's text depends on the seed, its prompt's number and its sample, and on no batch."""
        self.hand_over(adapter)
        order = list(like_lengths(prompts, max(1, batch_rows // (samples + greedy_too))))[len(done) :]
        rows = [[_Row(index, sample) for index in batch for sample in range(-greedy_too, samples)] for batch in order]
        self._dice.sampling = sampling
        try:
            for row in itertools.chain.from_iterable(rows):
                self._dice.throw(row.key, seed, first + row.prompt, row.sample)
                prompt = {"prompt_token_ids": list(prompts[row.prompt])}
                self._core.add_request(row.key, prompt, _asked(sampling, row))
            yield from self._collected(rows, sampling)
        finally:
            self._core.abort_request(list(self._dice.rows))
            self._dice.rows.clear()

    def _collected(self, batches: Sequence[Sequence[_Row]], sampling: Sampling) -> Iterator[Drawn]:
        """Batch by batch, in their order, as soon as all rows of one are there; vLLM mixes them as it likes."""
        ready: dict[str, Completion] = {}
        for batch in batches:
            while not all(row.key in ready for row in batch):
                for output in self._core.step():
                    if output.finished:
                        del self._dice.rows[output.request_id]
                        ready[output.request_id] = _completion(output, sampling)
            yield Drawn([ready.pop(row.key) for row in batch])

    def hand_over(self, adapter: str | None) -> None:
        """Give vLLM the weights of the model with this adapter (None: the bare base), unless it has them."""
        wanted = vllm_weights.fingerprint(self._policy.model, adapter)
        if wanted == self._held:
            return
        self._held = ""  # should it fail half way, nothing is held
        weights = vllm_weights.changing(self._policy.model, adapter)
        self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
        if not hasattr(self._policy.model, "peft_config"):
            self._llm.collective_rpc(_pack_head)
        self._llm.reset_prefix_cache()
        self._held = wanted

    def close(self) -> None:
        """Give the memory back."""
        from torch.distributed.distributed_c10d import GroupMember

        if VllmEngine.running is self:
            VllmEngine.running = None
            GroupMember.WORLD = self._group
            self._core.engine_core.shutdown()
            del self._core, self._llm


def _pack_head(worker: Any) -> None:
    """An output head that is tied to the embedding is multiplied with through a packed copy, which a reload leaves as it was."""
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead  # type: ignore[import-not-found]

    for module in worker.model_runner.get_model().modules():
        if isinstance(module, ParallelLMHead):
            module.quant_method.process_weights_after_loading(module)


def _hide_process_group() -> Any:
    """vLLM makes a process group of one process. accelerate and transformers would take it for a distributed training."""
    from torch.distributed.distributed_c10d import GroupMember

    group, GroupMember.WORLD = GroupMember.WORLD, None
    return group


def _asked(sampling: Sampling, row: _Row) -> Any:
    """vLLM's words for a row. How it is drawn is up to `vllm_sampler`; vLLM has to know of penalties and of the end."""
    from vllm import SamplingParams  # type: ignore[import-not-found]

    greedy = row.sample < 0
    return SamplingParams(
        max_tokens=sampling.max_new_tokens,
        temperature=0.0 if greedy else sampling.temperature,
        repetition_penalty=1.0 if greedy else sampling.repetition_penalty,
        stop_token_ids=list(sampling.stop_token_ids),
        ignore_eos=True,
        logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        extra_args={"row": row.key},
    )


def _completion(output: Any, sampling: Sampling) -> Completion:
    said = output.outputs[0]
    ids = list(said.token_ids)
    index = int(output.request_id.partition("/")[0])
    return Completion(index, ids, list(said.logprobs.logprobs), ids[-1] not in sampling.stop_token_ids)


def _start(policy: Policy, room: Room, folder: Path) -> Any:
    """vLLM on the bare base of this policy. `folder` stays empty but for the model's configuration."""
    from vllm import LLM  # type: ignore[import-not-found]
    from vllm.model_executor.model_loader import register_model_loader  # type: ignore[import-not-found]
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader  # type: ignore[import-not-found]

    class FromPolicy(BaseModelLoader):
        """Takes the weights from the training model instead of from files."""

        def download_model(self, model_config: Any) -> None:
            pass

        def load_weights(self, model: Any, model_config: Any) -> None:
            model.load_weights(vllm_weights.checkpoint(policy.model, None))

    register_model_loader(FORMAT)(FromPolicy)
    (folder / "config.json").write_text(json.dumps(_configuration(policy.model)), encoding="utf-8")
    return LLM(
        model=str(folder),
        load_format=FORMAT,
        skip_tokenizer_init=True,
        generation_config="vllm",
        dtype=policy.setting.dtype,
        enforce_eager=not room.compiled,
        max_model_len=room.context,
        max_num_seqs=room.rows,
        max_num_batched_tokens=max(room.context, PREFILL),
        kv_cache_memory_bytes=room.cache_bytes(policy.model.config.get_text_config(), policy.setting.dtype),
        block_size=BLOCK,
        enable_prefix_caching=True,
        logprobs_mode="processed_logprobs",
        disable_log_stats=True,
    )


def _configuration(model: Any) -> dict[str, Any]:
    """The base's config.json, without the quantisation: the weights come dequantised."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    configuration = json.loads(base.config.to_json_string(use_diff=False))
    configuration.pop("quantization_config", None)
    return configuration | {"architectures": [type(base).__name__]}


@contextmanager
def prepared() -> Iterator[Path]:
    """An empty folder, and a process that starting vLLM leaves as it was: threads, random numbers, memory policy."""
    import numpy
    import torch

    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    set_num_threads, threads = torch.set_num_threads, torch.get_num_threads()
    states = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    before, hook = tempfile.tempdir, sys.excepthook
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tempfile.tempdir = folder  # a rendezvous file of torch.distributed would be left behind
        try:
            _leave_memory_alone()
            yield Path(folder)
        finally:
            tempfile.tempdir, sys.excepthook = before, hook  # torch.distributed's puts [rank0] before every line
            torch.set_num_threads = set_num_threads  # vLLM's does nothing
            torch.set_num_threads(threads)
            random.setstate(states[0])
            numpy.random.set_state(states[1])
            torch.set_rng_state(states[2])
            gc.unfreeze()  # vLLM takes all there is, the training model too, out of the collector's sight


def _leave_memory_alone() -> None:
    """vLLM would bind all further memory of the process to one NUMA node, and say so on stderr."""
    import torch

    importlib.import_module("vllm.v1.worker.cpu_worker")  # loads the operators
    torch.ops._C.init_cpu_memory_env = lambda nodes: None  # type: ignore[attr-defined]
