"""Asks an OpenAI-compatible endpoint, several chats at a time: replies come back, or the reason why there is none.

It reads no scores, keeps nothing and logs nothing. The key is read from the environment when it is needed, and stands in
no value that leaves this module.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from toolkit.errors import KeyFault, ToolkitError, nearest
from toolkit.rewards.waiting import wait_for

_PROBE_S = 5.0
"""Patience of the request that only asks whether anybody is there."""
_SHOWN = 160
_LATE, _NOBODY = "no reply in time", "no connection"


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model wrote. `cut_off`: it ran into the token limit."""

    text: str
    cut_off: bool = False


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no reply: a kind, by which failures are counted, and what the first of a kind may add."""

    kind: str
    detail: str = ""
    status: int | None = None

    def __str__(self) -> str:
        return f"{self.kind} ({self.detail})" if self.detail else self.kind


def checked_address(
    url: str,
    *,
    example: str = "endpoint: http://127.0.0.1:8080/v1",
    where_keys_go: str = "name the key's environment variable: api_key_env",
) -> str:
    """A server's address as requests extend it. A fault does not repeat the text, for that may hold a password."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or re.search(r"\s", url):
        raise KeyFault("expected an address that begins with http:// or https://", hint=example)
    if parts.username is not None or parts.password is not None:
        raise KeyFault("a recipe holds no passwords", hint=where_keys_go)
    if parts.query or parts.fragment:
        raise KeyFault("an address with ? or # cannot be extended", hint=example)
    return url.rstrip("/")


def is_loopback(url: str) -> bool:
    """Whether the address is this machine's own."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address that speaks OpenAI's chat protocol, and how patiently it is asked."""

    url: str
    api_key_env: str | None = None
    timeout_s: float = 60.0
    retries: int = 3
    parallel: int = 8

    def serving(self, model: str | None) -> dict[str, Any] | Failure:
        """The entry in `GET /models` of this model; None: of the only one. One short request, without retries."""
        served = wait_for(self._served())
        return served if isinstance(served, Failure) else _chosen(served, model)

    def ask(self, bodies: Sequence[Mapping[str, Any]]) -> list[Reply | Failure]:
        """Post each body to `/chat/completions`, `parallel` at a time.

        A body is tried again after a time-out, a lost connection, and the statuses 408, 409, 429 and 5xx: after half a second,
        doubling up to 8, with jitter, or as `Retry-After` says. Whatever the server does, it is given up when all
        tries and the pauses between them could be over.
        """
        return wait_for(self._ask_all(bodies))

    def way_out(self, failure: Failure) -> str:
        """What to try."""
        if failure.kind in (_LATE, _NOBODY) and is_loopback(self.url):
            port = urlsplit(self.url).port or 8080
            return f"start it, for instance: python -m llama_cpp.server --model JUDGE.gguf --port {port}"
        if failure.status in (401, 403):
            return "api_key_env: the name of the environment variable that holds its key"
        if failure.status == 404:
            return "such an address mostly ends in /v1, like http://127.0.0.1:8080/v1"
        return f"curl {self.url}/models"

    @property
    def _longest_s(self) -> float:
        return self.timeout_s * (self.retries + 1) + sum(min(0.5 * 2**number, 8.0) for number in range(self.retries))

    async def _served(self) -> list[dict[str, Any]] | Failure:
        async with self._client(timeout_s=min(_PROBE_S, self.timeout_s), retries=0) as client:
            answer = await self._request(client.get, "/models", _PROBE_S)
        if isinstance(answer, Failure):
            return answer
        models = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(models, list):
            return _STRANGE
        return [model for model in models if isinstance(model, dict) and isinstance(model.get("id"), str)]

    async def _ask_all(self, bodies: Sequence[Mapping[str, Any]]) -> list[Reply | Failure]:
        room = asyncio.Semaphore(self.parallel)

        async def ask(body: Mapping[str, Any]) -> Reply | Failure:
            async with room:
                return _reply(await self._request(client.post, "/chat/completions", self._longest_s, body=body))

        async with self._client(timeout_s=self.timeout_s, retries=self.retries) as client:
            return await asyncio.gather(*map(ask, bodies))

    async def _request(self, send: Any, path: str, longest_s: float, **body: Any) -> Any:
        """The answer's JSON, or a Failure. `longest_s` also ends what a time-out between two bytes does not: trickles."""
        import openai

        try:
            async with asyncio.timeout(longest_s):
                return json.loads(await send(path, cast_to=str, **body))
        except (openai.APITimeoutError, TimeoutError):
            return Failure(_LATE, f"given up after {longest_s:g} s at most")
        except openai.APIStatusError as error:
            detail = self._without_key(" ".join(error.response.text.split()))
            return Failure(f"HTTP {error.status_code}", repr(detail[:_SHOWN]), error.status_code)
        except openai.APIConnectionError as error:
            return Failure(_NOBODY, type(error.__cause__ or error).__name__)
        except (ValueError, RecursionError):
            return _STRANGE

    def _client(self, *, timeout_s: float, retries: int) -> Any:
        import openai

        # A proxy that the environment names cannot reach this machine's own addresses.
        http = openai.DefaultAsyncHttpxClient(trust_env=not is_loopback(self.url))
        # A key must be given: without one the library would send the environment's OPENAI_API_KEY to any endpoint.
        key = self._key() or "none"
        return openai.AsyncOpenAI(
            base_url=self.url, api_key=key, timeout=timeout_s, max_retries=retries, http_client=http
        )

    def _key(self) -> str | None:
        if self.api_key_env is None:
            return None
        key = os.environ.get(self.api_key_env, "").strip()
        if not key or not key.isascii() or not key.isprintable():
            what = "holds no key that could be sent" if key else "is not set"
            hint = f"export {self.api_key_env}=…"
            raise ToolkitError(f"the environment variable {self.api_key_env} {what}", where=self.url, hint=hint)
        return key

    def _without_key(self, text: str) -> str:
        """A server may quote the key that it refuses."""
        key = self._key()
        return text.replace(key, "…") if key else text


_STRANGE = Failure("an answer that is not in OpenAI's form")


def _chosen(served: Sequence[dict[str, Any]], model: str | None) -> dict[str, Any] | Failure:
    names = [entry["id"] for entry in served]
    some = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
    if model is None:
        several = Failure("it serves several models, so one must be named", some)
        return served[0] if len(served) == 1 else several if served else Failure("it serves no model")
    if model not in names:
        near = nearest(model, names)
        return Failure(f"it does not serve {model!r}", f"did you mean {near}?" if near else f"but {some or 'nothing'}")
    return served[names.index(model)]


def _reply(answer: Any) -> Reply | Failure:
    """The words in a chat completion's JSON."""
    if isinstance(answer, Failure):
        return answer
    try:
        choice = answer["choices"][0]
        text, cut_off = choice["message"]["content"], choice.get("finish_reason") == "length"
    except (LookupError, TypeError, AttributeError):
        return _STRANGE
    if not isinstance(text, str):
        return Failure("a reply without text", "cut off at max_tokens" if cut_off else "")
    return Reply(text.encode("utf-8", "replace").decode(), cut_off)
