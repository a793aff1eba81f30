"""Processes of `toolkit serve` for tests: started as a person does, asked over HTTP, stopped in every way."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from models import child_environment
from tiny import smollm2_file
from toolkit.recipe import load_recipe

LIMIT_S = 180
NAME = "a-q8_0"
NO_SYSTEM_ROLE = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""ChatML that refuses a system message."""


def write_export(folder: Path, *words: str) -> Path:
    """An export whose file is the default's base model: nothing is converted, and answers fit the question."""
    (folder / "merged").mkdir(parents=True)
    (folder / "merged" / "generation_config.json").write_text('{"eos_token_id": 2}')
    (folder / f"{NAME}.gguf").symlink_to(smollm2_file())
    recipe = load_recipe("smoke", ["grpo.max_completion_length=16", *words]).recipe
    (folder / "recipe.json").write_text(recipe.model_dump_json())
    (folder / "manifest.json").write_text(json.dumps({"files": [{"file": f"{NAME}.gguf", "type": "q8_0"}]}))
    return folder


class Serving:
    """A running `toolkit serve`."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        self.url = url
        self.server = children(process.pid)[0]

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            return json.load(answer)

    def answer(self, chat: list[dict[str, str]], **settings: Any) -> dict[str, Any]:
        given = {"messages": chat, "temperature": 0, "repeat_penalty": 1, "max_tokens": 16} | settings
        return self.ask("/chat/completions", given)


@contextmanager
def serving(export: Path, *words: str, env: dict[str, str] | None = None) -> Iterator[Serving]:
    """`toolkit serve EXPORT` once it has said where; killed at the end, if it is still there."""
    command = [sys.executable, "-u", "-m", "toolkit", "serve", str(export), "--port", "0", *words]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=child_environment() | (env or {}),
        start_new_session=True,
    )  # fmt: skip
    try:
        yield Serving(process, _url(process))
    finally:
        process.kill()
        process.communicate()


def _url(process: subprocess.Popen[str]) -> str:
    said = ""
    assert process.stdout
    for line in process.stdout:
        said += line
        if found := re.search(r"http://\S+/v1", line):
            return found[0]
    raise AssertionError(said)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def ends_soon(pid: int, limit_s: float = 30) -> bool:
    end = time.monotonic() + limit_s
    while is_running(pid) and time.monotonic() < end:
        time.sleep(0.1)
    return not is_running(pid)


@contextmanager
def fixed_answer(body: bytes, *, model: str = NAME, status: int = 200) -> Iterator[str]:
    """The base URL of a server that offers this model and answers every chat with these bytes."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._say(200, json.dumps({"data": [{"id": model}]}).encode())

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self._say(status, body)

        def _say(self, code: int, data: bytes) -> None:
            self.send_response(code)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()


def taken_port() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))
