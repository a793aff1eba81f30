"""Whether a repository of the Hub may be read from here, and what of it is in the cache. It downloads nothing.

The Hub is asked for a page of facts, with little patience; the token goes along where there is one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from toolkit.atomic import read_json
from toolkit.engine.sixteen_bit import ungated_copy
from toolkit.hubapi.client import TOKENS_PAGE, redacted

if TYPE_CHECKING:
    from huggingface_hub import HfApi

Kind = Literal["model", "dataset"]
SECONDS = 5.0
"""Patience for each answer. A check must not hang where packets are dropped."""
_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_NEEDED = (".safetensors", ".json", ".model", ".jinja", ".txt", ".parquet", ".jsonl", ".csv")


@dataclass(frozen=True, slots=True)
class Reading:
    """What the Hub said. `what` and `way_out` are set where the repository cannot be read."""

    state: Literal["open", "closed", "unreachable"]
    size_bytes: int | None = None
    what: str = ""
    way_out: str | None = None


def reading(name: str, *, kind: Kind = "model", revision: str | None = None) -> Reading:
    """Whether this machine may download the repository. Whatever goes wrong is an answer, never an exception."""
    from httpx import HTTPError
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        with _briefly():
            size = _asked(HfApi(), name, kind, revision)
    except GatedRepoError:
        return _gated(name, kind)
    except RevisionNotFoundError:
        return Reading("closed", what=f"it has no revision {revision}", way_out="model.revision: main")
    except RepositoryNotFoundError:
        hint = f"look for it on {page(name, kind)}; a private one needs a token that may read it: {TOKENS_PAGE}"
        return Reading("closed", what="the Hub has no such place, or this token may not see it", way_out=hint)
    except HfHubHTTPError as error:
        status = error.response.status_code
        hint = (
            "hf auth login, or set HF_TOKEN anew" if status == 401 else "try again later: https://status.huggingface.co"
        )
        return Reading(
            "closed", what=f"the Hub answered {status}: {redacted(error.server_message or '')}", way_out=hint
        )
    except (HTTPError, OSError, ValueError, RuntimeError):
        return Reading("unreachable")
    return Reading("open", size_bytes=size)


def _asked(api: HfApi, name: str, kind: Kind, revision: str | None) -> int | None:
    """Bytes of the files that would be fetched. A gated repository shows its facts to everybody, and its files to some."""
    info: Any = api.repo_info(name, repo_type=kind, revision=revision, timeout=SECONDS, files_metadata=True)
    if getattr(info, "gated", None):
        api.auth_check(name, repo_type=kind)
    files = [file for file in info.siblings or [] if file.rfilename.endswith(_NEEDED)]
    return sum(file.size or 0 for file in files) or None


@contextmanager
def _briefly() -> Iterator[None]:
    """The client's own patience has no end."""
    import httpx
    from huggingface_hub.utils import get_session

    session = get_session()
    before, session.timeout = session.timeout, httpx.Timeout(SECONDS)
    try:
        yield
    finally:
        session.timeout = before


def _gated(name: str, kind: Kind) -> Reading:
    from huggingface_hub import get_token

    copy = ungated_copy(name) if kind == "model" else None
    instead = f"; or, without any of it, the copy that is not gated: model.source={copy}" if copy else ""
    if get_token() is None:
        hint = f"accept its terms on {page(name, kind)}, make a token on {TOKENS_PAGE}, then: hf auth login{instead}"
        return Reading("closed", what="it is gated, and there is no token here", way_out=hint)
    hint = f"ask for access on {page(name, kind)} with the account of this token{instead}"
    return Reading("closed", what="it is gated, and this token has no access to it", way_out=hint)


def page(name: str, kind: Kind = "model") -> str:
    """Where a person looks at the repository."""
    from huggingface_hub import constants

    return f"{constants.ENDPOINT}/{'datasets/' * (kind == 'dataset')}{name}"


def missing_model_files(name: str, revision: str | None) -> Iterator[str]:
    """Files of a model without which it cannot be loaded, that are not in the cache."""

    def there(file: str) -> Path | None:
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(name, file, revision=revision)
        return Path(found) if isinstance(found, str) else None

    if there("config.json") is None:
        yield "config.json"
    if index := there(_INDEX):
        yield from (shard for shard in sorted(set(read_json(index)["weight_map"].values())) if there(shard) is None)
    elif there(_WEIGHTS) is None:
        yield _WEIGHTS


def missing_data(name: str) -> Iterator[str]:
    """The data set's name where the cache holds no snapshot of it."""
    from huggingface_hub import constants

    folder = Path(constants.HF_HUB_CACHE) / f"datasets--{name.replace('/', '--')}" / "snapshots"
    if not any(folder.glob("*")):
        yield "its files"
