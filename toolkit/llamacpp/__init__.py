"""The only caller of llama.cpp: converter, quantiser, file headers and the runtime. It judges nothing.

All of it comes from one release of `llama-cpp-python`: the wheel holds the runtime and the quantiser, the
source distribution of the same version holds the converter, which `python -m toolkit.llamacpp.fetch` puts in
its place.
"""

from toolkit.llamacpp.chat import ChatModel, open_chat
from toolkit.llamacpp.convert import Conversion, convert, converter_dir, versions
from toolkit.llamacpp.header import CONTROL, GgufFile
from toolkit.llamacpp.quantize import FILE_TYPES, bits_per_weight, check_type, file_type_number, quantize
from toolkit.llamacpp.runtime import LlamaModel, common_length, open_model, render_chat
from toolkit.llamacpp.trial import try_file

__all__ = [
    "CONTROL",
    "FILE_TYPES",
    "ChatModel",
    "Conversion",
    "GgufFile",
    "LlamaModel",
    "bits_per_weight",
    "check_type",
    "common_length",
    "convert",
    "converter_dir",
    "file_type_number",
    "open_chat",
    "open_model",
    "quantize",
    "render_chat",
    "try_file",
    "versions",
]
