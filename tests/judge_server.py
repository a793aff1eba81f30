"""Judges to ask on loopback: one that does as it is told, also what no good server does, and a real llama.cpp server."""

from __future__ import annotations

import ctypes
import json
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Answer:
    """What the scripted server sends: a judge's words, or any bytes."""

    words: str | None = "It will do.\nScore: 7"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    raw: bytes | None = None
    trickle_s: float = 0.0
    """Pause before each byte."""
    finish_reason: str = "stop"

    @property
    def body(self) -> bytes:
        message = {"role": "assistant", "content": self.words}
        reply = {"choices": [{"index": 0, "message": message, "finish_reason": self.finish_reason}]}
        return json.dumps(reply).encode() if self.raw is None else self.raw


@dataclass(frozen=True)
class Asked:
    """One request."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    at: float

    @property
    def prompt(self) -> str:
        return self.body["messages"][0]["content"]


class ScriptedJudge:
    """Answers by `script(number of the request, what is asked)`. `asked` holds the chats in the order in which they came."""

    def __init__(
        self,
        script: Callable[[int, Asked], Answer] = lambda number, asked: Answer(),
        models: list[dict[str, Any]] | Answer | None = None,
    ) -> None:
        self.script, self.models = script, models if models is not None else [{"id": "judge"}]
        self.asked: list[Asked] = []
        self.listed: list[Asked] = []
        self.busy = self.busiest = 0
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> ScriptedJudge:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, asked: Asked) -> Answer:
        if asked.path == "/v1/models":
            self.listed.append(asked)
            plain = self.models if isinstance(self.models, Answer) else None
            return plain or Answer(raw=json.dumps({"object": "list", "data": self.models}).encode())
        if asked.path != "/v1/chat/completions":
            return Answer(status=404, raw=b"not here")
        with self._lock:
            number = len(self.asked)
            self.asked.append(asked)
            self.busy += 1
            self.busiest = max(self.busiest, self.busy)
        answer = self.script(number, asked)
        time.sleep(answer.delay_s)
        with self._lock:
            self.busy -= 1
        return answer


def _handler(judge: ScriptedJudge) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(length) or b"{}")
            headers = {name.lower(): value for name, value in self.headers.items()}
            self._send(judge.answer(Asked(self.path, headers, body, time.monotonic())))

        do_POST = do_GET

        def _send(self, answer: Answer) -> None:
            try:
                self.send_response(answer.status)
                for name, value in {"Content-Type": "application/json", **answer.headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                for byte in answer.body if answer.trickle_s else ():
                    time.sleep(answer.trickle_s)
                    self.wfile.write(bytes([byte]))
                if not answer.trickle_s:
                    self.wfile.write(answer.body)
            except OSError:
                pass  # the client has lost patience

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


@contextmanager
def llama_server(file: Path) -> Iterator[str]:
    """The address of a real llama.cpp server for a GGUF file, on one thread; ended whatever happens here."""
    port = _free_port()
    command = [
        sys.executable, "-m", "llama_cpp.server", "--model", str(file), "--host", "127.0.0.1", "--port", str(port),
        "--n_ctx", "1024", "--n_threads", "1", "--n_threads_batch", "1",
    ]  # fmt: skip
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=_dies_with_its_parent
    ) as server:
        try:
            _wait_for(f"http://127.0.0.1:{port}/v1/models", server)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            server.kill()


def _dies_with_its_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: also where the tests themselves are killed


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def _wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for _ in range(600):
        assert server.poll() is None, f"the server ended with {server.returncode}"
        try:
            direct.open(url, timeout=5).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise TimeoutError(url)
