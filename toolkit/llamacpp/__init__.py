"""The only caller of llama.cpp: converter, quantiser, file headers and the runtime. It judges nothing.

All of it comes from one release of `llama-cpp-python`: the wheel holds the runtime and the quantiser, the
source distribution of the same version holds the converter, which `python -m toolkit.llamacpp.fetch` puts in
its place.
"""

from toolkit.llamacpp.chat import ChatModel, open_chat
from toolkit.llamacpp.convert import Conversion, convert, convert_lora, converter_dir, versions
from toolkit.llamacpp.dequantize import bits_of
from toolkit.llamacpp.header import CONTROL, GgufFile, interleaved, shard_paths
from toolkit.llamacpp.imatrix import Importance, collect, save
from toolkit.llamacpp.quantize import quantize
from toolkit.llamacpp.runtime import SPEED_TOKENS, LlamaModel, Speed, common_length, open_model, render_chat
from toolkit.llamacpp.served import USUAL_PORT, ServedModel, served_models
from toolkit.llamacpp.split import split
from toolkit.llamacpp.trial import try_file
from toolkit.llamacpp.types import FILE_TYPES, check_type, file_type_number, weights_bytes
from toolkit.llamacpp.vocabulary import adds_bos

__all__ = [
    "CONTROL",
    "FILE_TYPES",
    "SPEED_TOKENS",
    "USUAL_PORT",
    "ChatModel",
    "Conversion",
    "GgufFile",
    "Importance",
    "LlamaModel",
    "ServedModel",
    "Speed",
    "adds_bos",
    "bits_of",
    "check_type",
    "collect",
    "common_length",
    "convert",
    "convert_lora",
    "converter_dir",
    "file_type_number",
    "interleaved",
    "open_chat",
    "open_model",
    "quantize",
    "render_chat",
    "save",
    "served_models",
    "shard_paths",
    "split",
    "try_file",
    "versions",
    "weights_bytes",
]
