"""The README of an export: how each program is told to ask the model as its training did. It checks nothing."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from toolkit.bundle.settings import Settings

README, SYSTEM_FILE = "README.md", "system-prompt.txt"
MODELFILE, OPEN_WEBUI = ".Modelfile", ".open-webui.json"


_PART = re.compile(r"-\d{5}-of-\d{5}$")
"""What llama.cpp puts behind the name of a file that it splits."""


def model_id(gguf: str) -> str:
    """The file's name for servers and their clients, who take neither spaces nor commas."""
    return re.sub(r"[\s,]+", "-", beside(gguf, ""))


def beside(gguf: str, ending: str) -> str:
    """The name of what lies beside a GGUF file, or the first of its parts."""
    return _PART.sub("", gguf.removesuffix(".gguf")) + ending


def in_parts(gguf: str) -> bool:
    """Whether this is the first of several parts."""
    return _PART.search(gguf.removesuffix(".gguf")) is not None


def join_parts(gguf: str) -> str:
    """The command that makes one file of the parts, for Ollama, which takes none in parts (its issue 5245)."""
    return shlex.join(["llama-gguf-split", "--merge", gguf, beside(gguf, ".gguf")])


def ollama_create(gguf: str) -> list[str]:
    """The commands after which Ollama has the model, to be run where the file lies."""
    create = shlex.join(["ollama", "create", model_id(gguf).lower(), "-f", beside(gguf, MODELFILE)])
    return [join_parts(gguf), create] if in_parts(gguf) else [create]


def llama_server(gguf: str, settings: Settings) -> str:
    """The command, to be run where the file lies. The answer stays as the model wrote it: no thoughts are cut out."""
    words = ["llama-server", "-m", gguf, "--alias", model_id(gguf), "--host", "127.0.0.1", "--port", "8080", "--jinja"]
    return shlex.join([*words, "--reasoning-format", "none", *settings.llama_cpp()])


def llama_cli(gguf: str, settings: Settings, *, has_system_role: bool) -> str:
    """The command. Without --no-escape a backslash in the system prompt, as in \\boxed, would begin an escape."""
    system = ["-sysf", SYSTEM_FILE, "--no-escape"] if settings.system and has_system_role else []
    words = ["llama-cli", "-m", gguf, *system, "--jinja", "--reasoning-format", "none"]
    return shlex.join([*words, *settings.llama_cpp()])


def readme(run: str, files: Sequence[str], settings: Settings, *, has_system_role: bool) -> str:
    """Markdown. `files` are the GGUF files."""
    parts = [_head(run, settings, has_system_role)]
    if files:
        commands = [
            (llama_server(file, settings), llama_cli(file, settings, has_system_role=has_system_role)) for file in files
        ]
        parts += [_llama_cpp(commands, settings), _ollama(files), _open_webui(files)]
    return "\n\n".join([*parts, _transformers(settings, has_system_role), _vllm(run, settings)]) + "\n"


def _head(run: str, settings: Settings, has_system_role: bool) -> str:
    system = f"under the system prompt in `{SYSTEM_FILE}`" if settings.system else "without a system prompt"
    lines = [
        f"# {run}",
        "",
        "A model fine-tuned with grpo-toolkit. `manifest.json` names every file's SHA-256 and where it came from; `verify.json`,",
        "where it is there, says with numbers that these files answer as the trained model does.",
        "",
        f"It was trained {system}, on answers of at most {settings.max_tokens} tokens,",
        f"sampled at temperature {settings.temperature:g}. Ask it likewise; temperature 0 gives the likeliest answer.",
    ]
    if settings.system and not has_system_role:
        lines.append(
            "Its chat template has no system role: in training that text stood at the beginning of the question, with an empty "
            "line\nafter it. `toolkit serve` and the Modelfiles put it there; elsewhere write it there yourself."
        )
    return "\n".join(lines)


def _llama_cpp(commands: Sequence[Sequence[str]], settings: Settings) -> str:
    block = _block("sh", ["\n".join([*words, ""]) for words in commands])
    text = (
        "`llama-server` speaks OpenAI's protocol at http://127.0.0.1:8080/v1; so does `toolkit serve`, without an installation of\n"
        "llama.cpp."
    )
    system = f" Each request brings the system prompt, the text in `{SYSTEM_FILE}`." if settings.system else ""
    return f"## llama.cpp\n\n{block}\n\n{text}{system}"


def _ollama(files: Sequence[str]) -> str:
    commands = [command for file in files for command in ollama_create(file)]
    run = shlex.join(["ollama", "run", model_id(files[0]).lower()])
    return f"## Ollama\n\n{_block('sh', [*commands, run])}\n\nThe first lines of a Modelfile say how its template was checked."


def _open_webui(files: Sequence[str]) -> str:
    name = beside(files[0], OPEN_WEBUI)
    return (
        "## Open WebUI\n\n`toolkit open-webui` starts it with everything in its place. In one of your own: Admin Panel > Settings > "
        "Connections, add\nhttp://127.0.0.1:8080/v1 (any key) while `llama-server` runs; then Workspace > Models > Import, "
        f"`{name}`."
    )


def _transformers(settings: Settings, has_system_role: bool) -> str:
    keywords = ", ".join(f"{name}={value!r}" for name, value in settings.transformers().items())
    read = f'open("{SYSTEM_FILE}", encoding="utf-8").read()'
    chat = ['{"role": "user", "content": question}']
    if settings.system and has_system_role:
        chat = [f'{{"role": "system", "content": {read}[:-1]}}', *chat]
    elif settings.system:
        chat = [f'{{"role": "user", "content": {read} + "\\n" + question}}']
    code = [
        "from transformers import pipeline",
        "",
        'question = "…"',
        f"chat = [{', '.join(chat)}]",
        'model = pipeline("text-generation", model="merged")',
        f'print(model(chat, {keywords})[0]["generated_text"][-1]["content"])',
    ]
    return f"## transformers\n\n{_block('python', code)}"


def _vllm(run: str, settings: Settings) -> str:
    """Its module and not `vllm serve`, which fails in vLLM's build for CPUs (0.31)."""
    words = [
        "python",
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        "./merged",
        "--served-model-name",
        model_id(run),
    ]
    command = shlex.join([*words, "--max-model-len", f"{settings.context}", "--generation-config", "vllm"])
    return f"## vLLM\n\n{_block('sh', [command])}"


def _block(language: str, lines: Sequence[str]) -> str:
    return "\n".join([f"```{language}", *lines]).rstrip() + "\n```"
