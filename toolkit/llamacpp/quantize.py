"""Quantises a GGUF file with llama.cpp's own function, the one that its command llama-quantize calls."""

from __future__ import annotations

import os
from pathlib import Path

from toolkit.errors import ExportError, nearest
from toolkit.llamacpp.library import last_log_lines, library
from toolkit.rundir import replacing

FILE_TYPES: dict[str, tuple[str, float]] = {
    "f32": ("ALL_F32", 32.0),
    "f16": ("MOSTLY_F16", 16.0),
    "bf16": ("MOSTLY_BF16", 16.0),
    "q8_0": ("MOSTLY_Q8_0", 8.5),
    "q6_k": ("MOSTLY_Q6_K", 8.5),
    "q5_k_m": ("MOSTLY_Q5_K_M", 7.0),
    "q5_k_s": ("MOSTLY_Q5_K_S", 7.0),
    "q5_1": ("MOSTLY_Q5_1", 7.0),
    "q5_0": ("MOSTLY_Q5_0", 7.0),
    "q4_k_m": ("MOSTLY_Q4_K_M", 6.5),
    "q4_k_s": ("MOSTLY_Q4_K_S", 6.5),
    "q4_1": ("MOSTLY_Q4_1", 6.0),
    "q4_0": ("MOSTLY_Q4_0", 6.0),
    "q3_k_l": ("MOSTLY_Q3_K_L", 6.0),
    "q3_k_m": ("MOSTLY_Q3_K_M", 6.0),
    "q3_k_s": ("MOSTLY_Q3_K_S", 6.0),
    "q2_k": ("MOSTLY_Q2_K", 5.5),
}
"""Name in a recipe -> (llama.cpp's name, bits per weight to reserve on the disk).

The bits are an upper estimate: the embedding stays at 6 to 8 bits, and in a small model it is much of the
whole; rows that 256 does not divide fall back to wider types.
"""


def bits_per_weight(kind: str) -> float:
    """Upper estimate, for the disk space."""
    return FILE_TYPES[check_type(kind)][1]


def check_type(kind: str) -> str:
    """The type itself, or an error that names the nearest."""
    if kind not in FILE_TYPES:
        near = nearest(kind, FILE_TYPES)
        hint = f"did you mean {near}?" if near else None
        raise ExportError(f"unknown GGUF type {kind!r}; known: {', '.join(FILE_TYPES)}", hint=hint)
    return kind


def file_type_number(kind: str) -> int:
    """llama.cpp's number for the type, which stands in the header as `general.file_type`."""
    return int(getattr(library(), f"LLAMA_FTYPE_{FILE_TYPES[check_type(kind)][0]}"))


def quantize(source: Path, out: Path, *, kind: str, threads: int = 1) -> None:
    """Write `out` in the type `kind` from an f32, f16 or bf16 file; complete or not at all."""
    lib = library()
    parameters = lib.llama_model_quantize_default_params()
    parameters.ftype = file_type_number(kind)
    parameters.nthread = threads
    with replacing(out.resolve()) as scratch:
        code = lib.llama_model_quantize(os.fsencode(source.resolve()), os.fsencode(scratch), parameters)
        if code != 0:
            tail = "\n".join(last_log_lines())
            raise ExportError(f"llama.cpp could not quantise to {kind} ({code}):\n{tail}", where=str(source))
