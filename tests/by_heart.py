"""The evaluation step with a model that answers by heart: no weights, every answer known beforehand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from toolkit.atomic import write_json
from toolkit.engine.completions import Completion, Drawn, Sampling
from toolkit.evaluate import evaluate_run
from toolkit.prompts import format_completion
from toolkit.recipe import Recipe
from toolkit.rundir import RunDir

RIGHT = {"None": 0, "warmup": 1, "tuned": 2}
"""How many of its samples of each row a model gets right. Its greedy answer is as its first sample."""


class ByHeart:
    """A policy without a model: prompts are the row's number, answers are looked up."""

    def __init__(self, recipe: Recipe) -> None:
        self.rows = recipe.task.rows("heldout")
        self.stop_token_ids = (0,)
        self.model = None
        self.setting = SimpleNamespace(generator="transformers")

    def prompt_ids(self, messages: list[dict[str, str]]) -> list[int]:
        return [next(at for at, row in enumerate(self.rows) if row.question in messages[-1]["content"])]

    def text(self, token_ids: list[int]) -> str:
        row, right = self.rows[token_ids[0]], token_ids[1]
        return format_completion("thought", row.gold if right else "no idea")


class Asked:
    """What was asked to be generated, call by call."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def draw_batches(
        self, _policy: Any, adapter: str | None, prompts: Any, sampling: Sampling, *, done: Any, **settings: Any
    ) -> Iterator[Drawn]:
        assert not done
        self.calls.append({"adapter": adapter, "prompts": prompts, "sampling": sampling, **settings})
        right, first = RIGHT[str(adapter)], -1 if settings["greedy_too"] else 0
        rows = [
            Completion(index, [prompt[0], int(max(sample, 0) < right)], [0.0, 0.0], truncated=False)
            for index, prompt in enumerate(prompts)
            for sample in range(first, settings["samples"])
        ]
        yield Drawn(rows)


def evaluate(
    recipe: Recipe, folder: Path, adapters: Sequence[str] = ("warmup", "adapter")
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Make `folder` a run of this recipe and evaluate it: the record, and what the models were asked, call by call."""
    asked, run = Asked(), RunDir(folder)
    for name in adapters:
        (run.path / name).mkdir(parents=True)
    write_json(run.recipe, recipe.model_dump(mode="json"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("toolkit.engine.load.load_policy", ByHeart)
        patch.setattr("toolkit.engine.load.load_adapter", lambda *_: None)
        patch.setattr("toolkit.engine.sampler.draw_batches", asked.draw_batches)
        return evaluate_run(run.path), asked.calls
