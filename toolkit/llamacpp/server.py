"""The process that serves one GGUF file in OpenAI's protocol: llama-cpp-python's own server, with the file's own chat template.

`words` says how others start it, `main` is that process. Like the file itself it adds no system prompt.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from toolkit.errors import ToolkitError
from toolkit.llamacpp.library import last_log_lines, library
from toolkit.llamacpp.runtime import render_chat
from toolkit.prompts import suited

NEEDS = ("fastapi", "pydantic_settings", "sse_starlette", "starlette_context", "uvicorn")
STOP_S = 2
"""How long a stopped server waits for answers that are being written."""


def words(path: Path, *, model_id: str, context: int, host: str, port: int, defaults: Mapping[str, float]) -> list[str]:
    """Module and arguments for `python -m`. ToolkitError where the server's packages are missing.

    `defaults` hold where a request does not say otherwise: the server's own are others, a penalty on repetition among them.
    """
    missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        what = f"the server needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed"
        raise ToolkitError(what, hint="make setup, or: pip install 'llama-cpp-python[server]'")
    model = {"model": str(path.absolute()), "model_alias": model_id, "n_ctx": context, "last_n_tokens_size": context}
    return [__name__, json.dumps({"model": model, "host": host, "port": port, "defaults": dict(defaults)})]


def main(arguments: list[str]) -> None:
    """Load the file, then answer until a signal ends it."""
    wanted = json.loads(arguments[0])
    library()
    _set_defaults(wanted["defaults"])  # before the application is built from the requests' models
    from llama_cpp.server import app as server
    from llama_cpp.server.settings import ModelSettings, ServerSettings

    _forget_settings([*ModelSettings.model_fields, *ServerSettings.model_fields, "config_file"])
    threads = max(1, (os.cpu_count() or 1) // 2)
    model = ModelSettings(
        **wanted["model"], n_threads=threads, n_threads_batch=threads, verbose=False,
        chat_format="chat_template.default",  # else a template that looks familiar is replaced by a built-in one
    )  # fmt: skip
    try:
        # By default a second request, of another tab say, would break off the answer to the first.
        app = server.create_app(server_settings=ServerSettings(interrupt_requests=False), model_settings=[model])
    except ValueError:
        sys.exit("llama.cpp cannot load the file:\n" + "\n".join(last_log_lines()))
    llama: Any = server._llama_proxy(None)  # type: ignore[reportOptionalCall]
    llama.model_path = wanted["model"]["model_alias"]  # what answers call the model: no path of this machine
    _suit(llama)
    _list_at_once(app, wanted["model"]["model_alias"])
    import uvicorn

    uvicorn.run(app, host=wanted["host"], port=wanted["port"], log_level="warning", timeout_graceful_shutdown=STOP_S)


def _set_defaults(defaults: Mapping[str, float]) -> None:
    from llama_cpp.server import types

    for request in (types.CreateChatCompletionRequest, types.CreateCompletionRequest):
        for name, value in defaults.items():
            request.model_fields[name].default = value
        request.model_rebuild(force=True)


def _list_at_once(app: Any, model_id: str) -> None:
    """The list of models. The server's own waits for the answer that is being written, and clients find no model meanwhile."""
    from fastapi.routing import APIRoute

    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": model_id, "object": "model", "owned_by": "me", "permissions": []}]}

    app.router.routes.insert(0, APIRoute("/v1/models", models, methods=["GET"]))


def _forget_settings(names: list[str]) -> None:
    """The server would take any of its settings from the environment: SEED, API_KEY or HOST, meant for other programs."""
    for name in [name for name in os.environ if name.lower() in names]:
        del os.environ[name]


def _suit(llama: Any) -> None:
    """Where the template has no system role, put the text where training had it."""
    handler = llama._chat_handlers[llama.chat_format]
    template = llama.metadata["tokenizer.chat_template"]

    def render(messages: list[dict[str, str]]) -> str:
        return render_chat(template, messages, bos="", eos="")

    def suited_handler(*, messages: list[dict[str, str]], **options: Any) -> Any:
        def answer() -> Any:
            return handler(messages=suited(messages, render), **options)

        return _telling(answer) if options.get("stream") else answer()

    llama.chat_handler = suited_handler


def _telling(answer: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """The stream; what goes wrong is its last event, where the server by itself would break the connection off."""
    try:
        yield from answer()
    except Exception as error:  # the library's: the prompt is too long, the template refuses the chat
        yield {"error": {"message": str(error), "type": "invalid_request_error"}}


if __name__ == "__main__":
    main(sys.argv[1:])
