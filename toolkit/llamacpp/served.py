"""Answers chats through a server that speaks OpenAI's protocol, as `toolkit serve` and `llama-server` do. It starts none.

No proxy and no key of the environment is used: the server is this machine's own, or one that the user names.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from http.client import HTTPException
from typing import Any

from toolkit.errors import ToolkitError
from toolkit.llamacpp.runtime import render_chat
from toolkit.prompts import suited

USUAL_PORT = 8080
CONNECT_S, ANSWER_S = 2.0, 600.0
"""Patience for the list of models, and for each piece of an answer: requests wait for each other."""
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class _Refused(Exception):
    """The server says, within its answer, why there is none."""


class ServedModel:
    """A model behind a server; it answers as `ChatModel` does, which loads the file itself. `template` is the file's."""

    def __init__(self, base_url: str, model_id: str, template: str) -> None:
        self.base_url, self.model_id, self._template = base_url, model_id, template

    def answer(self, messages: Sequence[dict[str, str]], *, max_new: int) -> Iterator[str]:
        """The greedy answer, in pieces as they come. ToolkitError where the server refuses, or ends before the answer does."""
        body = {
            "model": self.model_id, "messages": suited(messages, self._render), "max_tokens": max_new, "temperature": 0,
            "repeat_penalty": 1, "stream": True,
        }  # fmt: skip
        try:
            with _direct.open(_post(f"{self.base_url}/chat/completions", body), timeout=ANSWER_S) as lines:
                yield from _pieces(lines)
        except (urllib.error.HTTPError, _Refused) as error:
            said = _told(error) if isinstance(error, urllib.error.HTTPError) else str(error)
            raise ToolkitError(f"the model cannot be asked this: {said}", where=self.base_url) from error
        except (OSError, HTTPException, ValueError, LookupError, TypeError) as error:
            what = f"the server gave no whole answer: {error or type(error).__name__}"
            raise ToolkitError(what, where=self.base_url, hint="is it still there? toolkit serve") from error

    def _render(self, messages: list[dict[str, str]]) -> str:
        return render_chat(self._template, messages, bos="", eos="")


def served_models(base_url: str) -> list[str] | None:
    """The models that a server offers; None where there is none that answers so."""
    try:
        with _direct.open(f"{base_url}/models", timeout=CONNECT_S) as answer:
            return [str(model["id"]) for model in json.load(answer)["data"]]
    except (OSError, HTTPException, ValueError, LookupError, TypeError):
        return None


def _post(url: str, body: Any) -> urllib.request.Request:
    return urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})


def _pieces(lines: Iterator[bytes]) -> Iterator[str]:
    """The words in a stream of server-sent events, which ends with [DONE]."""
    for line in lines:
        data = line.decode("utf-8").removeprefix("data:").strip() if line.startswith(b"data:") else ""
        if data == "[DONE]":
            return
        if data:
            event = json.loads(data)
            if "error" in event:
                raise _Refused(event["error"]["message"])
            yield event["choices"][0]["delta"].get("content") or ""
    raise ValueError("it ended in the middle")


def _told(error: urllib.error.HTTPError) -> str:
    """What the server says of it, in its own words where it has some."""
    try:
        return str(json.load(error)["error"]["message"])
    except (OSError, HTTPException, ValueError, LookupError, TypeError):
        return f"{error.code} {error.reason}"
