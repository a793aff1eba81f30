"""The chat step: asks an exported GGUF file in the terminal, as the model was asked in training. It grades nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from toolkit import console
from toolkit.prompts import messages
from toolkit.rundir import ExportDir, chosen_gguf


def chat(path: Path, *, file: str | None = None, question: str | None = None) -> None:
    """Answer `question`; without one the lines of stdin, and at a terminal what is typed until an empty line or Ctrl-D.

    Every question is a chat of its own, because training knew only such; answers are greedy, so that they repeat.
    """
    from toolkit.llamacpp import open_chat
    from toolkit.recipe import load_resolved

    export = ExportDir(path)
    recipe = load_resolved(export.recipe).recipe
    chosen = path / chosen_gguf(export, file)
    typed = question is None and sys.stdin.isatty()
    _introduce(export, chosen, typed=typed)
    with open_chat(chosen, context=recipe.model.max_seq_length) as model:
        for asked in [question] if question is not None else _typed() if typed else _lines():
            asking = messages(asked, recipe.task.system_text)
            for piece in model.answer(asking, max_new=recipe.grpo.max_completion_length):
                console.stream(piece)
            console.raw("\n" if question is None else "")  # between answers, an empty line


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
