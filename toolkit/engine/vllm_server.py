"""A vLLM server on its own GPU or machine: what it says of itself, and what keeps it from drawing for a recipe.

It is asked by plain HTTP, briefly; nothing is drawn and no weights go over (`vllm_remote`). The server's key is read from the
environment when it is needed, and stands in no value that leaves this module but a request's header.
"""

from __future__ import annotations

import os
import shlex
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from toolkit.errors import EngineError, ToolkitError
from toolkit.rewards.endpoint import is_loopback

if TYPE_CHECKING:
    from toolkit.engine.machine import Machine
    from toolkit.recipe import Model, Recipe

KEY = "VLLM_API_KEY"
"""The environment variable that vLLM's own server reads its key from, and this side, too."""
OWN_ADDRESS = "VLLM_HOST_IP"
"""The environment variable in which vLLM looks for this machine's address."""
PATIENCE_S = 3.0
"""Seconds for each short question."""
INFO_S = 60.0
"""Seconds for the one question that a server looks its whole machine through for, when it is first asked."""
LOGPROBS = "processed_logprobs"
"""Of the distribution that was drawn from: after temperature, penalties and filters."""
Way = Literal["nccl", "files"]
"""How weights go over: between two GPUs by TRL's client, or through a folder that both sides see."""


@dataclass(frozen=True, slots=True)
class Served:
    """What a server says of itself."""

    version: str
    model: str
    """The name that it serves under."""
    root: str
    """The name or folder that it was started with."""
    context: int
    """Tokens that a prompt and its answer may take together."""
    workers: int
    """Processes with a part of the model, each of which the weights go to."""
    device: str
    quantization: str | None
    logprobs: str
    transfer: str | None
    """How it was told to receive weights (`--weight-transfer-config`)."""
    revision: str | None = None
    in_pieces: bool = False
    """Whether it may read a long prompt in several steps (chunked prefill)."""

    def record(self) -> dict[str, Any]:
        """For a run's manifest: no name or path of the other machine."""
        return {name: value for name, value in asdict(self).items() if name not in ("model", "root")}


def headers() -> dict[str, str]:
    """What every request carries."""
    key = os.environ.get(KEY)
    return {"Authorization": f"Bearer {key}"} if key else {}


def look(address: str) -> Served:
    """What the server at this address says of itself. EngineError where none answers, or one that takes no weights."""
    call(address, "/health")
    model = call(address, "/v1/models")["data"][0]
    world = call(address, "/get_world_size")
    version = str(call(address, "/version")["version"])
    config = call(address, "/server_info?config_format=json", patience_s=INFO_S)["vllm_config"]
    of_model = config["model_config"]
    return Served(
        version=version,
        model=model["id"],
        root=model.get("root") or model["id"],
        context=int(model["max_model_len"]),
        workers=int(world["world_size"]),
        device=str(config["device_config"]["device"]).partition(":")[0],
        quantization=of_model.get("quantization"),
        logprobs=str(of_model.get("logprobs_mode")),
        transfer=(config.get("weight_transfer_config") or {}).get("backend"),
        revision=of_model.get("revision"),
        in_pieces=bool(config["scheduler_config"]["enable_chunked_prefill"]),
    )


def call(address: str, path: str, body: Mapping[str, Any] | None = None, *, patience_s: float = PATIENCE_S) -> Any:
    """The JSON that the server answers a GET with, or a POST of `body`; None where it has none. EngineError for anything but 200."""
    import requests

    method = "GET" if body is None else "POST"
    try:
        # A redirect would take the key to another address.
        answer = requests.request(
            method, address + path, json=body, headers=headers(), timeout=patience_s, allow_redirects=False
        )
    except requests.RequestException as error:
        kind = "in time" if isinstance(error, requests.Timeout) else "(no connection)"
        raise EngineError(f"no vLLM server answers there {kind}", where=address) from error
    if answer.status_code in (401, 403):
        raise EngineError("the server wants another key", where=address, hint=f"the environment variable {KEY}")
    if answer.status_code == 404 and path.startswith("/get_world_size"):
        why = "the server takes no weights: it was started without VLLM_SERVER_DEV_MODE=1"
        raise EngineError(why, where=address, hint="trl vllm-serve sets it")
    if answer.status_code != 200:
        raise EngineError(f"the server answers {path} with {answer.status_code}: {answer.text[:300]}", where=address)
    return answer.json() if answer.content else None


def way(served: Served, address: str, machine: Machine) -> Way:
    """How weights can go from this machine to that server. EngineError where there is no way."""
    if not machine.vllm:
        raise EngineError("TRL's client, which hands the weights over, needs the package vllm here, too")
    if machine.device == served.device == "cuda":
        if served.transfer != "nccl":
            raise EngineError(
                "the server was started without a way to receive weights",
                where=address,
                hint="""trl vllm-serve, or vllm serve --weight-transfer-config '{"backend": "nccl"}'""",
            )
        _require_reachable(address)
        return "nccl"
    if is_loopback(address):
        return "files"
    sides = [where for where, device in (("here", machine.device), ("there", served.device)) if device != "cuda"]
    raise EngineError(
        f"without a GPU {' and '.join(sides)} weights go over as files, and the server is on another machine",
        where=address,
        hint="a server on this machine, http://127.0.0.1:8000; or model.vllm_server: null",
    )


def _require_reachable(address: str) -> None:
    """The server's workers connect to this machine under the address that the variable names, where it is set."""
    named = os.environ.get(OWN_ADDRESS)
    if named and is_loopback(f"http://{named}") and not is_loopback(address):
        what = f"{OWN_ADDRESS} is {named}, where the server's workers do not find this machine"
        raise EngineError(
            what, where=address, hint=f"unset {OWN_ADDRESS}, or set this machine's address in that network"
        )


def own_address(address: str) -> str:
    """This machine's address on the way to that server. (vLLM asks for the way to a public one, which may be another.)"""
    parts = urlsplit(address)
    family, *_, target = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as ours:
        ours.connect(target)  # of a datagram socket: nothing is sent
        return str(ours.getsockname()[0])


def same_name(served: Served, model: Model) -> bool:
    """Whether the server names the recipe's base, as it is or as the 16-bit model of a 4-bit copy; for files, their folder."""
    from toolkit.engine.sixteen_bit import sixteen_bit_name

    wanted = {name.casefold() for name in (model.source, model_argument(model), sixteen_bit_name(model.source)) if name}
    return bool(wanted & {served.model.casefold(), served.root.casefold()})


def model_argument(model: Model) -> str:
    """What a server has to be started with: the base's Hub name, or the folder of its checkpoint on this machine."""
    from toolkit.engine.sixteen_bit import sixteen_bit_name
    from toolkit.engine.source import is_hub_name, training_source

    if is_hub_name(model.source):
        return sixteen_bit_name(model.source) or model.source
    try:
        return training_source(model)
    except ToolkitError:  # the recipe's own check says it
        return model.source


def command(recipe: Recipe) -> str:
    """Starts the server that this recipe asks for."""
    parts = urlsplit(str(recipe.model.vllm_server))
    words = ["trl", "vllm-serve", "--model", model_argument(recipe.model)]
    words += ["--revision", recipe.model.revision] if recipe.model.revision else []
    words += ["--host", "127.0.0.1"] if is_loopback(parts.geturl()) else []
    words += ["--port", str(parts.port or 8000), "--max_model_len", str(recipe.model.max_seq_length)]
    return shlex.join(words)
