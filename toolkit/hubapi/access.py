"""Whether this machine's token may write to a repository, asked before anything is sent or trained. It changes nothing there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolkit.errors import ToolkitError
from toolkit.hubapi.client import TOKENS_PAGE, asking, client, redacted
from toolkit.hubapi.licences import base_licence, require_name

if TYPE_CHECKING:
    from huggingface_hub import HfApi

    from toolkit.recipe import Recipe

WRITING_ROLES = ("admin", "write", "contributor")
"""Roles within an organisation that may make repositories there."""


@dataclass(frozen=True, slots=True)
class Access:
    """What is known of a repository that may be written to. `private` is None where it is still to be made."""

    user: str
    private: bool | None


def require_access(recipe: Recipe) -> None:
    """Before an expensive step: an error where this recipe pushes and may not. Nothing where it does not push."""
    hub = recipe.hub
    repos = hub.repos if hub.push else (hub.checkpoint_repo,) if hub.push_checkpoints else ()
    if wanted := [repo for repo in repos if repo]:
        without = "train again, or without the push: hub.push=false hub.push_checkpoints=false"
        asking(lambda: _require(wanted, recipe), where=", ".join(wanted), retry=without)


def _require(repos: Sequence[str], recipe: Recipe) -> None:
    api = client()
    licence = base_licence(recipe.model, api)
    for repo in repos:
        require_name(repo, licence)
        check_access(api, repo, private=recipe.hub.private)


def check_access(api: HfApi, repo: str, *, private: bool) -> Access:
    """Errors where the token may not write to the repository, or may not make it, or where a private model would be public."""
    _require_valid(repo)
    who = api.whoami(cache=True)  # the Hub answers this one only so often
    token = (who.get("auth") or {}).get("accessToken") or {}
    if token.get("role") == "read":
        raise ToolkitError("the token may only read", where=repo, hint=f"a token that may write: {TOKENS_PAGE}")
    is_private = _privacy(api, repo)
    if is_private is None:
        _require_may_make(repo, who, token)
    else:
        api.auth_check(repo, write=True)
    if private and is_private is False:
        hint = "make it private on its page, or set hub.private to false"
        raise ToolkitError("it is public, and the recipe asks for a private repository", where=repo, hint=hint)
    return Access(str(who["name"]), is_private)


def _require_valid(repo: str) -> None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        what = f"the Hub has no repositories of this name: {redacted(error)}"
    else:
        return
    raise ToolkitError(what, where=repo)


def _privacy(api: HfApi, repo: str) -> bool | None:
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    try:
        return bool(api.model_info(repo).private)
    except GatedRepoError:  # which the client counts among the repositories that are not found
        raise
    except RepositoryNotFoundError:
        return None


def _require_may_make(repo: str, who: dict[str, Any], token: dict[str, Any]) -> None:
    """The owner is the user, or an organisation in which they may write; a fine-grained token names it."""
    owner = repo.split("/")[0]
    roles = {org.get("name"): org.get("roleInOrg") for org in who.get("orgs") or []}
    if owner != who["name"] and owner not in roles:
        known = ", ".join(map(str, [who["name"], *roles]))
        raise ToolkitError(
            f"{owner} is neither the user nor one of their organisations", where=repo, hint=f"one of: {known}"
        )
    role = roles.get(owner) if owner != who["name"] else "admin"
    if role is not None and role not in WRITING_ROLES:
        hint = f"ask {owner} for the role contributor or write"
        raise ToolkitError(f"the user may only read in {owner}", where=repo, hint=hint)
    if token.get("role") == "fineGrained" and not _may_write(token, owner, repo):
        hint = f"give it the permission to write to {owner}: {TOKENS_PAGE}"
        raise ToolkitError(f"the token may not write to {owner}", where=repo, hint=hint)


def _may_write(token: dict[str, Any], owner: str, repo: str) -> bool:
    scopes = (token.get("fineGrained") or {}).get("scoped") or []
    return any(
        (scope.get("entity") or {}).get("name") in (owner, repo) and "repo.write" in (scope.get("permissions") or [])
        for scope in scopes
    )
