"""The push step: uploads a verified export to the Hugging Face Hub and compares what arrived. It changes nothing here.

The token comes from the environment or from `hf auth login`, and is never shown.
"""

from __future__ import annotations

import glob
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit import console
from toolkit.errors import MissingExtraError, ToolkitError
from toolkit.rundir import ExportDir, read_json, sha256_of

if TYPE_CHECKING:
    from huggingface_hub import HfApi

LONGEST_ANSWER = 200


@dataclass(frozen=True, slots=True)
class Pushed:
    """What now lies on the Hub."""

    repo: str
    url: str
    private: bool
    files: int
    size_bytes: int


def push_export(path: Path, *, repo: str | None = None) -> Pushed:
    """Upload the files of the export into `repo`, else its recipe's `hub.repo`, and compare them with what arrived.

    Only what `toolkit verify` passed is uploaded, byte for byte. Without success everything stays as it is.
    """
    from toolkit.recipe import load_resolved

    export = ExportDir(path)
    hub = load_resolved(export.recipe).recipe.hub
    target = repo or hub.repo
    if target is None or target.count("/") != 1:
        what = f"{target} is no repository" if target else "the recipe names no hub.repo to push to"
        raise ToolkitError(what, where=str(path), hint=f"toolkit push {shlex.quote(str(path))} --repo ORG/NAME")
    console.note(f"comparing {console.untrusted(path)} with its certificate")
    files = verified_files(export)
    with _hub_errors(target, retry=shlex.join(["toolkit", "push", str(path), "--repo", target])):
        api = _api()
        private = _prepare_repo(api, target, private=hub.private, recipe=export.recipe)
        commit = api.upload_folder(
            repo_id=target,
            folder_path=path,
            allow_patterns=[glob.escape(name) for name in files],
            commit_message=f"{path.name}, verified",
        )
        _compare(api, target, str(commit.oid), path, files)
    pushed = Pushed(target, f"{api.endpoint}/{target}", private, len(files), sum(_size(path / name) for name in files))
    _show(pushed)
    return pushed


def verified_files(export: ExportDir) -> dict[str, str]:
    """Path -> SHA-256 of all files to upload. An error unless verify.json passed exactly these bytes."""
    anew = f"toolkit verify {shlex.quote(str(export.path))}"
    if not export.certificate.is_file():
        raise ToolkitError("the export is not verified", where=str(export.path), hint=anew)
    certificate, manifest = read_json(export.certificate), read_json(export.manifest)
    parts = [certificate, certificate["merged"], *certificate["files"]]
    if not all(part["passed"] is True for part in parts):
        raise ToolkitError("verification did not pass", where=str(export.certificate), hint=anew)
    proven = {file["file"]: file["sha256"] for file in certificate["files"]}
    proven |= {f"{export.merged.name}/{name}": digest for name, digest in manifest["merged"]["sha256"].items()}
    there = {file.relative_to(export.path).as_posix(): sha256_of(file) for file in _weights(export)}
    changed = sorted(name for name in proven.keys() | there.keys() if proven.get(name) != there.get(name))
    if changed:
        what = f"{changed[0]} is not the file that was verified" + (
            f" (and {len(changed) - 1} more)" * (len(changed) > 1)
        )
        raise ToolkitError(what, where=str(export.path), hint=anew)
    return there | {file.name: sha256_of(file) for file in (export.manifest, export.certificate, export.recipe)}


def _weights(export: ExportDir) -> list[Path]:
    return [*export.path.glob("*.gguf"), *(file for file in export.merged.rglob("*") if file.is_file())]


def _api() -> HfApi:
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.utils import disable_progress_bars

    if get_token() is None:
        raise ToolkitError("there is no token for the Hub", hint="hf auth login, or set HF_TOKEN")
    if not console.is_live():
        disable_progress_bars()
    return HfApi()


def _prepare_repo(api: HfApi, repo: str, *, private: bool, recipe: Path) -> bool:
    """Make the repository where it is missing; whether it is private. A private model goes to no public place."""
    user = api.whoami()["name"]
    console.note(f"pushing to {console.untrusted(repo)} as {console.untrusted(user)}")
    api.create_repo(repo, private=private, exist_ok=True)
    is_private = bool(api.model_info(repo).private)
    if private and not is_private:
        hint = f"make it private on its page, or set hub.private to false in {recipe}"
        raise ToolkitError(f"{repo} is public, and the recipe asks for a private repository", hint=hint)
    return is_private


def _compare(api: HfApi, repo: str, revision: str, path: Path, files: dict[str, str]) -> None:
    """Every file arrived with its size, and with its hash where the Hub knows it. What else lies there is said."""
    from huggingface_hub.hf_api import RepoFile

    tree = api.list_repo_tree(repo, recursive=True, revision=revision)
    remote = {entry.path: entry for entry in tree if isinstance(entry, RepoFile)}
    for name, digest in files.items():
        entry = remote.pop(name, None)
        if entry is None or entry.size != _size(path / name) or (entry.lfs and entry.lfs.sha256 != digest):
            raise ToolkitError(f"{name} did not arrive whole", where=repo)
    if others := [name for name in remote if name.endswith((".gguf", ".safetensors"))]:
        console.warn(f"the repository also holds, from elsewhere: {console.untrusted(', '.join(sorted(others)))}")


@contextmanager
def _hub_errors(repo: str, *, retry: str) -> Iterator[None]:
    """The boundary to the Hub: whatever its client raises becomes one sentence and the command to try again."""
    try:
        from httpx import HTTPError
        from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
    except ImportError:
        raise MissingExtraError("huggingface_hub", "cpu") from None
    try:
        yield
    except ToolkitError as error:
        error.hint = f"{error.hint}; then: {retry}" if error.hint else retry
        raise
    except (HTTPError, OSError, RuntimeError, ValueError) as error:
        cause = error.__cause__ if isinstance(error, RuntimeError) and error.__cause__ else error
        if isinstance(cause, OfflineModeIsEnabled):
            what, way_out = "the Hub is switched off here: HF_HUB_OFFLINE is set", "unset HF_HUB_OFFLINE"
        elif isinstance(cause, HfHubHTTPError):
            what, way_out = _refusal(cause, repo)
        else:
            what, way_out = f"the push failed: {type(cause).__name__}: {_short(str(cause))}", None
        hint = f"{way_out}; then: {retry}" if way_out else retry
        raise ToolkitError(what, where=repo, hint=hint) from error


def _refusal(error: Exception, repo: str) -> tuple[str, str | None]:
    """What an answer of the Hub means, and the way out."""
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError

    assert isinstance(error, HfHubHTTPError)
    status = error.response.status_code
    if isinstance(error, GatedRepoError):
        return "the repository is gated", f"ask for access at {repo}'s page"
    if status == 401:
        return "the Hub does not accept the token", "hf auth login, or set HF_TOKEN anew"
    if status == 403:
        owner = repo.split("/")[0]
        return f"the token may not write to {owner}", f"hf auth login with a token of {owner} that may write"
    if status == 404:
        return "the Hub has no such place, or the token may not see it", "check the name"
    said = f": {_short(error.server_message)}" if error.server_message else ""
    return f"the Hub answered {status}{said}", None


def _short(text: str) -> str:
    """A foreign message in one line, without the token should it hold it."""
    from huggingface_hub import get_token

    line = " ".join(text.replace(get_token() or "\0", "…").split())
    return line if len(line) <= LONGEST_ANSWER else line[:LONGEST_ANSWER] + "…"


def _size(file: Path) -> int:
    return file.stat().st_size


def _show(pushed: Pushed) -> None:
    kind = "private" if pushed.private else "public"
    console.say(f"{pushed.files} files, {pushed.size_bytes / 1e6:.0f} MB, in the {kind} repository {pushed.url}")
