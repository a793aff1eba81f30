"""Packed numbers of a GGUF tensor as float32, through the functions that llama.cpp itself unpacks with. It reads no file.

The gguf library unpacks most types too, but not the newest (Q1_0, Q2_0).
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING, Any

from toolkit.llamacpp.library import library

if TYPE_CHECKING:
    import numpy

TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 30: ("BF16", 1, 2),
    2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 22: ("IQ2_S", 256, 82), 18: ("IQ3_XXS", 256, 98),
    21: ("IQ3_S", 256, 110), 19: ("IQ1_S", 256, 50), 29: ("IQ1_M", 256, 56), 20: ("IQ4_NL", 32, 18), 23: ("IQ4_XS", 256, 136),
    34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18),
    42: ("Q2_0", 64, 18),
}  # fmt: skip
"""ggml's number of a type -> its name, how many numbers a block holds, and in how many bytes (ggml.h, ggml-common.h)."""


def bits_of(kind: str) -> float:
    """Bits for one number in a tensor of this type (`Q4_K`, `F16`, …), scales included."""
    block, block_bytes = next(sizes for name, *sizes in TYPES.values() if name == kind)
    return 8 * block_bytes / block


def dequantize(raw: numpy.ndarray, kind: str) -> numpy.ndarray:
    """Bytes of shape (rows, bytes of a row) as float32 of shape (rows, numbers of a row)."""
    import numpy

    raw = numpy.ascontiguousarray(raw)
    if kind == "F32":
        return raw.view(numpy.float32)
    if kind == "F16":
        return raw.view(numpy.float16).astype(numpy.float32)
    if kind == "BF16":
        return (raw.view(numpy.uint16).astype(numpy.uint32) << 16).view(numpy.float32)
    numbers = numpy.empty((len(raw), round(raw.shape[1] * 8 / bits_of(kind))), dtype=numpy.float32)
    _function(kind)(raw.ctypes.data, numbers.ctypes.data, numbers.size)
    return numbers


@cache
def _function(kind: str) -> Any:
    library()  # started first: tables of some types are built then
    from llama_cpp._ggml import libggml

    family, _, variant = kind.partition("_")
    name = f"{family.lower()}_{variant if variant == 'K' else variant.lower()}".rstrip("_")
    function = getattr(libggml, f"dequantize_row_{name}")
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64], None
    return function
