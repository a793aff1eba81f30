"""The boundary to the Hub's client: who asks, how patiently, and what its failures mean. It decides nothing about files.

The token comes from the environment or from `hf auth login`. It stands in no message, and in no chain of exceptions.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from toolkit.errors import MissingExtraError, ToolkitError

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

Answer = TypeVar("Answer")
LONGEST_ANSWER = 200
CONNECT_S, ANSWER_S = 20.0, 120.0
"""Patience for a connection, and between two bytes of an answer. The client's own has no end."""
TOKENS_PAGE = "https://huggingface.co/settings/tokens"
_SECRETS = re.compile(r"hf_\w{8,}|(?<=\?)\S*(?:Signature|Credential|token)=\S*", re.IGNORECASE)
"""Tokens, and the signed part of an upload's address."""


def client(*, progress: bool = False) -> HfApi:
    """The Hub's client with this machine's token."""
    import httpx
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.utils import disable_progress_bars, get_session

    if get_token() is None:
        raise ToolkitError("there is no token for the Hub", hint="hf auth login, or set HF_TOKEN")
    if not progress:
        disable_progress_bars()
    for handler in logging.getLogger("huggingface_hub").handlers:
        handler.addFilter(_without_secrets)  # one of the logger itself would not see its children's words
    get_session().timeout = httpx.Timeout(ANSWER_S, connect=CONNECT_S)
    return HfApi()


def asking(action: Callable[[], Answer], *, where: str, retry: str) -> Answer:
    """What the action returns. Whatever the Hub's client raises becomes one sentence and the command to try again."""
    try:
        import huggingface_hub  # noqa: F401
        from httpx import HTTPError
    except ImportError:
        raise MissingExtraError("huggingface_hub", "cpu") from None
    try:
        return action()
    except ToolkitError as error:
        error.hint = f"{error.hint}; then: {retry}" if error.hint else retry
        raise
    except (HTTPError, OSError, RuntimeError, ValueError) as error:
        failure = _explained(error, where=where, retry=retry)
    # Raised here, and not there, so that no chain leads to the request and its headers.
    raise failure


def redacted(text: object) -> str:
    """A foreign message in one line, without the token should it hold it."""
    from huggingface_hub import get_token

    whole = " ".join(str(text).replace(get_token() or "\0", "…").split())
    line = _SECRETS.sub("…", whole)
    return line if len(line) <= LONGEST_ANSWER else line[:LONGEST_ANSWER] + "…"


def _without_secrets(record: logging.LogRecord) -> bool:
    """The client warns of each request that it repeats, with the whole address, the signed ones of uploads among them."""
    record.msg, record.args = redacted(record.getMessage()), ()
    return True


def _explained(error: Exception, *, where: str, retry: str) -> ToolkitError:
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    # A file that could not be sent reaches us wrapped in a RuntimeError.
    cause = error.__cause__ if isinstance(error, RuntimeError) and error.__cause__ else error
    if isinstance(cause, OfflineModeIsEnabled):
        what, way_out = "the Hub is switched off here: HF_HUB_OFFLINE is set", "unset HF_HUB_OFFLINE"
    elif isinstance(cause, HfHubHTTPError):
        what, way_out = _refusal(cause, where)
    else:
        what, way_out = f"the Hub cannot be used: {type(cause).__name__}: {redacted(cause)}", None
    return ToolkitError(what, where=where, hint=f"{way_out}; then: {retry}" if way_out else retry)


def _refusal(error: HfHubHTTPError, repo: str) -> tuple[str, str | None]:
    """What an answer of the Hub means, and the way out."""
    from huggingface_hub.errors import GatedRepoError

    status, owner = error.response.status_code, repo.split("/")[0]
    if isinstance(error, GatedRepoError):
        return "the repository is gated", f"ask for access at {repo}'s page"
    if status == 401:
        return "the Hub does not accept the token", "hf auth login, or set HF_TOKEN anew"
    if status == 403:
        return "the token may not write there", f"a token that may write to {owner}: {TOKENS_PAGE}"
    if status == 404:
        return "the Hub has no such place, or the token may not see it", "check the name"
    said = f": {redacted(error.server_message)}" if error.server_message else ""
    return f"the Hub answered {status}{said}", None
