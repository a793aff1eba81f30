"""Sends files in one commit and compares what arrived, byte for byte. Which files those are, others decide."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.atomic import sha256_of
from toolkit.errors import ToolkitError

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

MAIN = "main"


@dataclass(frozen=True)
class Item:
    """A file for a repository: its path there, and its bytes or the file that holds them."""

    name: str
    source: Path | bytes
    digest: str | None = None
    """Its SHA-256 where it is known; the file must still have it when it arrives."""

    @property
    def size(self) -> int:
        return len(self.source) if isinstance(self.source, bytes) else self.source.stat().st_size

    @cached_property
    def sha256(self) -> str:
        if self.digest is not None:
            return self.digest
        return hashlib.sha256(self.source).hexdigest() if isinstance(self.source, bytes) else sha256_of(self.source)

    def blob_id(self) -> str:
        """git's name of the content, by which the Hub knows small files; empty where it no longer has its SHA-256."""
        data = self.source if isinstance(self.source, bytes) else self.source.read_bytes()
        if self.digest is not None and hashlib.sha256(data).hexdigest() != self.digest:
            return ""
        return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def upload(
    api: HfApi, repo: str, items: Sequence[Item], *, message: str, revision: str = MAIN, gone: Sequence[str] = ()
) -> str:
    """Send the items, and take away the folders `gone`, in one commit. The commit, in which all has arrived whole."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    adds = [CommitOperationAdd(path_in_repo=item.name, path_or_fileobj=item.source) for item in items]
    deletes = [CommitOperationDelete(path_in_repo=folder, is_folder=True) for folder in gone]
    commit = api.create_commit(repo, [*adds, *deletes], commit_message=message, revision=revision)
    remote = remote_files(api, repo, str(commit.oid))
    for item in items:
        if not _arrived(item, remote.get(item.name)):
            raise ToolkitError(f"{item.name} did not arrive whole", where=repo)
    return str(commit.oid)


def remote_files(api: HfApi, repo: str, revision: str = MAIN) -> dict[str, RepoFile]:
    """Path -> file, of all that lies in the repository."""
    from huggingface_hub.hf_api import RepoFile

    tree = api.list_repo_tree(repo, recursive=True, revision=revision)
    return {entry.path: entry for entry in tree if isinstance(entry, RepoFile)}


def _arrived(item: Item, entry: Any) -> bool:
    """The Hub names large files by their SHA-256, and small ones as git does."""
    if entry is None or entry.size != item.size:
        return False
    return entry.lfs.sha256 == item.sha256 if entry.lfs else entry.blob_id == item.blob_id()
