"""Completions by a vLLM server on its own GPU or machine, which is handed the weights before it draws (docs/scaling.md).

TRL's client speaks with it. Its trainer's own hand-over is not taken: that adds the adapter into the model in place and takes it
away again, which rounds 16-bit weights anew in every step, and would send 4-bit ones as they are packed. Here `vllm_weights`
forms them beside the model. Nor is its draw: one request for all prompts gives all of them one seed.

Several training processes each ask for their own completions. The first one hands the weights over and names their version; the
others wait until the server says that it has the version that they hold themselves.
"""

from __future__ import annotations

import logging
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.engine import vllm_weights
from toolkit.engine.completions import Completion, Drawn, Prompts, Sampling
from toolkit.engine.generate import like_lengths
from toolkit.engine.unsloth_vllm import ONLY, TOGETHER, prompt_seed
from toolkit.engine.vllm_server import OWN_ADDRESS, Served, Way, call, headers, look, own_address, way
from toolkit.errors import EngineError
from toolkit.parallel.environment import first as first_process
from toolkit.parallel.environment import place

if TYPE_CHECKING:
    from toolkit.engine.load import Policy
    from toolkit.engine.machine import Machine, Setting
    from toolkit.recipe import Recipe

IN_FLIGHT = 64
"""Requests under way at the same time, as TRL's client keeps connections for; the server batches them."""
LONGEST_S = 1800.0
"""The longest wait for one answer, or for another process to hand the weights over."""
GROUP_PORT = 51216
"""Where the first process listens for the server's workers, if it is free: TRL's own."""

_log = logging.getLogger(__name__)


def connected(recipe: Recipe, machine: Machine, setting: Setting) -> tuple[Setting, Remote | None]:
    """The server that the recipe names. Where it cannot draw now, None and the setting without it, which says why.

    A training has asked before (`preflight`); an evaluation long after it may find no server any more. EngineError where it is
    one of several processes that finds none.
    """
    from toolkit.engine.machine import Change, resolve

    address = str(recipe.model.vllm_server)
    try:
        served = look(address)
        return setting, Remote(address, served, way(served, address, machine), recipe.model.max_seq_length)
    except EngineError as error:
        if place().world > 1:  # the others would draw from it
            raise
        here = recipe.model_copy(update={"model": recipe.model.model_copy(update={"vllm_server": None})})
        plain = resolve(here, machine)
        change = Change("model.vllm_server", address, None, error.message)
        _log.warning("%s generates instead of the vLLM server: %s", plain.generator, error.message)
        return replace(plain, changes=(*plain.changes, change)), None


class Remote:
    """The server, and which weights it has from us."""

    def __init__(self, address: str, served: Served, how: Way, context: int) -> None:
        self.served, self.how = served, how
        self._address, self._context = address, min(context, served.context)
        self._held: str | None = None

    def start(self) -> None:
        """Speak with it: in the first process, forget whose weights it has."""
        _ = self._client

    def takes(self, policy: Policy, adapter: str | None, prompts: Prompts, sampling: Sampling) -> bool:
        """Whether it draws this. During a training that is only the adapter that learns: for the bare base (a judge) the
        weights would go to and fro, and other processes may be drawing."""
        fits = max(map(len, prompts), default=0) + sampling.max_new_tokens <= self._context
        return fits and (adapter is not None or ONLY not in getattr(policy.model, "peft_config", ()))

    def batches(
        self,
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
        order = list(like_lengths(prompts, max(1, batch_rows // (samples + greedy_too))))[len(done) :]
        if not order:
            return
        self.hand_over(policy, adapter)
        kinds = [True, False] if greedy_too else [False]

        def ask(index: int, greedy: bool) -> list[Completion]:
            own = prompt_seed(seed, first + index)
            if greedy:
                likeliest = Sampling(sampling.max_new_tokens, temperature=0.0, stop_token_ids=sampling.stop_token_ids)
                return self._answers(index, prompts[index], likeliest, samples=1, seed=own)
            return self._answers(index, prompts[index], sampling, samples=samples, seed=own)

        pool = ThreadPoolExecutor(IN_FLIGHT)
        try:
            asked = [[pool.submit(ask, index, greedy) for index in batch for greedy in kinds] for batch in order]
            for batch in asked:
                yield Drawn([row for answer in batch for row in answer.result()])
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _answers(
        self, index: int, prompt: Sequence[int], sampling: Sampling, *, samples: int, seed: int
    ) -> list[Completion]:
        """One prompt's answers. `ignore_eos`: the stop tokens are all of them, and the server's checkpoint may know others."""
        said = self._client.generate(
            prompts=[list(prompt)],
            n=samples,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p or 0.0,
            repetition_penalty=sampling.repetition_penalty,
            max_tokens=sampling.max_new_tokens,
            logprobs=0,  # of the token that was drawn
            generation_kwargs={"seed": seed, "ignore_eos": True, "stop_token_ids": list(sampling.stop_token_ids)},
        )
        return list(_completions(index, said, sampling))

    def hand_over(self, policy: Policy, adapter: str | None) -> None:
        """Let the server have the weights of the model with this adapter (None: the bare base), if it has others.

        EngineError where somebody else has changed them meanwhile.
        """
        import torch

        wanted = vllm_weights.fingerprint(policy.model, adapter)
        if not first_process():
            self._wait_for(wanted)
            return
        if self._held is not None and self._version() != self._held:
            why = "the vLLM server was started anew, or somebody else changed its weights"
            raise EngineError(why, where=self._address, hint="one training a server; toolkit train --resume RUN")
        if wanted == self._held:
            return
        if why := vllm_weights.refusal(policy.model, adapter):
            raise EngineError(f"this adapter cannot be handed over: {why}", hint="model.vllm_server: null")
        # The first time everything: the server may have 16-bit weights where 4-bit ones are trained on.
        named = vllm_weights.checkpoint if self._held is None else vllm_weights.changing
        self._post("update_weight_version", new_version="changing")
        with torch.no_grad():
            hand_over = {"nccl": self._by_nccl, "files": self._by_files}[self.how]
            hand_over(policy, lambda: named(policy.model, adapter))
        if not self._post("reset_prefix_cache")["success"]:  # what was computed with other weights
            raise EngineError("the vLLM server is busy with somebody else's requests", where=self._address)
        self._post("update_weight_version", new_version=wanted)
        self._held = wanted

    def _by_files(self, policy: Policy, named: Callable[[], Iterator[vllm_weights.Named]]) -> None:
        from safetensors.torch import save_file

        with tempfile.TemporaryDirectory(prefix="toolkit-weights-") as folder:
            tensors = {name: tensor.cpu().contiguous() for name, tensor in named()}
            save_file(tensors, Path(folder) / "model.safetensors", metadata={"format": "pt"})
            # Every worker reads them; what the folder lacks stays as it is.
            self._post("collective_rpc", method="reload_weights", kwargs={"weights_path": folder})

    def _by_nccl(self, policy: Policy, named: Callable[[], Iterator[vllm_weights.Named]]) -> None:
        if self._client.communicator is None:
            os.environ.setdefault(OWN_ADDRESS, own_address(self._address))
            self._client.init_communicator(device=policy.model.device)
        told = [(name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)) for name, tensor in named()]
        self._client.update_named_params(told, named())

    def _wait_for(self, wanted: str) -> None:
        """Until the first process has handed these weights over."""
        end = time.monotonic() + LONGEST_S
        while self._version() != wanted:
            if time.monotonic() > end:
                raise EngineError("the first process has not handed the weights over", where=self._address)
            time.sleep(0.1)

    @cached_property
    def _client(self) -> Any:
        if first_process():  # what an earlier training left is nobody's
            self._post("update_weight_version", new_version="new")
        return _client_kind()(base_url=self._address, group_port=_free_port(GROUP_PORT))

    def _post(self, path: str, **body: Any) -> Any:
        return call(self._address, f"/{path}", body, patience_s=LONGEST_S)

    def _version(self) -> str:
        """What the weights were last called."""
        return call(self._address, "/weight_info", patience_s=LONGEST_S)["weight_version"]


def _completions(index: int, said: dict[str, Any], sampling: Sampling) -> Iterator[Completion]:
    """One prompt's answers. Of each token the client gives the log-probability of what was drawn, and of nothing else."""
    for ids, logprobs, told in zip(said["completion_ids"], said["logprobs"], said["logprob_token_ids"], strict=True):
        if [[token] for token in ids] != told or any(value is None for (value,) in logprobs):
            raise EngineError("the vLLM server's log-probabilities are not of the tokens that it drew")
        truncated = not ids or ids[-1] not in sampling.stop_token_ids
        yield Completion(index, list(ids), [float(value) for (value,) in logprobs], truncated)


def _free_port(usual: int) -> int:
    """The usual port, or, where it is taken (by another training), any free one."""
    for port in (usual, 0):
        with socket.socket() as ours:
            try:
                ours.bind(("", port))
            except OSError:
                continue
            return int(ours.getsockname()[1])
    raise EngineError("no port is free to hand weights over")


def _client_kind() -> Any:
    from trl.generation.vllm_client import VLLMClient

    logging.getLogger("urllib3.connectionpool").setLevel(
        logging.ERROR
    )  # a warning for each thread and each further try

    class Client(VLLMClient):
        """TRL's client with the server's key, an end to its patience, and errors that say which server."""

        def _get(self, url: str, **words: Any) -> Any:
            return _answered(self.base_url, partial(super()._get, url, **_patient(words)))

        def _post(self, url: str, **words: Any) -> Any:
            return _answered(self.base_url, partial(super()._post, url, **_patient(words)))

    return Client


def _patient(words: dict[str, Any]) -> dict[str, Any]:
    return {"headers": headers(), "timeout": LONGEST_S, **words}


def _answered(address: str, ask: Callable[[], Any]) -> Any:
    """What the server answers; EngineError in place of what requests and TRL raise."""
    import requests

    hint = "look at the server's own log; then toolkit train --resume RUN"
    try:
        return ask()
    except requests.RequestException as error:
        kind = "has not answered in time" if isinstance(error, requests.Timeout) else "no longer answers"
        raise EngineError(f"the vLLM server {kind}", where=address, hint=hint) from error
    except Exception as error:  # TRL's, of any status but 200
        raise EngineError(f"the vLLM server refuses: {str(error)[:300]}", where=address, hint=hint) from error
