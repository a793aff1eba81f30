"""One variant of a sweep, in a Ray worker: trained, or trained on, and evaluated, each by a process of the toolkit."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.cluster.child import RUN_LINE, environment, run_child
from toolkit.cluster.post import Message
from toolkit.cluster.shared import require_shared
from toolkit.errors import Stopped, ToolkitError


@dataclass(frozen=True, slots=True)
class Trial:
    """What is its own of a variant. `run`: the one that has begun already, and whether it is `trained`."""

    number: int
    name: str
    recipe: Mapping[str, Any]
    run: str | None = None
    trained: bool = False


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What is the same for all of them."""

    folder: str
    scratch: str
    settings: Mapping[str, str]
    threads: int | None
    to: str
    processes: int


def run_trial(config: Mapping[str, Any], *, trials: Sequence[Trial], around: Surroundings, post: Any) -> dict[str, int]:
    """Ray Tune's trainable. A variant that fails ends well for Tune: the others go on, and the post knows what happened."""
    import ray  # type: ignore[import-not-found]

    trial = trials[config["trial"]]
    if ray.get(post.stopping.remote()):
        return {"code": 0}
    post.put.remote(Message("begun", trial.number))
    try:
        require_shared(around.scratch)
        end = Message("end", trial.number, code=_Stages(trial, around, post).run())
    except ToolkitError as error:
        end = Message("end", trial.number, code=error.exit_code, error=error)
    ray.get(post.put.remote(end))
    return {"code": end.code}


class _Stages:
    def __init__(self, trial: Trial, around: Surroundings, post: Any) -> None:
        self._trial, self._around, self._post = trial, around, post
        self._run = trial.run
        self._env = environment(around.settings, around.threads)

    def run(self) -> int:
        """The exit code of the stage that was the last one."""
        import ray  # type: ignore[import-not-found]

        code = 0 if self._trial.trained else self._train()
        if code or self._around.to == "train":
            return code
        if ray.get(self._post.stopping.remote()):
            return Stopped.exit_code
        self._post.put.remote(Message("out", self._trial.number, "evaluating"))
        return self._call(["eval", str(self._run)], shown=False)

    def _train(self) -> int:
        many = ["--processes", str(self._around.processes)] if self._around.processes > 1 else []
        end = ["--then", self._around.to, *many]
        if self._run:
            return self._call(["train", "--resume", self._run, *end])
        with tempfile.TemporaryDirectory(prefix="toolkit-") as scratch:
            file = Path(scratch, self._trial.name, "recipe.json")
            file.parent.mkdir()
            file.write_text(json.dumps(self._trial.recipe), encoding="utf-8")
            return self._call(["train", "--resolved", str(file), *end])

    def _call(self, words: Sequence[str], *, shown: bool = True) -> int:
        sender, folder = self._trial.number, self._around.folder
        return run_child(
            words, sender=sender, post=self._post, folder=folder, env=self._env, shown=shown, heard=self._hear
        )

    def _hear(self, line: str) -> None:
        if self._run is None and line.startswith(RUN_LINE):
            self._run = line.removeprefix(RUN_LINE)
            self._post.put.remote(Message("run", self._trial.number, self._run))
