"""The part of a model card that says how to ask the model: as its training did, with what the repository holds. It checks nothing."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from toolkit.bundle import SYSTEM_FILE, Settings, model_id
from toolkit.bundle.readme import MODELFILE, beside, llama_cli
from toolkit.engine.source import is_hub_name
from toolkit.hub.files import Place
from toolkit.hub.markdown import fenced
from toolkit.rundir import preferred_gguf

if TYPE_CHECKING:
    from toolkit.recipe import Recipe


def usage(recipe: Recipe, manifest: Mapping[str, Any], place: Place) -> str:
    """The system prompt, and the shortest way to an answer."""
    settings, parts = Settings.of(recipe), ["## Use"]
    if settings.system:
        parts += ["It was trained with this system prompt, and needs it:", fenced(settings.system, "text")]
    if "merged" in place.parts:
        parts.append(fenced(_transformers(place.repo, settings), "python"))
    elif place.parts == {"adapter"}:
        parts.append(fenced(_peft(place.repo, recipe), "python"))
    if "gguf" in place.parts and (file := preferred_gguf(manifest["files"])):
        entry = next(entry for entry in manifest["files"] if entry["file"] == file)
        parts.append(fenced("\n".join(_commands(place, entry, settings)), "sh"))
    return "\n\n".join(parts) if len(parts) > 1 else ""


def _transformers(repo: str, settings: Settings) -> str:
    system = [{"role": "system", "content": settings.system}] if settings.system else []
    messages = json.dumps([*system, {"role": "user", "content": "…"}], ensure_ascii=False, indent=4)
    ask = f"chat(messages, max_new_tokens={settings.max_tokens}, do_sample=False)"
    lines = [
        "from transformers import pipeline",
        "",
        f'chat = pipeline("text-generation", model={json.dumps(repo)})',
        f"messages = {messages}",
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


def _commands(place: Place, entry: Mapping[str, Any], settings: Settings) -> list[str]:
    """Download, then llama.cpp, then Ollama where a Modelfile lies beside the file."""
    file = entry["file"]
    modelfile = beside(file, MODELFILE)
    files = [part["file"] for part in entry.get("parts", ())] or [file]
    files += [name for name in (SYSTEM_FILE, modelfile) if name in place.files]
    commands = [shlex.join(["hf", "download", place.repo, *files, "--local-dir", "."]), llama_cli(file, settings)]
    if modelfile in place.files:
        commands.append(shlex.join(["ollama", "create", model_id(file).lower(), "-f", modelfile]))
    return commands
