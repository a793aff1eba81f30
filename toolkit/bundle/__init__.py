"""The bundle: what other programs need beside the files of an export, so that they ask the model as training asked it.

An Ollama Modelfile and an Open WebUI model for each GGUF file, the commands of llama.cpp, a README. It proves nothing about
weights; what it claims of prompts is compared text by text (`speech`). Two bundles of one export are equal to the bit.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.atomic import replacing, sha256_of
from toolkit.bundle.modelfile import Modelfile, quoted
from toolkit.bundle.readme import (
    MODELFILE,
    OPEN_WEBUI,
    README,
    SYSTEM_FILE,
    beside,
    in_parts,
    join_parts,
    model_id,
    readme,
)
from toolkit.bundle.settings import Settings
from toolkit.bundle.speech import Speech, has_system_role, ollama_template, speech_of
from toolkit.rundir import ExportDir, day_of

if TYPE_CHECKING:
    from toolkit.recipe import Recipe

__all__ = [
    "SYSTEM_FILE", "Settings", "has_system_role", "model_id", "open_webui_model", "speech_of", "write_bundle",
]  # fmt: skip

AS_TRAINED = "as-trained"
"""Behind the file's name in that of its Open WebUI model. The bare file is offered there too, without a system prompt."""

NOT_IN_TRAINING = (
    "builtin_tools", "vision", "file_upload", "file_context", "web_search", "image_generation", "code_interpreter",
)  # fmt: skip
"""Capabilities of Open WebUI that write into the prompt what the training never saw."""


def write_bundle(export: ExportDir, recipe: Recipe, *, run: str, files: Sequence[str]) -> dict[str, Any]:
    """Write it beside the GGUF `files`; what the manifest says of it: hashes, and how Ollama's template was checked.

    They and the merged folder must be finished. What an earlier bundle left is taken away.
    """
    settings, folder = Settings.of(recipe), export.path
    for path in [*folder.glob(f"*{MODELFILE}"), *folder.glob(f"*{OPEN_WEBUI}"), folder / README, folder / SYSTEM_FILE]:
        path.unlink(missing_ok=True)
    texts: dict[str, str] = {SYSTEM_FILE: settings.system + "\n"} if settings.system else {}
    ollama = None
    if files:  # one model, one tokenizer: what holds of one file holds of all
        speech = speech_of(folder / files[0], export.merged, day=day_of(run))
        ollama = _modelfile(speech, settings)
        texts |= {beside(name, MODELFILE): ollama.text(beside(name, ".gguf"), notes=_parts(name)) for name in files}
        texts |= {beside(name, OPEN_WEBUI): _json([open_webui_model(name, speech, settings)]) for name in files}
    texts[README] = readme(run, files, settings, has_system_role=has_system_role(export.merged))
    return {
        "files": {name: _write(folder / name, text) for name, text in sorted(texts.items())},
        "ollama": ollama and {"template": ollama.template is not None, "notes": list(ollama.notes)},
    }


def open_webui_model(gguf: str, speech: Speech, settings: Settings) -> dict[str, Any]:
    """A model of Open WebUI on top of the one that a llama.cpp server reports for this file."""
    return {
        "id": f"{model_id(gguf)}-{AS_TRAINED}",
        "base_model_id": model_id(gguf),
        "name": f"{model_id(gguf)} ({AS_TRAINED.replace('-', ' ')})",
        "params": settings.open_webui(speech.stops),
        "meta": {
            "description": "With the system prompt, the sampling and the stop tokens of its training.",
            "capabilities": dict.fromkeys(NOT_IN_TRAINING, False),
            "suggestion_prompts": [],  # else questions that the model was hardly trained for
        },
        "access_grants": [],
        "is_active": True,
    }


def _modelfile(speech: Speech, settings: Settings) -> Modelfile:
    """What cannot be kept as it was is left out, and its place says so."""
    found, system = ollama_template(speech, settings.system), settings.system
    template, notes = found.template, list(found.notes)
    if template is not None and quoted(template) is None:
        template, notes = None, ["The template has characters that a Modelfile cannot hold."]
    if template is None:
        notes.append(
            "So there is no TEMPLATE, and what Ollama takes instead may differ from the training: use llama.cpp."
        )
    if quoted(system) is None:
        system = ""
        notes.append(
            f"The system prompt has characters that a Modelfile cannot hold: give Ollama {SYSTEM_FILE} yourself."
        )
    stops = [stop for stop in speech.stops if quoted(stop) is not None]
    return Modelfile(template, system, stops, settings.ollama(), notes)


def _parts(gguf: str) -> list[str]:
    return [f"Ollama takes no file in parts. First: {join_parts(gguf)}"] if in_parts(gguf) else []


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _write(path: Path, text: str) -> str:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")
    return sha256_of(path)
