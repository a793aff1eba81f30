"""The serve step: an exported file behind an OpenAI-compatible server on this machine, and Open WebUI in front of it.

It ends with Ctrl-C, and what it started ends with it, in whatever way. It adds no system prompt: clients send it.
"""

from __future__ import annotations

import json
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from toolkit import console
from toolkit.bundle import SYSTEM_FILE, Settings, model_id
from toolkit.errors import ExportError
from toolkit.llamacpp import USUAL_PORT, GgufFile
from toolkit.llamacpp import server as llama_server
from toolkit.llamacpp.trial import child_environment
from toolkit.prompts import messages
from toolkit.rundir import ExportDir, chosen_gguf
from toolkit.serve.process import Server, free_port, running, until_stopped, wait_while_running

LOOPBACK = "127.0.0.1"
LOAD_LIMIT_S = 900
"""For reading the file. A large one from a slow disk takes minutes."""


@dataclass(frozen=True, slots=True)
class Served:
    """An exported file and where it is served."""

    export: ExportDir
    file: Path
    settings: Settings
    host: str
    port: int

    @property
    def model_id(self) -> str:
        return model_id(self.file.name)

    @property
    def base_url(self) -> str:
        """As this machine reaches it: a host that means all addresses is none to ask."""
        host = {"0.0.0.0": LOOPBACK, "::": "::1"}.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/v1"


def serve(path: Path, *, file: str | None = None, host: str = LOOPBACK, port: int = USUAL_PORT) -> None:
    """Serve the export's file of this name or type (default: the recommended one) until somebody stops it."""
    with until_stopped():
        served = prepare(path, file=file, host=host, port=port)
        with serving(served) as server:
            _show(served)
            wait_while_running([server])


def prepare(path: Path, *, file: str | None, host: str, port: int) -> Served:
    """Everything that can be wrong, before a process is started."""
    from toolkit.recipe import load_resolved

    export = ExportDir(path)
    recipe = load_resolved(export.recipe).recipe
    chosen = path / chosen_gguf(export, file)
    if not chosen.is_file():
        raise ExportError("the file is missing", where=str(chosen), hint=f"toolkit export {path.name} --format gguf")
    if GgufFile(chosen).field("tokenizer.chat_template") is None:
        raise ExportError("the file has no chat template, so no chat can be written for it", where=str(chosen))
    if not _is_loopback(host):
        console.warn(f"{console.untrusted(host)} can be reached from other machines, and the server asks for no key")
    if not export.is_verified:
        console.warn(f"no proof that this file answers as the trained model: toolkit verify {path}")
    return Served(export, chosen, Settings.of(recipe), host, free_port(host, port))


@contextmanager
def serving(served: Served) -> Iterator[Server]:
    """The llama.cpp server, once it answers."""
    module = llama_server.words(
        served.file, model_id=served.model_id, context=served.settings.context, host=served.host, port=served.port,
        defaults=served.settings.openai(),
    )  # fmt: skip
    console.note(f"loading {console.untrusted(served.file)}")
    with (
        tempfile.TemporaryDirectory(prefix="toolkit-") as scratch,
        running("the llama.cpp server", module, log=Path(scratch) / "log", env=child_environment()) as server,
    ):
        server.wait_until_healthy(f"{served.base_url}/models", limit_s=LOAD_LIMIT_S)
        yield server


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _show(served: Served) -> None:
    """What to paste where."""
    console.say(f"  base URL   [bold]{console.untrusted(served.base_url)}[/]")
    console.say(f"  model      {console.untrusted(served.model_id)}")
    console.say("  API key    any: none is asked for")
    if not _is_loopback(served.host):
        console.say(f"Other machines reach it by this one's name or address at port {served.port}.")
    if served.settings.system:
        console.say("The server adds no system prompt. Send the training's with every chat: it stands in")
        console.say(f"  {console.untrusted(served.export.path / SYSTEM_FILE)}")
    console.say(f"Sampled as in training where a request says nothing else: {_sampling(served.settings)}.")
    console.say("To try it, in another terminal:")
    console.say("  " + console.untrusted(_curl(served)))
    console.say(f"  toolkit chat {console.untrusted(shlex.quote(str(served.export.path)))}{_where(served)}")
    console.say(
        "With Open WebUI in front, everything in its place: [bold]toolkit open-webui[/]. Ctrl-C stops the server."
    )


def _sampling(settings: Settings) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in settings.openai().items())


def _where(served: Served) -> str:
    """What `toolkit chat` must be told to find this server: nothing where it looks by itself."""
    usual = served.base_url == f"http://{LOOPBACK}:{USUAL_PORT}/v1"
    return "" if usual else f" --server {console.untrusted(served.base_url)}"


def _curl(served: Served) -> str:
    chat = messages("What is 12 + 345?", served.settings.system)
    body = {"model": served.model_id, "messages": chat, "temperature": 0}
    words = [
        "curl",
        f"{served.base_url}/chat/completions",
        "-H",
        "Content-Type: application/json",
        "-d",
        json.dumps(body),
    ]
    return shlex.join(words)
