"""The base model's tokenizer without its model, and chats through its template as training writes them. It loads no weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from toolkit.engine.source import is_hub_name, training_source
from toolkit.errors import EngineError
from toolkit.prompts import fold_system, takes_system

if TYPE_CHECKING:
    from toolkit.recipe import Model

NO_CHAT_TEMPLATE = "the base model has no chat template, so its prompts cannot be rendered"


def load_tokenizer(model: Model) -> Any:
    """What transformers makes of the recipe's base model. EngineError where it is neither here nor to be had."""
    from transformers import AutoTokenizer

    try:
        source, hub = training_source(model), {}
        if is_hub_name(model.source):
            hub = {"revision": model.revision or "main", "local_files_only": not _hub_answers(model)}
        return AutoTokenizer.from_pretrained(source, **hub)
    except (OSError, ValueError) as error:
        reason = str(error).split("\n")[0]
        hint = "connect to the Hub, or set model.source to a folder or a GGUF file"
        raise EngineError(f"its tokenizer cannot be loaded: {reason}", where=model.source, hint=hint) from error


def _hub_answers(model: Model) -> bool:
    """Asked once, briefly: without a network transformers asks again and again for most of a minute."""
    from httpx import TransportError
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        HfApi().model_info(model.source, revision=model.revision, timeout=10)
    except HfHubHTTPError:  # an answer, if no good one; it is an OSError, too
        return True
    except (TransportError, OSError):
        return False
    return True


class ChatTemplate:
    """A tokenizer's chat template. Where it has no system role, a system text goes into the first user turn."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    @cached_property
    def takes_system(self) -> bool:
        """Whether it neither refuses nor forgets a system message. Asked once: the answer is the template's."""
        return takes_system(self._render)

    def chat(self, messages: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
        """The messages as this template takes them."""
        return [dict(message) for message in messages] if self.takes_system else fold_system(messages)

    def text(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The prompt, special tokens and all, ready for the answer."""
        with refusals():
            return self._render(self.chat(messages))

    def token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Prompts that `text` wrote as token ids, together: thousands take a second or two."""
        return self._tokenizer(list(texts), add_special_tokens=False, verbose=False).input_ids if texts else []

    def _render(self, chat: list[dict[str, str]]) -> str:
        return self._tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)


@contextmanager
def refusals() -> Iterator[None]:
    """A conversation that the template refuses (two user turns in a row, say) is the data's fault, not a bug."""
    from jinja2 import TemplateError

    try:
        yield
    except TemplateError as error:
        raise EngineError(
            f"the model's chat template refuses a conversation: {error}", hint="toolkit data RECIPE"
        ) from error
