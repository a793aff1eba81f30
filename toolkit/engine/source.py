"""Where a recipe's base model lies: a Hub name, a folder, a GGUF file, or a GGUF file inside a package. It loads nothing.

A GGUF file is turned into a normal checkpoint once (`gguf_checkpoint`) and found again by the hash of its bytes. What an
adapter is merged into, where the base is a 4-bit copy, is found by `sixteen_bit`.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.atomic import read_json, sha256_of
from toolkit.errors import EngineError, MissingExtraError
from toolkit.rundir import LICENCE_FILES

if TYPE_CHECKING:
    from toolkit.recipe import Model

_HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_FILES = ("*.safetensors", "*.json", "*.model", "*.jinja", "*.txt", *LICENCE_FILES)
_NOT_NEEDED = ("consolidated*", "*/*")
"""The same weights a second time, in another format."""


def training_source(model: Model) -> str:
    """What `FastLanguageModel.from_pretrained` is given: a Hub name as it stands, else a folder on this machine."""
    return model.source if is_hub_name(model.source) else str(checkpoint_of(model.source))


def checkpoint_of(source: str, revision: str | None = None) -> Path:
    """The folder of a source's checkpoint as it is, 4-bit copies too; converted or downloaded where it is not here yet."""
    if is_hub_name(source):
        return from_hub(source, revision)
    path = local_path(source)
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


def from_hub(name: str, revision: str | None = None, *, files: tuple[str, ...] = _FILES) -> Path:
    """The folder of a Hub model's files: downloaded where they are not in the cache or changed, and out of the cache
    alone where the Hub is out of reach."""
    from httpx import HTTPError
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    try:
        snapshot = snapshot_download(name, revision=revision, allow_patterns=[*files], ignore_patterns=[*_NOT_NEEDED])
    except GatedRepoError as error:
        hint = f"accept its terms on the model's page ({name}), then: hf auth login"
        raise EngineError(f"{name} is gated", hint=hint) from error
    except RepositoryNotFoundError as error:
        raise EngineError(f"the Hub has no model {name}", hint="check model.source") from error
    except (HTTPError, OSError) as error:
        snapshot = _in_cache(name, revision)
        if snapshot is None:
            hint = "connect to the Hub, or set model.source to a folder or a GGUF file"
            raise EngineError(f"{name} cannot be downloaded: {type(error).__name__}", hint=hint) from error
    if files == _FILES:
        _require_weights(Path(snapshot), name)
    return Path(snapshot)


def _in_cache(name: str, revision: str | None) -> Path | None:
    """The snapshot as another program may have left it: `snapshot_download` offline wants its own list of all files."""
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(name, "config.json", revision=revision)
    return Path(config).parent if isinstance(config, str) else None


def _require_weights(folder: Path, name: str) -> None:
    """A cache that is used offline may hold the small files only, or some of the shards."""
    index = folder / _WEIGHTS[1]
    wanted = set(read_json(index)["weight_map"].values()) if index.is_file() else {_WEIGHTS[0]}
    if missing := sorted(file for file in wanted if not (folder / file).is_file()):
        what = f"{name} lies in the cache without {missing[0]}" + f" and {len(missing) - 1} more" * (len(missing) > 1)
        raise EngineError(what, where=str(folder), hint="connect to the Hub once, without HF_HUB_OFFLINE")


def source_fingerprint(model: Model) -> str:
    """A hash of the weights that are trained on: of the source's safetensors files, in name order."""
    import hashlib

    digest = hashlib.sha256()
    for file in sorted(checkpoint_of(model.source, model.revision).glob("*.safetensors")):
        digest.update(f"{file.name} {sha256_of(file)}\n".encode())
    return digest.hexdigest()
