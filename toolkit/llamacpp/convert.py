"""Runs llama.cpp's converters: a Hugging Face folder or a PEFT adapter in, one GGUF file out. It quantises nothing
(quantize.py does).

A converter runs as a process of its own with an argument list, offline. What it warns of about the
tokenizer is an error here: such files load, and then answer worse than the model that was trained.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from toolkit.atomic import replacing
from toolkit.errors import ExportError, MissingExtraError

SCRIPT = "convert_hf_to_gguf.py"
LORA_SCRIPT = "convert_lora_to_gguf.py"
ORIGIN_FILE = "origin.json"
DIR_VARIABLE = "TOOLKIT_LLAMA_CPP_DIR"
FETCH_COMMAND = "python -m toolkit.llamacpp.fetch"
TAIL_LINES = 12

HARMLESS = ("Unknown RoPE type: default", "in TemplateProcessing<pair>")
"""transformers 5 names the plain rotary embedding "default", the converter expects nothing there and does
nothing. Gemma and Llama join two texts by their begin token, which the converter does not expect; no chat joins two."""

UNMARKED = re.compile(r"^\S+\.py:\d+: (?=\w*Warning: )|^(?=The tokenizer you are loading )")
"""Warnings of Python and of transformers' tokenizers, which do not come through the converter's log. Other lines without
a mark are the rest of one that has it: it prints the chat template."""

_REPLACED = re.compile(r"replacing token \d+: '(.*)' -> '(.*)'$")
TOKENIZER_WARNING = re.compile(r"^(WARNING|ERROR):gguf\.vocab|token|merge|vocab|chat_template|special", re.I)


@dataclass(frozen=True, slots=True)
class Conversion:
    """What the converter said besides its work."""

    warnings: tuple[str, ...]


def default_dir(version: str) -> Path:
    """Where set-up puts the converter: inside the environment, so that it lives and dies with it."""
    return Path(sys.prefix) / "share" / f"llama.cpp-{version}"


def is_converter(folder: Path, *, complete: bool = True) -> bool:
    """Whether the folder holds the converter's parts (`complete`: and was finished by set-up)."""
    parts = [SCRIPT, "conversion/__init__.py", "gguf-py/gguf/__init__.py"]
    return all((folder / part).is_file() for part in [*parts, *([ORIGIN_FILE] if complete else [])])


def converter_dir() -> Path:
    """The folder with the converter: $TOOLKIT_LLAMA_CPP_DIR, else the one that set-up filled."""
    if given := os.environ.get(DIR_VARIABLE):
        if not is_converter(Path(given), complete=False):
            raise ExportError(f"${DIR_VARIABLE} names a folder without {SCRIPT} and its parts", where=given)
        return Path(given).resolve()
    folder = default_dir(_version("llama-cpp-python"))
    if not is_converter(folder):
        raise ExportError("llama.cpp's converter is not installed", where=str(folder), hint=FETCH_COMMAND)
    return folder


def versions() -> dict[str, str]:
    """What the files were made with, for the manifest."""
    origin_file = converter_dir() / ORIGIN_FILE
    origin = json.loads(origin_file.read_text(encoding="utf-8")) if origin_file.is_file() else {}
    return {
        "llama-cpp-python": _version("llama-cpp-python"),
        "llama.cpp": origin.get("llama.cpp", "unknown"),
        "gguf": _version("gguf"),
    }


def convert(model: Path, out: Path, *, outtype: str, name: str, limit_s: float = 7200) -> Conversion:
    """Write `out`, complete or not at all. `outtype` is f32, f16 or bf16; `name` goes into the file's
    header."""
    return _converted(SCRIPT, [f"--outtype={outtype}", f"--model-name={name}"], model, out, limit_s)


def convert_lora(adapter: Path, out: Path, *, base: Path, limit_s: float = 7200) -> Conversion:
    """Write the adapter of a PEFT folder as a GGUF LoRA in f32. `base` holds its model's config and tokenizer; the
    adapter folder's own name goes into the file's header."""
    return _converted(LORA_SCRIPT, ["--outtype=f32", f"--base={base.resolve()}"], adapter, out, limit_s)


def _converted(script: str, options: list[str], source: Path, out: Path, limit_s: float) -> Conversion:
    program = converter_dir() / script
    with replacing(out.resolve()) as scratch:
        command = [sys.executable, str(program), f"--outfile={scratch}", *options, str(source.resolve())]
        lines, code = _run(command, scratch.parent, limit_s)
        if code != 0:
            tail = "\n".join(lines[-TAIL_LINES:])
            raise ExportError(f"llama.cpp's converter failed ({code}):\n{tail}", where=str(source))
        warnings = _warnings(lines)
        if doubts := [line for line in warnings if TOKENIZER_WARNING.search(line)]:
            listed = "\n".join(doubts[:TAIL_LINES])
            raise ExportError(f"llama.cpp's converter has doubts about the tokenizer:\n{listed}", where=str(source))
    return Conversion(warnings=tuple(warnings))


def _run(command: list[str], folder: Path, limit_s: float) -> tuple[list[str], int]:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=limit_s, check=False,
            stdin=subprocess.DEVNULL, env=_environment(), cwd=folder,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ExportError(f"llama.cpp's converter took more than {limit_s:.0f} s", where=command[-1]) from None
    lines = re.split(r"[\r\n]+", done.stderr + done.stdout)
    return [line for line in lines if line.strip()], done.returncode


def _environment() -> dict[str, str]:
    """Offline, and with the converter's own gguf library, whatever else is installed."""
    strays = ("PYTHONPATH", "PYTHONHOME", "NO_LOCAL_GGUF")
    kept = {key: value for key, value in os.environ.items() if key not in strays}
    return kept | {"HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUTF8": "1"}


def _warnings(lines: list[str]) -> list[str]:
    marked = [line.strip() for line in lines if line.startswith(("WARNING:", "ERROR:"))]
    unmarked = [UNMARKED.sub("", line, count=1).strip() for line in lines if UNMARKED.match(line)]
    return [line for line in [*marked, *unmarked] if not line.endswith(HARMLESS) and not _only_spelled(line)]


def _only_spelled(line: str) -> bool:
    """Whether a token is "replaced" by itself: SentencePiece spells its spaces with a mark."""
    found = _REPLACED.search(line)
    return found is not None and found[1].replace("\u2581", " ") == found[2]


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise MissingExtraError(package, "cpu") from None
