"""What the keys of a recipe's `hub` do, seen at a Hub on loopback; and a run with a checkpoint to send there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hub_stand_in import Hub, logged_in_to, running_hub
from toolkit.atomic import write_json
from toolkit.hub.files import places
from toolkit.hubapi import CheckpointUploads
from toolkit.recipe import Recipe
from toolkit.rundir import RunDir

BASE_PATH = "/home/somebody/models/base"


def write_run(folder: Path, recipe: Recipe) -> RunDir:
    """The records of a run that is under way, one of them with a path of this machine. Checkpoints: `write_checkpoint`."""
    run = RunDir(folder)
    for path in (run.path, run.checkpoints, run.warmup_adapter):
        path.mkdir(parents=True, exist_ok=True)
    write_json(run.recipe, recipe.model_dump(mode="json"))
    write_json(run.manifest, {"base": {"source": BASE_PATH}})
    write_json(run.state, {"state": "running"})
    run.metrics.write_text('{"step": 1}\n', encoding="utf-8")
    (run.warmup_adapter / "adapter_model.safetensors").write_bytes(b"warm")
    return run


def write_checkpoint(run: RunDir, step: int) -> Path:
    """What the trainer leaves after a step."""
    folder = run.checkpoints / f"checkpoint-{step}"
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(b"w" * 1500 + b"%d" % step)
    (folder / "adapter_config.json").write_text(json.dumps({"r": 4, "base_model_name_or_path": BASE_PATH}))
    (folder / "optimizer.pt").write_bytes(b"o" * 10)
    (folder / "training_args.bin").write_bytes(BASE_PATH.encode())
    (folder / "README.md").write_text(BASE_PATH)
    (folder / "trainer_state.json").write_text("{}")
    return folder


@contextmanager
def checkpoint_sent(recipe: Recipe) -> Iterator[Hub]:
    """A hub after a run with this recipe has made a checkpoint."""
    folder = Path(f"runs/hub{len(list(Path('runs').iterdir()))}")
    run = write_run(folder, recipe)
    checkpoint = write_checkpoint(run, 1)
    with running_hub() as hub, logged_in_to(hub.url):
        with CheckpointUploads(run, recipe.hub, lambda: checkpoint) as uploads:
            uploads.look()
        yield hub


def train_at(url: str, recipe: Recipe, run: str | None = None) -> dict[str, Any]:
    """In the process that imported unsloth first: the tiny model is trained, beside the hub at this address."""
    from unsloth_side import train_tiny

    with logged_in_to(url):
        return train_tiny(recipe, run)


def made_private(recipe: Recipe) -> bool:
    """Whether the repository for checkpoints is made as a private one."""
    with checkpoint_sent(recipe) as hub:
        return next(iter(hub.repos.values())).private


def checkpoints_up(recipe: Recipe) -> bool:
    """Whether a checkpoint lies on the Hub after it was made."""
    with checkpoint_sent(recipe) as hub:
        return any("checkpoints" in repo.branches for repo in hub.repos.values())


def placed(part: str) -> Callable[[Recipe], str]:
    """The repository that a part of an export goes to."""

    def run(recipe: Recipe) -> str:
        files = {"merged/config.json": "", "adapter/adapter_config.json": "", "model.gguf": ""}
        return next(place.repo for place in places(recipe.hub, files, merged=True) if part in place.parts)

    return run


def pushes(recipe: Recipe) -> bool:
    """Whether the pipeline of `toolkit train` ends with a push."""
    from toolkit.cli import verbs
    from toolkit.cli.parsing import Parser

    Path("mine.yaml").write_text(json.dumps(recipe.model_dump(mode="json")), encoding="utf-8")
    asked: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verbs, "run_stages", lambda _, **given: asked.update(given) or 0)
        parser = Parser(prog="toolkit train")
        verbs.VERBS["train"].add_arguments(parser)
        verbs._train(parser.parse(["mine.yaml", "--to", "verify"]))
    return asked["push"]
