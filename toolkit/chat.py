"""The chat step: asks an exported GGUF file in the terminal, as the model was asked in training. It grades nothing.

A server that has the file loaded is asked; where there is none, the file is loaded here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit import console
from toolkit.atomic import read_json
from toolkit.errors import ToolkitError
from toolkit.prompts import messages
from toolkit.rundir import ExportDir, chosen_gguf

if TYPE_CHECKING:
    from toolkit.llamacpp import ServedModel


def chat(path: Path, *, file: str | None = None, question: str | None = None, server: str | None = None) -> None:
    """Answer `question`; without one the lines of stdin, and at a terminal what is typed until an empty line or Ctrl-D.

    Every question is a chat of its own, because training knew only such; answers are greedy, so that they repeat. `server` is
    the base URL of one to ask; without it the one at `toolkit serve`'s usual port is asked if it has this file.
    """
    from toolkit.llamacpp import open_chat
    from toolkit.recipe import load_resolved

    export = ExportDir(path)
    recipe = load_resolved(export.recipe).recipe
    served = _served(export, file, server)
    chosen = path / (served[0] if served else chosen_gguf(export, file))
    typed = question is None and sys.stdin.isatty()
    _introduce(export, chosen, typed=typed)
    opened = nullcontext(served[1]) if served else open_chat(chosen, context=recipe.model.max_seq_length)
    with opened as model:
        for asked in [question] if question is not None else _typed() if typed else _lines():
            asking = messages(asked, recipe.task.system_text)
            for piece in model.answer(asking, max_new=recipe.grpo.max_completion_length):
                console.stream(piece)
            console.raw("\n" if question is None else "")  # between answers, an empty line


def _served(export: ExportDir, file: str | None, server: str | None) -> tuple[str, ServedModel] | None:
    """A file of the export that a server has, this one if one was named, and who answers for it; None: it is to be loaded."""
    from toolkit.bundle import model_id
    from toolkit.llamacpp import USUAL_PORT, GgufFile, ServedModel, served_models

    url = f"http://127.0.0.1:{USUAL_PORT}/v1" if server is None else _base_url(server)
    offered = served_models(url)
    best = chosen_gguf(export, file)
    names = [best] if file else [best, *(entry["file"] for entry in read_json(export.manifest)["files"])]
    for name in names:
        if model_id(name) in (offered or ()):
            console.note(f"asking the server at {console.untrusted(url)}")
            template = GgufFile(export.path / name).field("tokenizer.chat_template")
            return name, ServedModel(url, model_id(name), template or "")
    if server is None:
        return None
    hint = f"toolkit serve {export.path} --file {names[0]}; or without --server: the file is loaded here"
    if offered is None:
        raise ToolkitError("no server answers there in OpenAI's protocol", where=url, hint=hint)
    raise ToolkitError(f"it serves {', '.join(offered) or 'nothing'}, not {model_id(names[0])}", where=url, hint=hint)


def _base_url(given: str) -> str:
    """The address as `toolkit serve` prints it, or without its /v1, or only host and port."""
    url = given.rstrip("/") if "://" in given else f"http://{given.rstrip('/')}"
    if not url.startswith(("http://", "https://")):
        raise ToolkitError("this is no address of a server", where=given, hint="http://127.0.0.1:8080/v1")
    return url if url.endswith("/v1") else f"{url}/v1"


def _introduce(export: ExportDir, chosen: Path, *, typed: bool) -> None:
    console.note(f"file: {console.untrusted(chosen)}")
    if not export.is_verified:
        console.warn(f"no proof that this file answers as the trained model: toolkit verify {export.path}")
    console.note(
        "Each question is a chat of its own, as in training: nothing is remembered. "
        "Answers are greedy (temperature 0): the same question gets the same answer."
    )
    if typed:
        console.note("An empty line or Ctrl-D ends.")


def _lines() -> Iterator[str]:
    return (line.strip() for line in sys.stdin if line.strip())


def _typed() -> Iterator[str]:
    while asked := (console.ask("> ") or "").strip():
        yield asked
