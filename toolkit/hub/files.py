"""Which files of an export are pushed, whether its certificate is about exactly these bytes, and which repository each goes to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.atomic import read_json, sha256_of
from toolkit.errors import ToolkitError
from toolkit.rundir import LICENCE_FILES, ExportDir

if TYPE_CHECKING:
    from toolkit.recipe import Hub

ADAPTER = "adapter"
CARD = "README.md"


@dataclass(frozen=True, slots=True)
class Proof:
    """The files of an export that can be pushed, by their path in it, and what their certificate is worth."""

    files: dict[str, str]
    """Path -> SHA-256 of its bytes now."""
    certificate: dict[str, Any] | None
    """verify.json where it is about exactly these bytes, passed or not."""
    problems: tuple[str, ...] = ()
    """Why these bytes are not proven; empty: they are."""


@dataclass(frozen=True, slots=True)
class Place:
    """What goes into one repository: its path there -> its path in the export."""

    repo: str
    files: dict[str, str] = field(default_factory=dict)
    parts: frozenset[str] = frozenset()
    """`merged`, `adapter`, `gguf`: which of them it holds."""


def proof_of(export: ExportDir) -> Proof:
    """Hash every file and compare with what the certificate says. An error only where there is no export."""
    if not export.manifest.is_file():
        raise ToolkitError("there is no whole export", where=str(export.path), hint="toolkit export RUN")
    manifest = read_json(export.manifest)
    there = {file.relative_to(export.path).as_posix(): sha256_of(file) for file in _shipped(export, manifest)}
    if not export.certificate.is_file():
        return Proof(there, None, ("the export is not verified",))
    certificate = read_json(export.certificate)
    changed = sorted(_changed(_proven(export, certificate, manifest), there))
    if changed:
        more = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
        return Proof(there, None, (f"{changed[0]} is not the file that was verified{more}",))
    return Proof(there, certificate, tuple(_failures(certificate)))


def _shipped(export: ExportDir, manifest: dict[str, Any]) -> Iterator[Path]:
    yield from sorted(export.path.glob("*.gguf"))
    yield from filter(Path.is_file, (export.path / name for name in _bundle(manifest)))
    for folder in (export.merged, export.path / ADAPTER):
        yield from sorted(file for file in folder.rglob("*") if file.is_file())


def _bundle(manifest: dict[str, Any]) -> dict[str, str]:
    """What lies beside the GGUF files for other programs, but for its README: the model card takes that one's place."""
    files = manifest.get("bundle", {}).get("files", {})
    return {name: digest for name, digest in files.items() if name != CARD}


def _proven(export: ExportDir, certificate: dict[str, Any], manifest: dict[str, Any]) -> dict[str, str]:
    """Path -> SHA-256 of what was verified; what the certificate does not name itself is held to the manifest."""
    named = [file.get("hashes") or {file["file"]: file["sha256"]} for file in certificate["files"]]
    proven = _bundle(manifest)
    for folder, hashes in (
        (export.merged.name, certificate["merged"].get("hashes") or manifest["merged"]["sha256"]),
        (ADAPTER, certificate.get("adapter") or manifest["adapter"]["sha256"]),
    ):
        proven |= {f"{folder}/{name}": digest for name, digest in hashes.items()}
    return proven | {name: digest for hashes in named for name, digest in hashes.items()}


def _changed(proven: dict[str, str], there: dict[str, str]) -> Iterator[str]:
    return (name for name in proven.keys() | there.keys() if proven.get(name) != there.get(name))


def _failures(certificate: dict[str, Any]) -> Iterator[str]:
    results = [certificate["merged"], *certificate["files"]]
    failed = [result["file"] for result in results if result["passed"] is not True]
    if failed or certificate["passed"] is not True:
        yield "verification did not pass" + (f": {', '.join(failed)}" if failed else "")


def places(hub: Hub, files: dict[str, str], *, merged: bool) -> list[Place]:
    """Where each file goes. Without a repository a part stays, and so does a merged model that is no product of the export.

    The merged model lies at its repository's root, where transformers looks for it; the adapter in a folder unless it is alone
    there, for at the root transformers would take it for the model.
    """
    repos = {
        "merged": hub.repo if merged else None,
        ADAPTER: hub.adapter_repo or hub.repo,
        "gguf": hub.gguf_repo or hub.repo,
    }
    present = {_part(name) for name in files if "/" in name or name.endswith(".gguf")}
    targets = {part: repo for part, repo in repos.items() if repo and part in present}
    licences = {name.rpartition("/")[2]: name for name in files if _is_licence(name)}
    found = []
    for repo in dict.fromkeys(targets.values()):
        parts = frozenset(part for part, target in targets.items() if target == repo)
        names = {_there(name, parts): name for name in files if _part(name) in parts}
        found.append(Place(repo, licences | names, parts))
    return found


def _part(name: str) -> str:
    folder, slash, _ = name.partition("/")
    return folder if slash else "gguf"


def _there(name: str, parts: frozenset[str]) -> str:
    inside = name.partition("/")[2]
    if _part(name) == "merged":
        return inside
    return inside if parts == {ADAPTER} else name


def _is_licence(name: str) -> bool:
    path = Path(name)
    return path.parent == Path("merged") and any(path.match(pattern) for pattern in LICENCE_FILES)
