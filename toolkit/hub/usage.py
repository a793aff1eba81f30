"""The part of a model card that says how to ask the model: as its training did, with what the repository holds. It checks nothing."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from toolkit.bundle import SYSTEM_FILE, Settings
from toolkit.bundle.readme import MODELFILE, beside, llama_cli, ollama_create
from toolkit.engine.source import is_hub_name
from toolkit.hub.files import Place
from toolkit.hub.markdown import fenced
from toolkit.prompts import fold_system, messages
from toolkit.rundir import preferred_gguf

if TYPE_CHECKING:
    from toolkit.recipe import Recipe


def usage(
    recipe: Recipe, manifest: Mapping[str, Any], place: Place, *, has_system_role: bool, recommended: str | None
) -> str:
    """The system prompt, and the shortest way to an answer, with the GGUF file that the certificate recommends."""
    settings, parts = Settings.of(recipe), ["## Use"]
    if settings.system:
        parts += ["It was trained with this system prompt, and needs it:", fenced(settings.system, "text")]
    if "merged" in place.parts:
        parts.append(fenced(_transformers(place.repo, settings, has_system_role), "python"))
    elif place.parts == {"adapter"}:
        parts.append(fenced(_peft(place.repo, recipe), "python"))
    if "gguf" in place.parts and (file := preferred_gguf(manifest["files"], recommended=recommended)):
        entry = next(entry for entry in manifest["files"] if entry["file"] == file)
        parts.append(fenced("\n".join(_commands(place, entry, settings, has_system_role)), "sh"))
    return "\n\n".join(parts) if len(parts) > 1 else ""


def _transformers(repo: str, settings: Settings, has_system_role: bool) -> str:
    """Where the template has no system role the system text stands in the user's turn, as in training."""
    asked = messages("…", settings.system)
    text = json.dumps(asked if has_system_role else fold_system(asked), ensure_ascii=False, indent=4)
    ask = f"chat(messages, max_new_tokens={settings.max_tokens}, do_sample=False)"
    lines = [
        "from transformers import pipeline",
        "",
        f'chat = pipeline("text-generation", model={json.dumps(repo)})',
        f"messages = {text}",
        f'print({ask}[0]["generated_text"][-1]["content"])',
    ]
    return "\n".join(lines)


def _peft(repo: str, recipe: Recipe) -> str:
    base = recipe.model.source if is_hub_name(recipe.model.source) else "the base model"
    lines = [
        "from peft import PeftModel",
        "from transformers import AutoModelForCausalLM",
        "",
        f"base = AutoModelForCausalLM.from_pretrained({json.dumps(base, ensure_ascii=False)})",
        f"model = PeftModel.from_pretrained(base, {json.dumps(repo)})",
    ]
    return "\n".join(lines)


def _commands(place: Place, entry: Mapping[str, Any], settings: Settings, has_system_role: bool) -> list[str]:
    """Download, then llama.cpp, then Ollama where a Modelfile lies beside the file."""
    file = entry["file"]
    modelfile = beside(file, MODELFILE)
    files = [part["file"] for part in entry.get("parts", ())] or [file]
    files += [name for name in (SYSTEM_FILE, modelfile) if name in place.files]
    download = shlex.join(["hf", "download", place.repo, *files, "--local-dir", "."])
    commands = [download, llama_cli(file, settings, has_system_role=has_system_role)]
    if modelfile in place.files:
        commands += ollama_create(file)
    return commands
