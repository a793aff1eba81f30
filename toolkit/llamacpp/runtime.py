"""Opens a GGUF file in llama.cpp: tokens, log-probabilities, greedy text. It compares nothing with anything.

It speaks llama.cpp's C interface as llama-cpp-python binds it, because the greedy texts of many prompts run
side by side there (three times faster than one after the other) and logits are copied only where they are
wanted.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.errors import ExportError
from toolkit.llamacpp.library import last_log_lines, library
from toolkit.llamacpp.vocabulary import tokenize

if TYPE_CHECKING:
    import numpy

BATCH_TOKENS = 512
SPEED_PROMPT, SPEED_NEW = 64, 16
"""Tokens that are read and written to measure the speed."""
SPEED_TOKENS = SPEED_PROMPT + SPEED_NEW
"""Room in the context that this takes."""
SPEED_RUNS, SPEED_SECONDS = 3, 3.0
"""The best of so many runs counts; no run begins after so many seconds."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens per second of processor time on one thread: a prompt read, and an answer written token by token."""

    prefill: float
    decode: float


def render_chat(template: str, messages: list[dict[str, str]], *, bos: str, eos: str, generate: bool = True) -> str:
    """The chat as text, rendered by llama-cpp-python's Jinja formatter as its server does."""
    library()
    from llama_cpp.llama_chat_format import Jinja2ChatFormatter

    formatter = Jinja2ChatFormatter(template, eos, bos, add_generation_prompt=generate)
    return formatter(messages=messages).prompt  # type: ignore[arg-type]


def common_length(sequences: Sequence[Sequence[int]]) -> int:
    """How many items all sequences begin with."""
    columns = zip(*sequences, strict=False)
    return next((at for at, column in enumerate(columns) if len(set(column)) > 1), min(map(len, sequences)))


@contextmanager
def open_model(
    path: Path, *, context: int, sequences: int = 1, threads: int = 1, lora: tuple[Path, float] | None = None
) -> Iterator[LlamaModel]:
    """The file, loaded; freed at the end. `context` is per sequence. One thread is steadier than two on a
    busy machine. `lora`: an adapter's GGUF file, and the factor that it is added with."""
    lib = library()
    parameters = lib.llama_model_default_params()
    parameters.n_gpu_layers = 0
    model = lib.llama_model_load_from_file(os.fsencode(path.resolve()), parameters)
    if not model:
        raise ExportError("llama.cpp cannot load the file:\n" + "\n".join(last_log_lines()), where=str(path))
    handle = None
    try:
        handle = lib.llama_init_from_model(model, _context_parameters(lib, context, sequences, threads))
        if not handle:
            raise ExportError("llama.cpp cannot run the file:\n" + "\n".join(last_log_lines()), where=str(path))
        if lora is not None:
            _add_lora(lib, model, handle, *lora)
        opened = LlamaModel(lib, model, handle, sequences=sequences)
        try:
            yield opened
        finally:
            lib.llama_batch_free(opened._batch)
    finally:
        if handle:
            lib.llama_free(handle)
        lib.llama_model_free(model)


def _add_lora(lib: Any, model: Any, handle: Any, path: Path, factor: float) -> None:
    """llama.cpp frees the adapter together with the model."""
    adapter = lib.llama_adapter_lora_init(model, os.fsencode(path.resolve()))
    if not adapter:
        raise ExportError("llama.cpp cannot load the adapter:\n" + "\n".join(last_log_lines()), where=str(path))
    if lib.llama_set_adapters_lora(
        handle, (lib.llama_adapter_lora_p_ctypes * 1)(adapter), 1, (ctypes.c_float * 1)(factor)
    ):
        raise ExportError("llama.cpp cannot put the adapter on the model", where=str(path))


def _context_parameters(lib: Any, context: int, sequences: int, threads: int) -> Any:
    parameters = lib.llama_context_default_params()
    parameters.n_ctx = context * sequences
    parameters.n_batch = BATCH_TOKENS
    parameters.n_ubatch = BATCH_TOKENS
    parameters.n_seq_max = sequences
    parameters.n_threads = parameters.n_threads_batch = threads
    parameters.kv_unified = False  # else every sequence attends over the room of all
    parameters.swa_full = True  # else a shared prefix cannot be cut back to
    return parameters


class LlamaModel:
    """A loaded file with one context of several sequences."""

    def __init__(self, lib: Any, model: Any, handle: Any, *, sequences: int) -> None:
        self._lib, self._model, self._context = lib, model, handle
        self._vocab = lib.llama_model_get_vocab(model)
        self._memory = lib.llama_get_memory(handle)
        self._batch = lib.llama_batch_init(BATCH_TOKENS, 0, 1)
        self._cached: list[int] = []
        self.sequences = sequences
        self.n_vocab: int = lib.llama_vocab_n_tokens(self._vocab)
        self.bos: int = lib.llama_vocab_bos(self._vocab)
        self.eos: int = lib.llama_vocab_eos(self._vocab)
        self.adds_bos: bool = lib.llama_vocab_get_add_bos(self._vocab)
        template = lib.llama_model_chat_template(model, None)
        self.chat_template: str | None = template.decode("utf-8") if template else None

    def is_stop(self, token: int) -> bool:
        """Whether generation ends at this token."""
        return bool(self._lib.llama_vocab_is_eog(self._vocab, token))

    def stop_tokens(self) -> list[int]:
        """Every token at which generation ends."""
        return [token for token in range(self.n_vocab) if self.is_stop(token)]

    @property
    def weight_bytes(self) -> int:
        """What the tensors take in memory."""
        return int(self._lib.llama_model_size(self._model))

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        """Token ids; special tokens written in the text are read as such. `special`: add BOS where the
        file says so."""
        return tokenize(self._lib, self._vocab, text, add_special=special)

    def text(self, ids: list[int]) -> str:
        """The text of the tokens, without special ones."""
        given = (self._lib.llama_token * max(1, len(ids)))(*ids)
        room = 64 * (len(ids) + 1)
        while True:
            buffer = ctypes.create_string_buffer(room)
            count = self._lib.llama_detokenize(self._vocab, given, len(ids), buffer, room, False, False)
            if count >= 0:
                return buffer.raw[:count].decode("utf-8", errors="replace")
            room = -count

    def piece(self, token: int) -> str:
        """One token as it is written, special ones too."""
        if token < 0:
            return ""
        buffer = ctypes.create_string_buffer(512)
        count = self._lib.llama_token_to_piece(self._vocab, token, buffer, 512, 0, True)
        return buffer.raw[: max(0, count)].decode("utf-8", errors="replace")

    def render(self, messages: list[dict[str, str]], *, generate: bool = True) -> str:
        """The chat as the file's own template writes it."""
        if self.chat_template is None:
            raise ExportError("the file holds no chat template")
        return render_chat(
            self.chat_template,
            messages,
            bos=self.piece(self.bos),
            eos=self.piece(self.eos),
            generate=generate,
        )

    def chat_ids(self, messages: list[dict[str, str]]) -> list[int]:
        """Prompt ids as llama.cpp's servers make them: a BOS that the template wrote is not added again."""
        text = self.render(messages)
        return self.tokenize(text, special=not (self.adds_bos and text.startswith(self.piece(self.bos))))

    def log_probabilities(self, ids: list[int], start: int) -> numpy.ndarray:
        """Log-probabilities of what follows ids[start-1], ids[start], … ids[-2]: one row per token from
        `start` on."""
        import numpy

        keep = 0
        while keep < min(len(self._cached), start - 1) and self._cached[keep] == ids[keep]:
            keep += 1
        if not self._lib.llama_memory_seq_rm(self._memory, 0, keep, -1):
            self._lib.llama_memory_clear(self._memory, True)
            keep = 0
        self._cached = list(ids[:-1])
        rows: list[numpy.ndarray] = []
        for begin in range(keep, len(ids) - 1, BATCH_TOKENS):
            part = range(begin, min(begin + BATCH_TOKENS, len(ids) - 1))
            self._decode([(ids[at], at, 0, at >= start - 1) for at in part])
            rows += [self._logits(index) for index, at in enumerate(part) if at >= start - 1]
        logits = numpy.stack(rows)
        logits -= logits.max(axis=-1, keepdims=True)
        logits -= numpy.log(numpy.exp(logits).sum(axis=-1, keepdims=True))
        return logits

    def speed(self, ids: Sequence[int]) -> Speed:
        """On one thread, in processor time and not time on the clock: other programs on the machine hardly change it. The best
        of a few runs. Afterwards the model goes on with one thread."""
        self._lib.llama_set_n_threads(self._context, 1, 1)
        prompt = [ids[at % len(ids)] for at in range(SPEED_PROMPT)]
        runs: list[Speed] = []
        begin = time.monotonic()
        while len(runs) < SPEED_RUNS and (not runs or time.monotonic() - begin < SPEED_SECONDS):
            runs.append(self._timed(prompt))
        return Speed(max(run.prefill for run in runs), max(run.decode for run in runs))

    def _timed(self, prompt: list[int]) -> Speed:
        self._clear()
        begin = time.process_time()
        self._decode([(token, at, 0, at == len(prompt) - 1) for at, token in enumerate(prompt)])
        read = time.process_time()
        for step in range(SPEED_NEW):
            self._decode([(prompt[step], len(prompt) + step, 0, True)])
        written = time.process_time()
        return Speed(len(prompt) / (read - begin), SPEED_NEW / (written - read))

    def cache_bytes_per_token(self, ids: Sequence[int]) -> float:
        """What each token of a chat takes in the key-value cache (16-bit), from the state of one that is filled."""
        self._clear()
        empty = self._lib.llama_state_seq_get_size(self._context, 0)
        self._decode([(token, at, 0, False) for at, token in enumerate(ids[:SPEED_PROMPT])])
        return (self._lib.llama_state_seq_get_size(self._context, 0) - empty) / len(ids[:SPEED_PROMPT])

    def _clear(self) -> None:
        self._lib.llama_memory_clear(self._memory, True)
        self._cached = []

    def greedy(self, prompts: list[list[int]], *, max_new: int) -> list[list[int]]:
        """The likeliest continuation of each prompt, up to and with its stop token, `sequences` at a time."""
        groups = [prompts[at : at + self.sequences] for at in range(0, len(prompts), self.sequences)]
        return [ids for group in groups for ids in self._greedy_group(group, max_new)]

    def _greedy_group(self, prompts: list[list[int]], max_new: int) -> list[list[int]]:
        self._clear()
        latest = self._prefill(prompts)
        written: list[list[int]] = [[] for _ in prompts]
        running = list(range(len(prompts)))
        while running:
            for index in running:
                written[index].append(latest[index])
            running = [i for i in running if len(written[i]) < max_new and not self.is_stop(latest[i])]
            if running:
                self._decode([(latest[i], len(prompts[i]) + len(written[i]) - 1, i, True) for i in running])
                latest |= {i: int(self._logits(row).argmax()) for row, i in enumerate(running)}
        return written

    def _prefill(self, prompts: list[list[int]]) -> dict[int, int]:
        """Read all prompts, their common beginning once; the first new token of each."""
        shared = min(common_length(prompts), min(len(prompt) for prompt in prompts) - 1)
        for begin in range(0, shared, BATCH_TOKENS):
            part = range(begin, min(begin + BATCH_TOKENS, shared))
            self._decode([(prompts[0][at], at, 0, False) for at in part])
        for sequence in range(1, len(prompts) if shared else 0):
            self._lib.llama_memory_seq_cp(self._memory, 0, sequence, -1, -1)
        latest = {}
        for sequence, prompt in enumerate(prompts):
            for begin in range(shared, len(prompt), BATCH_TOKENS):
                part = range(begin, min(begin + BATCH_TOKENS, len(prompt)))
                self._decode([(prompt[at], at, sequence, at == len(prompt) - 1) for at in part])
            latest[sequence] = int(self._logits(-1).argmax())
        return latest

    def _decode(self, entries: list[tuple[int, int, int, bool]]) -> None:
        """Run (token, position, sequence, whether its logits are wanted)."""
        batch = self._batch
        batch.n_tokens = len(entries)
        for row, (token, position, sequence, wanted) in enumerate(entries):
            batch.token[row], batch.pos[row], batch.logits[row] = token, position, wanted
            batch.n_seq_id[row] = 1
            batch.seq_id[row][0] = sequence
        code = self._lib.llama_decode(self._context, batch)
        if code != 0:
            raise ExportError(f"llama.cpp failed while running the model ({code}):\n" + "\n".join(last_log_lines()))

    def _logits(self, row: int) -> numpy.ndarray:
        import numpy

        pointer = self._lib.llama_get_logits_ith(self._context, row)
        return numpy.ctypeslib.as_array(pointer, (self.n_vocab,)).copy()
