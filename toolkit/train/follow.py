"""What every process but the first does in a training of several: it computes its share, and writes and shows nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit import console
from toolkit.errors import ToolkitError
from toolkit.parallel.collective import LostProcess, end, lost_processes
from toolkit.train.rows import worked_examples
from toolkit.train.signals import stop_on_signals
from toolkit.train.stages import join, reinforce, same_rows, warm_up

if TYPE_CHECKING:
    from toolkit.engine.load import Policy
    from toolkit.recipe import Loaded, Recipe
    from toolkit.tasks import Row


def follow(loaded: Loaded) -> Path:
    """Train along. Returns the run's folder, also where the first process was asked to stop: that one says so.

    Where that one is lost, whoever started the processes says so.
    """
    from toolkit.engine.load import add_adapter

    recipe = loaded.recipe
    with _quietly_lost(), console.silenced(), stop_on_signals() as request:
        run = join(recipe, None)
        rows = recipe.task.rows("train")
        policy, kept = _loaded(recipe, rows)
        add_adapter(policy, recipe)
        warm = recipe.warmup is None or warm_up(run, recipe, policy, worked_examples(recipe, rows), request)
        if warm is not False:
            reinforce(run, recipe, policy, kept, request)
    end()
    return run.path


def _loaded(recipe: Recipe, rows: Sequence[Row]) -> tuple[Policy, list[Row]]:
    """The model, and the rows that the first process kept. An error that it meets as well is left to it to say."""
    from toolkit.engine.load import load_policy
    from toolkit.engine.sampler import prepare

    failed, policy = None, None
    try:
        policy = load_policy(recipe)
        prepare(policy)
    except ToolkitError as error:
        failed = error
    kept = same_rows([], rows)
    if failed or policy is None:
        raise failed or RuntimeError("no model was loaded")
    return policy, kept


@contextmanager
def _quietly_lost() -> Iterator[None]:
    try:
        with lost_processes(""):
            yield
    except LostProcess as lost:
        sys.exit(lost.exit_code)
