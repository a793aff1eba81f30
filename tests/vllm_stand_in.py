"""A small vLLM server on loopback: the routes of `trl vllm-serve` that the toolkit and TRL's client use, around a real model.

It draws with transformers, takes new weights from a folder as vLLM's `reload_weights` does, and can be told to be another server
than it should be. The real server needs more packages than the tests' environment has: test_vllm_server_real.py.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from toolkit.engine.completions import Sampling

DEV = (
    "/get_world_size",
    "/server_info",
    "/weight_info",
    "/collective_rpc",
    "/update_weight_version",
    "/reset_prefix_cache",
)
"""Routes that are there in vLLM's dev mode only."""


@dataclass
class StandIn:
    """The server. Its model is read when it is first asked for text."""

    folder: Path
    version: str = ""
    name: str = ""
    context: int = 256
    key: str | None = None
    dev: bool = True
    logprobs: str = "processed_logprobs"
    quantization: str | None = None
    device: str = "cpu"
    transfer: str | None = "nccl"
    in_pieces: bool = False
    busy: bool = False
    """Whether its prefix cache cannot be emptied."""
    deaf: bool = False
    """Whether it takes weights and goes on with the old ones."""
    url: str = ""
    weights: str = "default"
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    reloads: list[list[str]] = field(default_factory=list)
    """Names of the tensors that came, hand-over by hand-over."""
    _model: Any = None
    _one_at_a_time: threading.RLock = field(default_factory=threading.RLock)

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        path = path.partition("?")[0]
        routes: dict[str, Callable[[dict[str, Any]], Any]] = {
            "/health": lambda _: None,
            "/version": lambda _: {"version": self.version or _installed()},
            "/v1/models": lambda _: {"data": [{"id": self.name or str(self.folder), "root": str(self.folder),
                                               "max_model_len": self.context}]},
            "/get_world_size": lambda _: {"world_size": 1},
            "/server_info": lambda _: {"vllm_config": self._config()},
            "/weight_info": lambda _: {"weight_version": self.weights},
            "/update_weight_version": self._renamed,
            "/collective_rpc": self._reloaded,
            "/reset_prefix_cache": lambda _: {"success": not self.busy},
            "/v1/completions": self._completed,
        }  # fmt: skip
        if path not in routes or (path in DEV and not self.dev):
            return 404, {"detail": "Not Found"}
        with self._one_at_a_time:
            self.asked.append((path, body))
            return 200, routes[path](body)

    def _config(self) -> dict[str, Any]:
        return {
            "model_config": {"logprobs_mode": self.logprobs, "quantization": self.quantization, "revision": None},
            "device_config": {"device": self.device},
            "scheduler_config": {"enable_chunked_prefill": self.in_pieces},
            "weight_transfer_config": self.transfer and {"backend": self.transfer},
        }

    def _renamed(self, body: dict[str, Any]) -> dict[str, Any]:
        self.weights = body["new_version"]
        return {"success": True}

    def _reloaded(self, body: dict[str, Any]) -> dict[str, Any]:
        from safetensors.torch import load_file

        assert body["method"] == "reload_weights"
        tensors = load_file(Path(body["kwargs"]["weights_path"]) / "model.safetensors")
        self.reloads.append(list(tensors))
        if not self.deaf:
            left = self._loaded().load_state_dict(tensors, strict=False)
            assert not left.unexpected_keys
        return {"results": [None]}

    def _completed(self, body: dict[str, Any]) -> dict[str, Any]:
        from toolkit.engine.generate import generate

        assert body["ignore_eos"] and body["return_token_ids"]
        sampling = Sampling(
            body["max_tokens"], body["temperature"], body["top_p"], body["top_k"], body["min_p"] or None,
            body["repetition_penalty"], tuple(body["stop_token_ids"]),
        )  # fmt: skip
        rows = generate(self._loaded(), body["prompt"], sampling, samples=body["n"], seed=body.get("seed", 0))
        return {"choices": [_choice(body["prompt"][row.prompt_index], row) for row in rows]}

    def _loaded(self) -> Any:
        from transformers import AutoModelForCausalLM

        if self._model is None:
            self._model = AutoModelForCausalLM.from_pretrained(self.folder).eval()
        return self._model


def _choice(prompt: list[int], row: Any) -> dict[str, Any]:
    names = [f"token_id:{token}" for token in row.token_ids]
    tops = [{name: value} for name, value in zip(names, row.logprobs, strict=True)]
    logprobs = {"tokens": names, "token_logprobs": row.logprobs, "top_logprobs": tops}
    return {"prompt_token_ids": prompt, "token_ids": row.token_ids, "logprobs": logprobs}


def _installed() -> str:
    import vllm_table

    return vllm_table.installed() or "0.0"


@contextmanager
def serving(folder: Path, **changes: Any) -> Iterator[StandIn]:
    """The server on a free port of loopback."""
    stand_in = StandIn(folder, **changes)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._say({})

        def do_POST(self) -> None:
            text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self._say(json.loads(text or b"{}"))

        def _say(self, body: dict[str, Any]) -> None:
            guarded = stand_in.key is not None and self.path.startswith("/v1")
            wrong = guarded and self.headers.get("Authorization") != f"Bearer {stand_in.key}"
            status, said = (401, {"error": "Unauthorized"}) if wrong else stand_in.answer(self.path, body)
            text = b"" if said is None else json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    stand_in.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield stand_in
    finally:
        server.shutdown()
        server.server_close()
