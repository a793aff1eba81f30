"""Where a recipe's base model lies: a Hub name, a folder, a GGUF file, or a GGUF file inside a package. It loads nothing.

A GGUF file is turned into a normal checkpoint once (`gguf_checkpoint`) and found again by the hash of its bytes.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.errors import EngineError, MissingExtraError
from toolkit.rundir import sha256_of

if TYPE_CHECKING:
    from toolkit.recipe import Model

_HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_PREQUANTIZED = re.compile(r"(-unsloth)?-bnb-4bit$", re.IGNORECASE)
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")


def training_source(model: Model) -> str:
    """What `FastLanguageModel.from_pretrained` is given: a Hub name as it stands, else a folder on this machine."""
    return model.source if is_hub_name(model.source) else str(base_checkpoint(model))


def base_checkpoint(model: Model) -> Path:
    """The folder of the base model's 16-bit checkpoint; converted or downloaded where it is not here yet.

    An adapter is merged into this one, never into a 4-bit copy: of a name that ends in -bnb-4bit, its 16-bit twin is taken.
    """
    if is_hub_name(model.source):
        return _from_hub(_PREQUANTIZED.sub("", model.source), model.revision)
    path = local_path(model.source)
    if path.is_file():
        from toolkit.engine.gguf_checkpoint import converted

        return converted(path)
    if not any((path / name).is_file() for name in _WEIGHTS):
        raise EngineError("the folder holds no model.safetensors", where=str(path), hint="toolkit recipes show NAME")
    return path


def is_hub_name(source: str) -> bool:
    """Whether the source is `org/name` and no such path exists here."""
    return bool(_HUB_NAME.fullmatch(source)) and not source.endswith(".gguf") and not Path(source).exists()


def local_path(source: str) -> Path:
    """The file or folder that a source on this machine means."""
    path = _in_package(source) if source.startswith("package:") else Path(source).expanduser()
    if not path.exists():
        raise EngineError(f"model.source: there is no {path}", hint="a Hub name is written org/name")
    return path.resolve()


def _in_package(source: str) -> Path:
    name, _, file = source.removeprefix("package:").partition("/")
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError(name.replace("_", "-"), "cpu")
    return Path(next(iter(spec.submodule_search_locations))) / file


def _from_hub(name: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        patterns = ["*.safetensors", "*.json", "*.model", "*.jinja", "*.txt"]
        return Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
    except GatedRepoError as error:
        hint = f"accept its terms on the model's page ({name}), then: hf auth login"
        raise EngineError(f"{name} is gated", hint=hint) from error
    except RepositoryNotFoundError as error:
        raise EngineError(f"the Hub has no model {name}", hint="check model.source") from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        hint = "connect to the Hub, or set model.source to a folder or a GGUF file"
        raise EngineError(f"{name} cannot be downloaded: {type(error).__name__}", hint=hint) from error


def source_fingerprint(model: Model) -> str:
    """A hash of the base model's weights: of its safetensors files, in name order."""
    import hashlib

    digest = hashlib.sha256()
    for file in sorted(base_checkpoint(model).glob("*.safetensors")):
        digest.update(f"{file.name} {sha256_of(file)}\n".encode())
    return digest.hexdigest()
