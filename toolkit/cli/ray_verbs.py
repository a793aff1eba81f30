"""`toolkit train --ray`, and the verb that trains variants of a recipe: what they accept and what they call."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit import console
from toolkit.cli.parsing import Parser
from toolkit.cli.pipeline import note_folder
from toolkit.cli.processes import process_words
from toolkit.errors import ToolkitError

if TYPE_CHECKING:
    from toolkit.recipe import Loaded

Arguments = argparse.Namespace
ADDRESSES = "local (a Ray of its own, on this machine), auto (one that runs here), HOST:PORT or ray://HOST:PORT"
_STORAGE = "with --ray: the folder, the same on every machine, that runs/ lies in; default: this folder"


def ray_options(parser: Parser) -> None:
    """What says on which Ray to train."""
    group = parser.add_argument_group("Ray (docs/scaling.md)")
    group.add_argument("--ray", metavar="ADDRESS", help=f"train as a Ray Train job there: {ADDRESSES}")
    group.add_argument("--storage", metavar="FOLDER", help=_STORAGE)
    group.add_argument("--resolved", metavar="FILE", help=argparse.SUPPRESS)


def ray_words(arguments: Arguments) -> list[str]:
    """The options again, for a process that runs the verb."""
    given = {"--ray": arguments.ray, "--storage": arguments.storage}
    return [word for name, value in given.items() if value for word in (name, value)]


def train_on_ray(arguments: Arguments, loaded: Loaded, resume: Path | None) -> int:
    """The exit code of the training, which stands in the job's processes."""
    if arguments.machines is not None or arguments.rank is not None or arguments.address is not None:
        raise ToolkitError("Ray places the processes itself", hint="--ray ADDRESS --processes N")
    processes = arguments.processes or 1
    from toolkit.cluster.session import require_ray
    from toolkit.preflight.shares import require_shares

    require_ray()
    require_shares(loaded.recipe, processes)
    from toolkit.cluster.child import settings
    from toolkit.cluster.train_job import Job, train_on

    job = Job(
        name=loaded.name,
        recipe=loaded.recipe.model_dump(mode="json"),
        folder=str(Path(arguments.storage or ".").absolute()),
        resume=str(resume.absolute()) if resume else None,
        then=arguments.then,
        settings=settings(),
    )
    ended = train_on(arguments.ray, job, processes=processes, go_on=lambda run: _again(run, arguments))
    if isinstance(ended, int):
        return ended
    note_folder(arguments.note_folder, _seen_from_here(ended, arguments))
    return 0


def _again(run: str, arguments: Arguments) -> str:
    to = ["--to", arguments.then] if arguments.then else []
    return shlex.join(["toolkit", "train", "--resume", run, *ray_words(arguments), *process_words(arguments), *to])


def _seen_from_here(run: Path, arguments: Arguments) -> Path:
    """The run as the next stage finds it."""
    if run.is_dir():
        return run.relative_to(Path.cwd()) if run.is_relative_to(Path.cwd()) else run
    if arguments.then and arguments.then != "train":
        hint = f"there: toolkit train --resume {run} --to {arguments.then}"
        raise ToolkitError("the run is trained, and lies where this machine does not see it", where=str(run), hint=hint)
    console.note(f"the run lies on the cluster: {console.untrusted(run)}")
    return run
