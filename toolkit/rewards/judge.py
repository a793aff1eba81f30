"""The reward `judge`: a judge model assesses the completion in words and marks it. How it is asked stands in `verdict`."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from toolkit.errors import EngineError, KeyFault, ToolkitError
from toolkit.rewards.base import RewardBase
from toolkit.rewards.endpoint import Endpoint, Failure, Reply, checked_address, is_loopback
from toolkit.rewards.replies import Replies
from toolkit.rewards.verdict import JSON_SCHEMA, judge_prompt, normalised, read_score
from toolkit.tasks.base import Row

_log = logging.getLogger(__name__)
_IDENTITY = ("id", "root", "parent", "meta")
"""Of a served model's entry what tells one model from another: vLLM's root and parent, llama.cpp's meta."""
_NO_SCORE, _CUT_OFF = "a reply without a score", "a reply that is cut off before its score"
_TEMPLATE_TOKENS = 32
"""Room for what a chat template puts around the judge's question."""
_CARDS: dict[tuple[Endpoint, str | None], dict[str, Any]] = {}
"""Asked for once in a process."""
_ONLY_WITH_ENDPOINT = ("model", "api_key_env", "reply", "temperature")
_FORMS: dict[str, dict[str, Any]] = {
    "json_schema": {"type": "json_schema", "json_schema": {"name": "verdict", "strict": True, "schema": JSON_SCHEMA}},
    "json_object": {"type": "json_object", "schema": JSON_SCHEMA},
}
"""OpenAI's `response_format`, and the older one of llama.cpp's Python server."""


class Judge(RewardBase):
    """The mark that a judge model gives a completion: -1 for the scale's lowest, 1 for its highest.

    Range -clip to clip. A completion that the judge gives no mark (no reply in time, an error, a reply without a score) is
    left out (None), never paid 0. Question and completion are shown as quoted material; only the judge's own reply is read.
    After the single-answer grading of LLM-as-a-judge (Zheng et al. 2023, arXiv 2306.05685).
    """

    name: Literal["judge"] = "judge"
    asks_model: ClassVar[bool] = True

    criteria: str = Field(min_length=1)
    """What a good answer is, in words for the judge."""
    scale: tuple[float, float] = (0.0, 10.0)
    """Lowest and highest mark that the judge may give."""
    clip: float = Field(default=1.0, gt=0, le=1)
    """The reward is cut off at this value, and at its negative."""
    endpoint: str | None = None
    """Address of an OpenAI-compatible server, e.g. http://127.0.0.1:8080/v1; null = the policy's own base model."""
    model: str | None = None
    """The model to ask for there; null = the only one it serves."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the endpoint's key; null = it wants none."""
    timeout_s: float = Field(default=60.0, gt=0)
    """Longest wait for one try, in seconds."""
    retries: int = Field(default=3, ge=0, le=20)
    """Further tries after a time-out, a lost connection, or the statuses 408, 409, 429 and 5xx, with growing pauses."""
    parallel: int = Field(default=8, ge=1, le=256)
    """Requests that are under way at the same time."""
    temperature: float = Field(default=0.0, ge=0, le=2)
    """How the endpoint samples; at 0 it gives the same mark again, as far as it can."""
    max_tokens: int = Field(default=256, ge=1)
    """Longest reply, in tokens. A reply that is cut off before its score is none."""
    reply: Literal["text", "json_schema", "json_object"] = "text"
    """Form of the reply: free text that ends in a score line, or JSON that the endpoint enforces (docs/rewards.md)."""
    cache: bool = True
    """Keep an endpoint's replies on disk and use them again for the same completion."""

    @field_validator("scale")
    @classmethod
    def _rising(cls, scale: tuple[float, float]) -> tuple[float, float]:
        if scale[0] >= scale[1]:
            raise ValueError(f"the lowest mark comes first: [{scale[1]:g}, {scale[0]:g}]")
        return scale

    @field_validator("api_key_env")
    @classmethod
    def _a_name_and_no_key(cls, name: str | None) -> str | None:
        if name is not None and not re.fullmatch(r"[A-Z_][A-Z0-9_]*", name):  # shown nowhere: it may be the key itself
            raise KeyFault("expected an environment variable's name in capitals", hint="api_key_env: JUDGE_API_KEY")
        return name

    @field_validator("endpoint")
    @classmethod
    def _plain_address(cls, url: str | None) -> str | None:
        return None if url is None else checked_address(url)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.endpoint is None:
            for key in _ONLY_WITH_ENDPOINT:
                if getattr(self, key) != type(self).model_fields[key].default:
                    raise KeyFault(f"{key} is the endpoint's, and there is none", at=(key,), hint="set endpoint")
        elif self.api_key_env and self.endpoint.startswith("http:") and not is_loopback(self.endpoint):
            hint = "use https, or a tunnel that ends on 127.0.0.1"
            raise KeyFault("would send the key over the network unencrypted", at=("endpoint",), hint=hint)
        return self

    @property
    def bounds(self) -> tuple[float | None, float | None]:
        return -self.clip, self.clip

    def score(self, text: str, row: Row) -> float | None:
        return self.score_batch([text], [row])[0]

    def score_batch(
        self, texts: Sequence[str], rows: Sequence[Row], *, ids: Sequence[Sequence[int]] | None = None
    ) -> list[float | None]:
        prompts = [
            judge_prompt(self.criteria, self.scale, text, row, as_json=self.reply != "text")
            for text, row in zip(texts, rows, strict=True)
        ]
        marks = self._marks(list(dict.fromkeys(prompts))) if prompts else {}
        self._tell([mark for prompt in prompts if isinstance(mark := marks[prompt], Failure)], len(prompts))
        return [self._value(marks[prompt]) for prompt in prompts]

    def ready(self, rows: Sequence[Row]) -> None:
        """Whether the endpoint answers, takes the key, and serves the model; or whether the base model has room to judge."""
        if self.endpoint is None:
            return self._require_room()
        found = self._connection.serving(self.model)
        if isinstance(found, Failure):
            raise ToolkitError(
                f"the judge cannot be asked: {found}", where=self.endpoint, hint=self._connection.way_out(found)
            )

    def _require_room(self) -> None:
        spare = self._around and self._around.spare_length
        if spare is None:
            return
        prompt = judge_prompt(self.criteria, self.scale, "", Row("", "", ""), as_json=False)
        try:
            needed = self.around.count_tokens(prompt) + self.max_tokens + _TEMPLATE_TOKENS
        except EngineError:  # its tokenizer is not on this machine; the base model will tell
            return
        if needed > spare:
            raise ToolkitError(
                f"the judge takes {needed} tokens beside prompt and completion, and model.max_seq_length leaves {spare}",
                hint=f"raise model.max_seq_length by {needed - spare}, or shorten criteria or max_tokens",
            )

    def _value(self, mark: float | Failure) -> float | None:
        if isinstance(mark, Failure):
            return None
        return min(max(normalised(mark, self.scale), -self.clip), self.clip)

    def _marks(self, prompts: Sequence[str]) -> dict[str, float | Failure]:
        """The mark for each prompt, or why there is none."""
        if self.endpoint is not None:
            return self._from_endpoint(prompts)
        chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
        replies = self.around.ask_base(chats, self.max_tokens)
        return {prompt: self._read(Reply(text)) for prompt, text in zip(prompts, replies, strict=True)}

    def _from_endpoint(self, prompts: Sequence[str]) -> dict[str, float | Failure]:
        """Asks for what is not kept yet. Only replies with a mark are kept: a failure may be another one tomorrow."""
        card = _card(self._connection, self.model)
        if isinstance(card, Failure):
            return dict.fromkeys(prompts, card)
        bodies = {prompt: self._body(prompt, card["id"]) for prompt in prompts}
        keys = {prompt: _digest([self.endpoint, card, body]) for prompt, body in bodies.items()}
        kept = self._replies.find(keys.values()) if self._replies else {}
        missing = [prompt for prompt in prompts if keys[prompt] not in kept]
        replies = self._connection.ask([bodies[prompt] for prompt in missing]) if missing else []
        fresh = dict(zip(missing, replies, strict=True))
        marks = {prompt: self._read(fresh.get(prompt) or Reply(kept[keys[prompt]])) for prompt in prompts}
        if self._replies:
            self._replies.keep(
                {keys[prompt]: reply.text for prompt, reply in fresh.items()
                 if isinstance(reply, Reply) and not isinstance(marks[prompt], Failure)}
            )  # fmt: skip
        return marks

    def _read(self, reply: Reply | Failure) -> float | Failure:
        if isinstance(reply, Failure):
            return reply
        score = read_score(reply.text, self.scale, as_json=self.reply != "text")
        if score is None:
            return Failure(_CUT_OFF if reply.cut_off else _NO_SCORE, repr(reply.text[-80:]))
        return score

    def _body(self, prompt: str, model: str) -> dict[str, Any]:
        """The request, in fields that llama.cpp, vLLM, Ollama, Open WebUI and hosted endpoints all know."""
        body = {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
        }
        return body if self.reply == "text" else body | {"response_format": _FORMS[self.reply]}

    @property
    def _connection(self) -> Endpoint:
        assert self.endpoint is not None
        return Endpoint(self.endpoint, self.api_key_env, self.timeout_s, self.retries, self.parallel)

    @property
    def _replies(self) -> Replies | None:
        folder = self._around.cache_folder if self._around else None
        return Replies(folder / "judge.sqlite") if self.cache and folder else None

    def _tell(self, failures: Sequence[Failure], asked: int) -> None:
        """One line for each kind of failure, with its count; one more where nothing else came back."""
        for kind, count in Counter(failure.kind for failure in failures).items():
            first = next(failure for failure in failures if failure.kind == kind)
            _log.warning("judge: %d of %d completions have no mark and are left out: %s", count, asked, first)
        if failures and len(failures) == asked:
            where = self.endpoint or "the policy's own base model"
            _log.warning("judge: %s gave none of %d completions a mark; %s", where, asked, self._way_out(failures[0]))

    def _way_out(self, failure: Failure) -> str:
        if failure.kind == _CUT_OFF:
            return f"raise max_tokens, now {self.max_tokens}"
        if self.endpoint is None:
            return "a larger model keeps to the form: set an endpoint"
        if failure.kind == _NO_SCORE:
            return "reply: json_schema lets the endpoint enforce the form"
        return self._connection.way_out(failure)


def _card(endpoint: Endpoint, model: str | None) -> dict[str, Any] | Failure:
    """What tells the judge's model from another one: `id`, and what the server says of its weights.

    A server that lists no models, or not this one, is asked for it by its name all the same.
    """
    if (endpoint, model) not in _CARDS:
        found = endpoint.serving(model)
        if isinstance(found, Failure):
            return found if model is None else {"id": model}
        _CARDS[endpoint, model] = {key: found[key] for key in _IDENTITY if key in found}
    return _CARDS[endpoint, model]


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
