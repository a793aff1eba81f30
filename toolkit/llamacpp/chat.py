"""Answers chats from a GGUF file through llama-cpp-python's high-level interface, which its server uses too.

It keeps no history: every chat is given whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from toolkit.errors import ExportError, ToolkitError
from toolkit.llamacpp.header import GgufFile
from toolkit.llamacpp.library import last_log_lines, library
from toolkit.llamacpp.runtime import render_chat
from toolkit.prompts import suited


class ChatModel:
    """A loaded file that answers one chat at a time. Where its template has no system role, the first user turn holds the text."""

    def __init__(self, llama: Any) -> None:
        self._llama = llama

    def answer(self, messages: list[dict[str, str]], *, max_new: int) -> Iterator[str]:
        """The greedy answer, in pieces as they come."""
        # Without it the beginning that two prompts share is not computed again, but rounds differently the second time.
        self._llama.reset()
        try:
            for part in self._llama.create_chat_completion(
                suited(messages, self._render), max_tokens=max_new, temperature=0.0, repeat_penalty=1.0, stream=True
            ):
                yield part["choices"][0]["delta"].get("content") or ""
        except ValueError as error:  # too long for the context, or refused by the chat template
            raise ToolkitError(f"the model cannot be asked this: {error}") from error

    def _render(self, messages: list[dict[str, str]]) -> str:
        return render_chat(self._llama.metadata["tokenizer.chat_template"], messages, bos="", eos="")


@contextmanager
def open_chat(path: Path, *, context: int) -> Iterator[ChatModel]:
    """The file, loaded for chats of `context` tokens with its own chat template; freed at the end."""
    if not path.is_file():
        raise ExportError(
            "the file is missing", where=str(path), hint=f"toolkit export {path.parent.name} --format gguf"
        )
    GgufFile(path)  # llama.cpp aborts on some files that end too early
    library()
    from llama_cpp import Llama

    threads = max(1, (os.cpu_count() or 1) // 2)
    try:
        llama = Llama(
            str(path), n_ctx=context, n_threads=threads, n_threads_batch=threads, verbose=False,
            chat_format="chat_template.default",  # else a template that looks familiar is replaced by a built-in one
        )  # fmt: skip
    except ValueError as error:
        raise ExportError("llama.cpp cannot load the file:\n" + "\n".join(last_log_lines()), where=str(path)) from error
    with closing(llama):
        yield ChatModel(llama)
