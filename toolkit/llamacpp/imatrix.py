"""The importance matrix: how large the inputs of each matrix are, column by column, while a model reads texts.

llama-quantize weighs errors by it, and types below three bits need it. llama.cpp computes it in a tool of its own
(tools/imatrix/imatrix.cpp), which its library does not hold; this collects the same sums through the library's hook.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.atomic import replacing
from toolkit.errors import ExportError
from toolkit.llamacpp.header import GgufFile
from toolkit.llamacpp.library import last_log_lines, library

if TYPE_CHECKING:
    import numpy

MIN_ROWS = 16
"""llama.cpp's tool leaves smaller batches out: a long prompt's last batch may hold a few tokens only."""


@dataclass(slots=True)
class Importance:
    """Sums of the squares of each input column, in float64, per tensor, and over how many tokens."""

    dataset: str
    sums: dict[str, numpy.ndarray] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    n_texts: int = 0
    n_tokens: int = 0

    def means(self) -> dict[str, numpy.ndarray]:
        """Mean squares as float32, which the quantiser takes."""
        import numpy

        return {name: (sums / self.counts[name]).astype(numpy.float32) for name, sums in self.sums.items()}

    def add(self, name: str, inputs: numpy.ndarray) -> None:
        """`inputs`: one row of float32 per token."""
        import numpy

        if not numpy.isfinite(inputs).all():
            raise ExportError(f"the inputs of {name} are not finite: no importance matrix can be computed")
        squares = numpy.einsum("ij,ij->j", inputs, inputs, dtype=numpy.float64)
        self.sums[name] = self.sums[name] + squares if name in self.sums else squares
        self.counts[name] = self.counts.get(name, 0) + len(inputs)


def collect(path: Path, texts: Sequence[Sequence[int]], *, dataset: str, threads: int = 1) -> Importance:
    """Run the file on each text (token ids, with BOS where the model wants one) from its beginning.

    `dataset` says in words what the texts are. ExportError where a layer's matrix met no input: such a model (a
    mixture of experts) would be quantised by halves.
    """
    found, faults = Importance(dataset), []
    matrices = {name for name, shape in GgufFile(path).tensor_shapes.items() if _is_layers(name) and len(shape) > 1}

    def watch(pointer: int, ask: bool, _: Any) -> bool:
        try:
            return _watch(_Tensor.from_address(pointer), ask, found)
        except Exception as error:  # nothing can be raised through C
            faults.append(error)
            return False

    with _running(path, max(map(len, texts)), watch, threads) as decode:
        for text in texts:
            decode(text)
            if faults:
                raise faults[0]
            found.n_texts += 1
            found.n_tokens += len(text)
    if not found.sums:
        raise ExportError(f"no text has {MIN_ROWS} tokens: no importance matrix can be computed", where=str(path))
    if unseen := sorted(matrices - found.sums.keys()):
        what = f"no importance matrix can be computed: {len(unseen)} matrices met no input, e.g. {unseen[0]}"
        raise ExportError(what, where=str(path), hint="export.imatrix=false")
    return found


def _is_layers(name: str) -> bool:
    """Embedding and output head are left out, as llama.cpp's tool leaves them out."""
    return name.startswith("blk.") and name.endswith(".weight")


def save(importance: Importance, path: Path) -> None:
    """In llama.cpp's GGUF format for importance matrices, complete or not at all. `llama-quantize --imatrix` reads it."""
    import numpy
    from gguf import GGUFWriter

    class Writer(GGUFWriter):
        def add_architecture(self) -> None:
            """Such a file is of no architecture."""

    with replacing(path.resolve()) as scratch:
        writer = Writer(scratch, "")
        writer.add_string("general.type", "imatrix")
        writer.add_array("imatrix.datasets", [importance.dataset])
        writer.add_uint32("imatrix.chunk_count", importance.n_texts)
        writer.add_uint32("imatrix.chunk_size", -(-importance.n_tokens // max(1, importance.n_texts)))
        for name, sums in sorted(importance.sums.items()):
            writer.add_tensor(f"{name}.in_sum2", sums.astype(numpy.float32).reshape(1, -1))
            writer.add_tensor(f"{name}.counts", numpy.array([[importance.counts[name]]], numpy.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


class _Tensor(ctypes.Structure):
    """`struct ggml_tensor` of the pinned ggml.h; `_check_layout` compares its size with the library's."""


_Tensor._fields_ = [
    ("type", ctypes.c_int),
    ("buffer", ctypes.c_void_p),
    ("ne", ctypes.c_int64 * 4),
    ("nb", ctypes.c_size_t * 4),
    ("op", ctypes.c_int),
    ("op_params", ctypes.c_int32 * 16),
    ("flags", ctypes.c_int32),
    ("src", ctypes.POINTER(_Tensor) * 10),
    ("view_src", ctypes.POINTER(_Tensor)),
    ("view_offs", ctypes.c_size_t),
    ("data", ctypes.c_void_p),
    ("name", ctypes.c_char * 64),
    ("extra", ctypes.c_void_p),
    ("padding", ctypes.c_char * 8),
]
_OBJECT_BYTES = 32
"""`struct ggml_object`, which lies before each tensor and counts in `ggml_tensor_overhead`."""
_F32 = 0


def _check_layout() -> Any:
    """ggml's functions that this module needs. Another ggml than the pinned one is an error and no crash."""
    from llama_cpp._ggml import libggml

    libggml.ggml_op_name.restype = ctypes.c_char_p
    libggml.ggml_tensor_overhead.restype = ctypes.c_size_t
    expected = ctypes.sizeof(_Tensor) + _OBJECT_BYTES
    if libggml.ggml_tensor_overhead() != expected:
        raise ExportError("llama.cpp's tensors are laid out otherwise than in the pinned version", hint="make setup")
    return libggml


def _watch(tensor: _Tensor, ask: bool, found: Importance) -> bool:
    """Called before (`ask`: is it of interest?) and after every operation."""
    import numpy
    from llama_cpp._ggml import libggml

    if ask:
        if libggml.ggml_op_name(tensor.op) != b"MUL_MAT":
            return False
        inputs = tensor.src[1].contents
        return inputs.ne[1] >= MIN_ROWS and inputs.type == _F32 and _is_layers(_weight_name(tensor))
    inputs = tensor.src[1].contents
    columns, rows = inputs.ne[0], inputs.ne[1] * inputs.ne[2] * inputs.ne[3]
    if inputs.nb[0] != 4 or inputs.nb[1] != 4 * columns:
        raise ExportError(f"the inputs of {_weight_name(tensor)} do not lie in one piece")
    pointer = ctypes.cast(inputs.data, ctypes.POINTER(ctypes.c_float))
    found.add(_weight_name(tensor), numpy.ctypeslib.as_array(pointer, (rows, columns)))
    return True


def _weight_name(tensor: _Tensor) -> str:
    """Name of the matrix, without the device that may stand around it (`CUDA0#blk.0.attn_k.weight#0`)."""
    name = tensor.src[0].contents.name.decode("utf-8")
    return name.split("#")[1] if name.count("#") == 2 else name


@contextmanager
def _running(path: Path, longest: int, watch: Any, threads: int) -> Iterator[Any]:
    """The file in a context of its own, as a function that reads a text from its beginning."""
    lib = library()
    _check_layout()
    model = context = None
    parameters = lib.llama_model_default_params()
    parameters.n_gpu_layers = 0
    callback = lib.ggml_backend_sched_eval_callback(watch)  # must live as long as the context
    try:
        model = lib.llama_model_load_from_file(os.fsencode(path.resolve()), parameters)
        context = lib.llama_init_from_model(model, _context(lib, longest, callback, threads)) if model else None
        if not context:
            raise ExportError("llama.cpp cannot run the file:\n" + "\n".join(last_log_lines()), where=str(path))
        yield lambda text: _read(lib, context, text)
    finally:
        if context:
            lib.llama_free(context)
        if model:
            lib.llama_model_free(model)


def _context(lib: Any, longest: int, callback: Any, threads: int) -> Any:
    parameters = lib.llama_context_default_params()
    parameters.n_ctx = parameters.n_batch = parameters.n_ubatch = max(longest, MIN_ROWS)
    parameters.n_threads = parameters.n_threads_batch = threads
    parameters.cb_eval = callback
    return parameters


def _read(lib: Any, context: Any, text: Sequence[int]) -> None:
    """All positions give logits: else the last layer would compute the last token only."""
    lib.llama_memory_clear(lib.llama_get_memory(context), True)
    batch = lib.llama_batch_init(len(text), 0, 1)
    try:
        batch.n_tokens = len(text)
        for row, token in enumerate(text):
            batch.token[row], batch.pos[row], batch.logits[row] = token, row, True
            batch.n_seq_id[row] = 1
            batch.seq_id[row][0] = 0
        code = lib.llama_decode(context, batch)
    finally:
        lib.llama_batch_free(batch)
    if code != 0:
        raise ExportError(f"llama.cpp failed while running the model ({code}):\n" + "\n".join(last_log_lines()))
