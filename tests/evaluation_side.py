"""What the tests of evaluation and `ask` run in the process that imported unsloth first; answers are plain data."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any
from unittest import mock


def evaluated(run: str, checkpoints: Any = ()) -> dict[str, Any]:
    """The evaluation step: its record, and how many batches were drawn."""
    from toolkit.engine import generate
    from toolkit.evaluate import evaluate_run

    drawn: list[int] = []
    batches = generate.batches

    def counted(*given: Any, **settings: Any) -> Any:
        for batch in batches(*given, **settings):
            drawn.append(len(batch.rows))
            yield batch

    with mock.patch("toolkit.engine.generate.batches", counted):
        record = evaluate_run(Path(run), checkpoints=checkpoints)
    return {"record": record, "batches": len(drawn)}


def interrupted_evaluation(run: str, batches: int) -> dict[str, Any]:
    """The evaluation step with Ctrl-C when so many batches are on disk."""
    from toolkit.errors import ToolkitError
    from toolkit.evaluate import evaluate_run
    from toolkit.evaluate.progress import Progress

    add, kept = Progress.add, []

    def counted(progress: Any, *given: Any) -> None:
        add(progress, *given)
        kept.append(given)
        if len(kept) == batches:
            os.kill(os.getpid(), signal.SIGINT)

    with mock.patch.object(Progress, "add", counted):
        try:
            evaluate_run(Path(run))
        except ToolkitError as error:
            return {"raised": type(error).__name__, "exit_code": error.exit_code, "kept": len(kept)}
    return {"raised": None, "kept": len(kept)}


def asked(run: str, questions: list[str], golds: Any = (), samples: int = 0) -> list[dict[str, Any]]:
    """The ask step."""
    from toolkit.ask import ask

    return ask(Path(run), questions, golds=golds, samples=samples)


def trained_until_it_falls(recipe: Any, run: str | None = None) -> dict[str, Any]:
    """The training step, where the third evaluation is found to be one too many."""
    import unsloth_side

    with mock.patch("toolkit.train.heldout.falls", lambda found, *_: len(found) >= 3):
        return unsloth_side.train_tiny(recipe, run, None, "recipe")
