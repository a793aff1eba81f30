"""What the base model's licence is, and what it asks of whoever passes on a model made from it. It is no lawyer.

Gemma: its terms of use, section 3.1. Llama: its community licences, section 1.b. Apache-2.0: section 4. MIT: its second paragraph.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from toolkit.engine.source import is_hub_name, local_path
from toolkit.errors import ToolkitError

if TYPE_CHECKING:
    from huggingface_hub import HfApi

    from toolkit.recipe import Model

UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Licence:
    """A licence: its id on the Hub, its name and address, and what it asks for."""

    id: str
    name: str
    link: str | None = None
    asks: tuple[str, ...] = ()
    """What whoever passes the model on must do, in plain words."""
    notice: str | None = None
    """The sentence that a file NOTICE beside the model must hold, word for word."""
    shown: str | None = None
    """Words that must be shown prominently."""
    begins: str | None = None
    """What the model's name must begin with."""
    wants_copy: bool = False
    """Whether a copy of the licence must lie beside the model."""
    guessed: bool = False
    """Whether it was taken from the base model's name, since nothing states it."""


def _llama(version: str, path: str, *, shown: str = "Built with Llama", begins: str = "Llama") -> Licence:
    full = f"Llama {version}" if version != "3" else "Meta Llama 3"
    return Licence(
        f"llama{version}",
        f"{full} Community License",
        f"https://www.llama.com/{path}/license/",
        (
            "pass a copy of the licence on with the model",
            f"show “{shown}” prominently",
            f"let the name of a model made from it begin with “{begins}”",
            "keep the attribution in a file NOTICE",
            f"keep to the acceptable use policy (https://www.llama.com/{path}/use-policy/)",
            "ask Meta for a licence of your own above 700 million monthly users",
        ),
        f"{full} is licensed under the {full} Community License, Copyright © Meta Platforms, Inc. All Rights Reserved.",
        shown,
        begins,
        wants_copy=True,
    )


GEMMA = Licence(
    "gemma",
    "Gemma Terms of Use",
    "https://ai.google.dev/gemma/terms",
    (
        "bind whoever gets the model to the use restrictions of section 3.2 and say so "
        "(https://ai.google.dev/gemma/prohibited_use_policy)",
        "pass a copy of the terms on with the model",
        "say prominently that the model was modified",
        "keep the notice in a file NOTICE",
    ),
    "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms",
    wants_copy=True,
)
APACHE = Licence(
    "apache-2.0",
    "Apache License 2.0",
    "https://www.apache.org/licenses/LICENSE-2.0",
    (
        "pass the licence on with the model",
        "say prominently that the model was modified",
        "keep its notices, and the content of a file NOTICE where the base model has one",
    ),
    wants_copy=True,
)
MIT = Licence(
    "mit",
    "MIT License",
    "https://opensource.org/license/mit",
    ("keep the copyright notice and the licence's text",),
    wants_copy=True,
)
LICENCES = {
    licence.id: licence
    for licence in (
        APACHE,
        MIT,
        GEMMA,
        _llama("3", "llama3", shown="Built with Meta Llama 3", begins="Llama 3"),
        _llama("3.1", "llama3_1"),
        _llama("3.2", "llama3_2"),
        _llama("3.3", "llama3_3"),
        _llama("4", "llama4"),
    )
}


def base_licence(model: Model, api: HfApi | None) -> Licence:
    """The licence that the base model states: on its page, in its model card or its GGUF header; else guessed by its name."""
    stated = _stated_on_hub(model, api) if is_hub_name(model.source) else _stated_here(model.source)
    return licence_called(stated) if stated else _by_name(model.source)


def licence_called(stated: str) -> Licence:
    """A licence by its id on the Hub, whatever its case; one that is not known here keeps its name and nothing more."""
    return LICENCES.get(stated.strip().lower(), Licence("other", stated.strip()))


def require_name(repo: str, licence: Licence) -> None:
    """An error where the licence wants another beginning of a model's name than this repository has."""
    if licence.begins is None or _letters(repo.split("/")[1]).startswith(_letters(licence.begins)):
        return
    owner, name = repo.split("/")
    hint = f"{owner}/{licence.begins.replace(' ', '-')}-{name}"
    what = f"the {licence.name} wants the name of a model made from it to begin with “{licence.begins}”"
    raise ToolkitError(what, where=repo, hint=f"a repository called, for instance, {hint}")


def _letters(name: str) -> str:
    return re.sub(r"[\s._-]", "", name).casefold()


def _stated_on_hub(model: Model, api: HfApi | None) -> str | None:
    from huggingface_hub.errors import HfHubHTTPError

    if api is None:
        return None
    try:
        card = api.model_info(model.source, revision=model.revision).card_data
    except HfHubHTTPError:  # the base model is not what is being pushed: its name will have to do
        return None
    return _told(card.get("license"), card.get("license_name")) if card else None


def _stated_here(source: str) -> str | None:
    from huggingface_hub import ModelCard

    from toolkit.llamacpp import GgufFile

    try:
        path = local_path(source)
        if path.is_file():
            file = GgufFile(path)
            return _told(file.field("general.license"), file.field("general.license.name"))
        card = ModelCard.load(path / "README.md").data
    except (ToolkitError, OSError, ValueError):  # it may lie on another machine by now, and few folders have a card
        return None
    return _told(card.get("license"), card.get("license_name"))


def _told(licence: object, name: object) -> str | None:
    """`other` says nothing; then the licence's own name may."""
    texts = [text.strip() for text in (licence, name) if isinstance(text, str)]
    return next((text for text in texts if text.lower() not in ("", "other", UNKNOWN)), None)


def _by_name(source: str) -> Licence:
    name = source.casefold()
    if llama := re.search(r"llama-?(3(?:[._][123])?|4)(?![\d.])", name):
        return replace(LICENCES[f"llama{llama[1].replace('_', '.')}"], guessed=True)
    if re.search(r"gemma(?!-?[4-9]\b)", name):  # Gemma 4 is under Apache-2.0
        return replace(GEMMA, guessed=True)
    return Licence(UNKNOWN, UNKNOWN)
