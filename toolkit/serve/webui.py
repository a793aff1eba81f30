"""Open WebUI in front of an export: started in its own environment, on loopback alone, and told of the model.

It installs nothing: that is `webui_setup`.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from toolkit import console
from toolkit.bundle import open_webui_model, speech_of
from toolkit.errors import ToolkitError
from toolkit.serve import LOOPBACK, Served, prepare, serving
from toolkit.serve.process import Server, free_port, post_json, running, until_stopped, wait_while_running
from toolkit.serve.webui_setup import set_up

HOME = Path(".open-webui")
"""Its environment, its data (chats and settings, kept from one start to the next) and its log."""
READY_LIMIT_S = 600
"""It imports for 20 s on an idle machine; the first start makes its data base."""
FROM_OUTSIDE = ("HOME", "LANG", "LC_ALL", "PATH", "TMPDIR", "TZ", "USER")
"""All that it inherits. It reads some hundred variables, and those of other programs would lead it elsewhere."""

ALWAYS = {
    "WEBUI_AUTH": "False",  # one user, this one: it listens on loopback alone
    "ENABLE_PERSISTENT_CONFIG": "False",  # else the first start's settings outlive the variables below
    "OFFLINE_MODE": "true", "HF_HUB_OFFLINE": "1", "ENABLE_VERSION_UPDATE_CHECK": "False",
    "ENABLE_COMMUNITY_SHARING": "False", "ENABLE_PLUGINS": "False", "ENABLE_OLLAMA_API": "False",
    "DO_NOT_TRACK": "true", "SCARF_NO_ANALYTICS": "true", "ANONYMIZED_TELEMETRY": "false", "HF_HUB_DISABLE_TELEMETRY": "1",
    "RAG_EMBEDDING_ENGINE": "openai",  # else it looks for an embedding model on the Hub
    # Each of these would ask the model things that its training never saw, behind the user's back.
    "ENABLE_TITLE_GENERATION": "False", "ENABLE_TAGS_GENERATION": "False", "ENABLE_FOLLOW_UP_GENERATION": "False",
    "ENABLE_AUTOCOMPLETE_GENERATION": "False", "ENABLE_SEARCH_QUERY_GENERATION": "False",
    "ENABLE_RETRIEVAL_QUERY_GENERATION": "False", "ENABLE_MEMORIES": "False",
    "DEFAULT_MODEL_METADATA": json.dumps({"capabilities": {"builtin_tools": False}}),
    "GLOBAL_LOG_LEVEL": "WARNING", "FROM_INIT_PY": "true",  # as its own command sets it: where an installed one keeps its pages
}  # fmt: skip


def open_webui(
    path: Path, *, file: str | None = None, port: int = 3000, model_port: int = 0, environment: Path | None = None
) -> None:
    """Set Open WebUI up where it is not yet, start it and the model's server, and wait until somebody stops them."""
    with until_stopped():
        served = prepare(path, file=file, host=LOOPBACK, port=model_port)
        port = free_port(LOOPBACK, port)
        python = set_up(environment or HOME / "env")
        model = open_webui_model(served.file.name, speech_of(served.file, served.export.merged), served.settings)
        with serving(served) as server, _webui(python, _environment(served, model["id"], port), port) as webui:
            url = f"http://{LOOPBACK}:{port}"
            webui.wait_until_healthy(f"{url}/ready", limit_s=READY_LIMIT_S)
            add_model(url, model)
            _show(url, model, served)
            wait_while_running([server, webui])


def _webui(python: Path, env: Mapping[str, str], port: int) -> AbstractContextManager[Server]:
    log = _folder(HOME) / "open-webui.log"
    console.note(f"starting Open WebUI; its log: {log}")
    module = ["uvicorn", "open_webui.main:app", "--host", LOOPBACK, "--port", str(port), "--log-level", "warning"]
    # uvicorn looks for modules in its folder first: not in this project's.
    return running("Open WebUI", module, log=log, python=str(python), env=env, cwd=Path(env["DATA_DIR"]))


def add_model(url: str, model: Mapping[str, Any]) -> None:
    """Tell a running Open WebUI without log-in of a model, as its page does at Workspace > Models > Import."""
    token = post_json(f"{url}/api/v1/auths/signin", {"email": "", "password": ""}).get("token", "")
    answer = post_json(f"{url}/api/v1/models/import", {"models": [model]}, token=token)
    if answer is not True:
        raise ToolkitError(f"Open WebUI did not take the model: {json.dumps(answer)[:200]}", where=url)


def _environment(served: Served, model_id: str, port: int) -> dict[str, str]:
    kept = {name: os.environ[name] for name in FROM_OUTSIDE if name in os.environ}
    return kept | ALWAYS | {
        "DATA_DIR": str(_folder(HOME / "data").resolve()),
        "WEBUI_SECRET_KEY": _secret(HOME / "secret"),
        "OPENAI_API_BASE_URLS": served.base_url,
        "OPENAI_API_KEYS": "none",
        "DEFAULT_MODELS": model_id,
        # Other pages that are open in the browser must not ask it for anything: it has no log-in.
        "CORS_ALLOW_ORIGIN": f"http://{LOOPBACK}:{port};http://localhost:{port}",
    }  # fmt: skip


def _folder(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


def _secret(path: Path) -> str:
    """What signs its sessions: made once, so that a page that is open survives a new start."""
    if not path.exists():
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
    return path.read_text()


def _show(url: str, model: Mapping[str, Any], served: Served) -> None:
    console.say(f"Open WebUI: [bold]{url}[/]")
    console.say(f"  model: {console.untrusted(model['name'])}, with the system prompt and the sampling of its training")
    console.say(f"  its server: {served.base_url}")
    console.say("Ctrl-C stops both.")
