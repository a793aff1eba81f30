"""The GGUF types that llama.cpp can write: their numbers, their sizes, and which need an importance matrix.

A type is a recipe of mixtures: what is really in a file stands in its header (`GgufFile.tensor_types`).
"""

from __future__ import annotations

from dataclasses import dataclass

from toolkit.errors import ExportError, nearest
from toolkit.llamacpp.library import library


@dataclass(frozen=True, slots=True)
class FileType:
    """llama.cpp's name, and the bits per weight of the layers' matrices to reserve on the disk.

    The bits are upper estimates: some matrices of a mixture get more than the name says, and rows that 256 does not
    divide fall back to wider types (`odd_bits`).
    """

    name: str
    bits: float
    odd_bits: float
    needs_imatrix: bool = False


FILE_TYPES: dict[str, FileType] = {
    "f32": FileType("ALL_F32", 32.0, 32.0),
    "f16": FileType("MOSTLY_F16", 16.0, 16.0),
    "bf16": FileType("MOSTLY_BF16", 16.0, 16.0),
    "q8_0": FileType("MOSTLY_Q8_0", 8.5, 8.5),
    "q6_k": FileType("MOSTLY_Q6_K", 6.7, 8.5),
    "q5_k_m": FileType("MOSTLY_Q5_K_M", 6.2, 7.5),
    "q5_k_s": FileType("MOSTLY_Q5_K_S", 5.6, 6.0),
    "q5_1": FileType("MOSTLY_Q5_1", 6.1, 6.0),
    "q5_0": FileType("MOSTLY_Q5_0", 5.6, 6.0),
    "q4_k_m": FileType("MOSTLY_Q4_K_M", 5.5, 7.0),
    "q4_k_s": FileType("MOSTLY_Q4_K_S", 5.0, 6.0),
    "q4_1": FileType("MOSTLY_Q4_1", 5.1, 5.0),
    "q4_0": FileType("MOSTLY_Q4_0", 4.6, 5.0),
    "iq4_nl": FileType("MOSTLY_IQ4_NL", 5.0, 5.5),
    "iq4_xs": FileType("MOSTLY_IQ4_XS", 4.9, 5.5),
    "q3_k_l": FileType("MOSTLY_Q3_K_L", 4.8, 6.0),
    "q3_k_m": FileType("MOSTLY_Q3_K_M", 4.5, 6.0),
    "q3_k_s": FileType("MOSTLY_Q3_K_S", 3.6, 5.0),
    "iq3_m": FileType("MOSTLY_IQ3_M", 4.3, 5.5),
    "iq3_s": FileType("MOSTLY_IQ3_S", 3.8, 5.0),
    "iq3_xs": FileType("MOSTLY_IQ3_XS", 3.8, 5.0, needs_imatrix=True),
    "iq3_xxs": FileType("MOSTLY_IQ3_XXS", 3.8, 5.0, needs_imatrix=True),
    "q2_k": FileType("MOSTLY_Q2_K", 3.5, 5.0),
    "q2_k_s": FileType("MOSTLY_Q2_K_S", 3.3, 5.0, needs_imatrix=True),
    "iq2_m": FileType("MOSTLY_IQ2_M", 3.4, 5.0, needs_imatrix=True),
    "iq2_s": FileType("MOSTLY_IQ2_S", 3.2, 5.0, needs_imatrix=True),
    "iq2_xs": FileType("MOSTLY_IQ2_XS", 3.0, 5.0, needs_imatrix=True),
    "iq2_xxs": FileType("MOSTLY_IQ2_XXS", 2.8, 5.0, needs_imatrix=True),
    "iq1_m": FileType("MOSTLY_IQ1_M", 2.6, 5.0, needs_imatrix=True),
    "iq1_s": FileType("MOSTLY_IQ1_S", 2.5, 5.0, needs_imatrix=True),
    "tq2_0": FileType("MOSTLY_TQ2_0", 2.2, 5.0),
    "tq1_0": FileType("MOSTLY_TQ1_0", 1.9, 5.0),
    "q2_0": FileType("MOSTLY_Q2_0", 2.4, 5.0),
    "q1_0": FileType("MOSTLY_Q1_0", 1.3, 5.0),
    "mxfp4_moe": FileType("MOSTLY_MXFP4_MOE", 8.5, 8.5),
}
"""Every type that `llama-quantize` offers (tools/quantize/quantize.cpp), by its name in a recipe; large ones first."""

EMBEDDING_BITS = 8.5
"""What token embedding and output head may take in every quantised type (Q6_K, or Q8_0 where rows are odd)."""


def check_type(kind: str) -> str:
    """The type itself, or an error that names the nearest."""
    if kind not in FILE_TYPES:
        near = nearest(kind, FILE_TYPES)
        hint = f"did you mean {near}?" if near else None
        raise ExportError(f"unknown GGUF type {kind!r}; known: {', '.join(FILE_TYPES)}", hint=hint)
    return kind


def file_type_number(kind: str) -> int:
    """llama.cpp's number for the type, which stands in the header as `general.file_type`."""
    return int(getattr(library(), f"LLAMA_FTYPE_{FILE_TYPES[check_type(kind)].name}"))


def weights_bytes(kind: str, *, matrices: int, embeddings: int, odd_rows: bool = False) -> int:
    """Upper estimate of a file's tensors, from the numbers of weights in its layers and in embedding and output head.
    `odd_rows`: whether a matrix has rows that 256 does not divide."""
    known = FILE_TYPES[check_type(kind)]
    bits = known.odd_bits if odd_rows else known.bits
    return int(matrices * bits + embeddings * max(bits, EMBEDDING_BITS)) // 8
