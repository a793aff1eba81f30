"""Quantises a GGUF file with llama.cpp's own function, the one that its command llama-quantize calls."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

from toolkit.atomic import replacing
from toolkit.errors import ExportError
from toolkit.llamacpp.imatrix import Importance
from toolkit.llamacpp.library import last_log_lines, library
from toolkit.llamacpp.types import file_type_number

BUFFER_BYTES = 2**29
"""Rows of one tensor that are quantised at a time; llama.cpp's default of 8 GiB holds the largest tensor whole."""


def quantize(source: Path, out: Path, *, kind: str, threads: int = 1, importance: Importance | None = None) -> None:
    """Write `out` in the type `kind` from an f32, f16 or bf16 file; complete or not at all. With an importance matrix
    the errors of weights that meet large activations count more."""
    lib = library()
    parameters = lib.llama_model_quantize_default_params()
    parameters.ftype = file_type_number(kind)
    parameters.nthread = threads
    parameters.max_buf_size = BUFFER_BYTES
    if importance is not None:
        entries, notes = _entries(lib, importance), _notes(lib, importance)
        parameters.imatrix = ctypes.cast(entries, ctypes.POINTER(lib.llama_model_imatrix_data))
        parameters.kv_overrides = ctypes.cast(notes, ctypes.POINTER(lib.llama_model_kv_override))
    with replacing(out.resolve()) as scratch:
        code = lib.llama_model_quantize(os.fsencode(source.resolve()), os.fsencode(scratch), parameters)
        if code != 0:
            tail = "\n".join(last_log_lines())
            raise ExportError(f"llama.cpp could not quantise to {kind} ({code}):\n{tail}", where=str(source))


def _entries(lib: Any, importance: Importance) -> Any:
    """Mean square of each input column per tensor; an entry without a name ends the list."""
    means = importance.means()
    entries = (lib.llama_model_imatrix_data * (len(means) + 1))()
    entries.arrays = means  # the entries only point at the numbers
    for entry, (name, values) in zip(entries, means.items(), strict=False):
        entry.name = name.encode("utf-8")
        entry.data = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        entry.size = values.size
    return entries


def _notes(lib: Any, importance: Importance) -> Any:
    """Fields of the header that say what the importance matrix was computed from, as llama-quantize writes them."""
    fields: dict[str, str | int] = {
        "quantize.imatrix.file": "imatrix.gguf",
        "quantize.imatrix.dataset": importance.dataset,
        "quantize.imatrix.entries_count": len(importance.sums),
        "quantize.imatrix.chunks_count": importance.n_texts,
    }
    notes = (lib.llama_model_kv_override * (len(fields) + 1))()
    for note, (key, value) in zip(notes, fields.items(), strict=False):
        note.key = key.encode("utf-8")
        if isinstance(value, int):
            note.tag, note.value.val_i64 = lib.LLAMA_KV_OVERRIDE_TYPE_INT, value
        else:
            note.tag, note.value.val_str = lib.LLAMA_KV_OVERRIDE_TYPE_STR, value.encode("utf-8")[:127]
    return notes
