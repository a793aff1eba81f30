"""Opens a GGUF file in a process of its own first: on some damaged files llama.cpp aborts instead of
answering.

`try_file` is what others call, `main` is that process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from toolkit.errors import ExportError, ToolkitError

LIMIT_S = 600


def try_file(path: Path, texts: list[str]) -> None:
    """Load the file, tokenise the texts and run the model on them; ExportError where that does not end
    well."""
    code = "import sys; from toolkit.llamacpp.trial import main; sys.exit(main())"
    command = [sys.executable, "-c", code, str(path.resolve())]
    try:
        done = subprocess.run(
            command, input=json.dumps(texts), capture_output=True, text=True, errors="replace", env=child_environment(),
            timeout=LIMIT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ExportError(f"llama.cpp did not answer within {LIMIT_S} s", where=str(path)) from None
    if done.returncode != 0:
        tail = "\n".join(line for line in done.stderr.strip().splitlines()[-4:])
        how = f"aborts (signal {-done.returncode})" if done.returncode < 0 else "fails"
        raise ExportError(f"llama.cpp {how} on this file:\n{tail}", where=str(path))


def child_environment() -> dict[str, str]:
    """The environment of this process, in which a Python finds this toolkit even where it is not installed."""
    source = str(Path(__file__).resolve().parents[2])
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))}


def main() -> int:
    """The process: exit code 0 when all went well."""
    from toolkit.llamacpp.runtime import open_model

    texts = json.load(sys.stdin)
    try:
        with open_model(Path(sys.argv[1]), context=512) as model:
            for text in texts:
                ids = model.tokenize(text, special=True)[:64]
                if len(ids) > 1:
                    model.log_probabilities(ids, len(ids) - 1)
    except ToolkitError as error:
        sys.stderr.write(error.message)
        return 1
    return 0
