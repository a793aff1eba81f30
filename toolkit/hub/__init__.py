"""The push step: uploads a verified export to the Hugging Face Hub and compares what arrived. It changes nothing here.

The token comes from the environment or from `hf auth login`, and is never shown.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from toolkit import console
from toolkit.atomic import read_json
from toolkit.bundle import has_system_role
from toolkit.errors import Stopped, ToolkitError
from toolkit.hub.card import Facts, card_text
from toolkit.hub.files import CARD, Place, Proof, places, proof_of
from toolkit.hubapi import (
    Access,
    Item,
    Licence,
    asking,
    base_licence,
    check_access,
    client,
    portable,
    portable_file,
    remote_files,
    require_name,
    upload,
)
from toolkit.rundir import LICENCE_TEXTS, RUNS, ExportDir, RunDir

if TYPE_CHECKING:
    from huggingface_hub import HfApi

    from toolkit.recipe import Hub, Recipe

Answer = TypeVar("Answer")
LOADED_BY_NAME = ("model.safetensors", "model.safetensors.index.json", "adapter_config.json")
"""Files at a repository's root that transformers or vLLM takes for the model, whatever else lies there."""


@dataclass(frozen=True, slots=True)
class Pushed:
    """What now lies in one repository."""

    repo: str
    url: str
    private: bool
    files: int
    size_bytes: int


def push_export(path: Path, *, repo: str | None = None, force: bool = False) -> list[Pushed]:
    """Upload the export's files into `repo`, else into its recipe's repositories, and compare them with what arrived.

    Only what `toolkit verify` passed is uploaded, byte for byte; with `force` anything, and the model card says so. Without
    success everything stays as it is, here; what has arrived is not sent again.
    """
    from toolkit.recipe import load_resolved

    export = ExportDir(path)
    recipe = load_resolved(export.recipe).recipe
    hub = _hub(recipe.hub, repo, path)
    console.note(f"comparing {console.untrusted(path)} with its certificate")
    proof = proven(export, force=force)
    command = ["toolkit", "push", str(path), *(["--repo", repo] if repo else []), *(["--force"] if force else [])]
    push = _Push(export, recipe, proof, places(hub, proof.files, merged=recipe.export.merged), shlex.join(command))
    if not push.places:
        raise ToolkitError("nothing of this export has a repository", where=str(path), hint=_name_one(path))
    try:
        pushed = push.everywhere()
    except KeyboardInterrupt:
        raise Stopped("the push was stopped; what has arrived is not sent again", hint=push.retry) from None
    for one in pushed:
        kind = "private" if one.private else "public"
        console.say(f"{one.files} files, {one.size_bytes / 1e6:.0f} MB, in the {kind} repository {one.url}")
    return pushed


def proven(export: ExportDir, *, force: bool = False) -> Proof:
    """The files and their hashes. An error where no passing certificate is about exactly these bytes, unless forced."""
    proof = proof_of(export)
    if proof.problems and not force:
        hint = f"toolkit verify {shlex.quote(str(export.path))}; --force pushes it all the same, and the model card says so"
        raise ToolkitError("; ".join(proof.problems), where=str(export.path), hint=hint)
    for problem in proof.problems:
        console.warn(f"{console.untrusted(problem)}: the model card will say that this model is not verified")
    return proof


def _hub(hub: Hub, repo: str | None, path: Path) -> Hub:
    """The recipe's repositories, or one for everything."""
    if repo is None:
        if not hub.repos:
            raise ToolkitError("the recipe names no hub.repo to push to", where=str(path), hint=_name_one(path))
        return hub
    if repo.count("/") != 1 or not all(repo.split("/")):
        raise ToolkitError(f"{repo} is no repository", where=str(path), hint=_name_one(path))
    return hub.model_copy(update={"repo": repo, "adapter_repo": None, "gguf_repo": None})


def _name_one(path: Path) -> str:
    return f"toolkit push {shlex.quote(str(path))} --repo ORG/NAME"


@dataclass(frozen=True, slots=True)
class _Push:
    """An export on its way: what goes where, and the command that tries again."""

    export: ExportDir
    recipe: Recipe
    proof: Proof
    places: list[Place]
    retry: str

    def everywhere(self) -> list[Pushed]:
        """Ask for every permission first, then send one repository after the other."""
        api = self._asking(self.places[0], lambda: client(progress=console.is_live()))
        licence = self._asking(self.places[0], lambda: base_licence(self.recipe.model, api))
        allowed = [self._asking(place, lambda place=place: self._allowed(api, place, licence)) for place in self.places]
        facts = self._facts(licence)
        return [
            self._asking(place, lambda place=place, access=access: self._send(api, place, access, facts))
            for place, access in zip(self.places, allowed, strict=True)
        ]

    def _asking(self, place: Place, action: Callable[[], Answer]) -> Answer:
        return asking(action, where=place.repo, retry=self.retry)

    def _allowed(self, api: HfApi, place: Place, licence: Licence) -> Access:
        require_name(place.repo, licence)
        access = check_access(api, place.repo, private=self.recipe.hub.private)
        console.note(f"pushing to {console.untrusted(place.repo)} as {console.untrusted(access.user)}")
        return access

    def _send(self, api: HfApi, place: Place, access: Access, facts: Facts) -> Pushed:
        items = self._items(place, facts)
        if access.private is None:
            api.create_repo(place.repo, private=self.recipe.hub.private, exist_ok=True)
        _look_round(api, place, items)
        state = "NOT verified, forced" if self.proof.problems else "verified"
        upload(api, place.repo, items, message=f"{self.export.path.name}, {state}")
        is_private = bool(api.model_info(place.repo).private)
        size = sum(item.size for item in items)
        return Pushed(place.repo, f"{api.endpoint}/{place.repo}", is_private, len(items), size)

    def _items(self, place: Place, facts: Facts) -> list[Item]:
        """The files of this repository, the records, the model card, and what the licence wants beside them."""
        records = [self.export.recipe, self.export.manifest]
        if self.proof.certificate:
            records.append(self.export.certificate)
        items = [Item(there, self.export.path / here, self.proof.files[here]) for there, here in place.files.items()]
        items += [Item(record.name, portable_file(record)) for record in records]
        if self.proof.certificate and self.export.certificate_text.is_file():
            items.append(Item(self.export.certificate_text.name, self.export.certificate_text))
        items.append(Item(CARD, card_text(facts, place).encode()))
        if facts.licence.notice and not any(name.upper().startswith("NOTICE") for name in place.files):
            items.append(Item("NOTICE", f"{facts.licence.notice}\n".encode()))
        return items

    def _facts(self, licence: Licence) -> Facts:
        manifest = portable(read_json(self.export.manifest))
        run = RunDir(RUNS / manifest["run"])
        if not run.evaluation.is_file():
            console.warn(f"the model card has no evaluation: there is no {console.untrusted(run.evaluation)}")
        has_text = any(Path(name).match(pattern) for name in self.proof.files for pattern in LICENCE_TEXTS)
        if licence.wants_copy and not has_text:
            console.warn(
                f"the {licence.name} wants its text beside the model, and the base model brought none: {licence.link}"
            )
        return Facts(
            recipe=self.recipe,
            manifest=manifest,
            proof=self.proof,
            licence=licence,
            places=tuple(self.places),
            run=_record(run.manifest),
            evaluation=_record(run.evaluation),
            has_licence_text=has_text,
            has_system_role=has_system_role(self.export.merged),
        )


def _record(path: Path) -> dict[str, Any] | None:
    """A record of the run, where the run is on this machine."""
    return portable(read_json(path)) if path.is_file() else None


def _look_round(api: HfApi, place: Place, items: Sequence[Item]) -> None:
    """What lies in the repository already: an error where it would be loaded instead, a word where it only lies there."""
    ours = {item.name for item in items}
    others = sorted(remote_files(api, place.repo).keys() - ours)
    if "merged" in place.parts and (instead := [name for name in others if name in LOADED_BY_NAME]):
        hint = f"another repository, or: hf repos delete-files {place.repo} {shlex.quote(instead[0])}"
        what = f"it holds {instead[0]} from elsewhere, which would be loaded instead of this model"
        raise ToolkitError(what, where=place.repo, hint=hint)
    if weights := [name for name in others if name.endswith((".gguf", ".safetensors"))]:
        console.warn(
            f"{console.untrusted(place.repo)} also holds, from elsewhere: {console.untrusted(', '.join(weights))}"
        )


__all__ = ["Pushed", "proven", "push_export"]
