"""Gathers what files are compared with: the merged model, the base, what was trained, their texts and answers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.engine.tokenizer import ChatTemplate
from toolkit.rundir import is_whole
from toolkit.verify import reference
from toolkit.verify.peft_merge import Merge, merge_of_peft, merge_of_whole
from toolkit.verify.reference import Text
from toolkit.verify.spoken import Spoken, spoken
from toolkit.verify.stats import Rows

if TYPE_CHECKING:
    from toolkit.recipe import Recipe
    from toolkit.tasks import Grade, Row

SCORED_TOKENS = 480
LONGEST_SCORED = 128
"""Of an answer's tokens so many are compared at most, so that several texts make up the sample."""
ADAPTER_TEXTS = 4

MOST_PROBLEMS, LEAST_PROBLEMS = 64, 16
AFFORDABLE = 64 * 64 * 300_000_000
"""Problems × tokens of an answer × bytes of the model: what 64 answers of 64 tokens cost a model of 300 MB, a quarter of a
minute a file on one core."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Held-out problems, the merged model's greedy answers to them, and their grades: none where the task has no golds."""

    rows: list[Row]
    prompts: list[list[int]]
    answers: list[list[int]]
    grades: list[Grade]
    max_new: int


@dataclass(frozen=True, slots=True)
class Material:
    """All of it, computed once for all files."""

    recipe: Recipe
    config: dict[str, Any]
    spoken: Spoken
    asked: Asked
    texts: list[Text]
    tuned: Rows
    base: Rows
    unmerged: Rows
    """Base and adapter through PEFT, or the whole model as it was trained, for the first texts."""
    loading: dict[str, list[str]]
    merge: Merge
    """The merged weights beside PEFT's merge; of a whole model, beside the trained ones."""

    @property
    def text_config(self) -> dict[str, Any]:
        """Of the language part, where the model sees pictures too."""
        return self.config.get("text_config") or self.config

    @property
    def following(self) -> list[list[int]]:
        """For each text the tokens that the rows of log-probabilities are about."""
        return [list(text.ids[text.start :]) for text in self.texts]


def gather(recipe: Recipe, *, base: Path, merged: Path, adapter: Path, problems: int | None) -> Material:
    """Load merged and base model in turn, and ask them everything. `problems`: None takes as many as are affordable."""
    tokenizer = reference.tokenizer_of(merged)
    rows = recipe.task.rows("heldout")
    language = spoken(tokenizer, merged, base, adapter, recipe, rows[0])
    count = problems or affordable(merged, recipe)
    asked_rows = rows[: min(count, recipe.eval.rows)]
    prompts = list(_prompts(tokenizer, recipe, asked_rows))
    max_new = recipe.grpo.max_completion_length
    with reference.loaded(merged) as (model, loading):
        answers = reference.greedy(model, prompts, stops=language.stops, max_new=max_new)
        texts = _texts(tokenizer, recipe, prompts, answers, rows[count : 2 * count] or asked_rows)
        tuned = reference.log_probabilities(model, texts)
    unmerged, plain, merge = _unmerged(base, merged, adapter, texts)
    grades = _grades(tokenizer, recipe, asked_rows, answers)
    config = json.loads((merged / "config.json").read_text(encoding="utf-8"))
    asked = Asked(asked_rows, prompts, answers, grades, max_new)
    return Material(recipe, config, language, asked, texts, tuned, plain, unmerged, loading, merge)


def _unmerged(base: Path, merged: Path, adapter: Path, texts: list[Text]) -> tuple[Rows, Rows, Merge]:
    """What was trained, not merged, on the first texts; the base on all; what the merge made of it."""
    if is_whole(adapter):
        with reference.loaded(base) as (model, _):
            plain = reference.log_probabilities(model, texts)
        with reference.loaded(adapter) as (model, _):
            trained = reference.log_probabilities(model, texts[:ADAPTER_TEXTS])
        return trained, plain, merge_of_whole(base, adapter, merged)
    with reference.loaded(base, adapter=adapter) as (model, _):
        unmerged = reference.log_probabilities(model, texts[:ADAPTER_TEXTS])
        with model.disable_adapter():
            plain = reference.log_probabilities(model, texts)
        return unmerged, plain, merge_of_peft(model, merged)


def affordable(merged: Path, recipe: Recipe) -> int:
    """How many problems to ask: fewer of a large model with long answers."""
    size = sum(path.stat().st_size for path in merged.glob("*.safetensors"))
    fitting = AFFORDABLE // max(1, size * recipe.grpo.max_completion_length)
    return max(LEAST_PROBLEMS, min(MOST_PROBLEMS, fitting))


def _prompts(tokenizer: Any, recipe: Recipe, rows: Iterable[Row]) -> list[list[int]]:
    template = ChatTemplate(tokenizer)
    return template.token_ids([template.text(recipe.task.messages(row)) for row in rows])


def _grades(tokenizer: Any, recipe: Recipe, rows: list[Row], answers: list[list[int]]) -> list[Grade]:
    if not recipe.task.graded:
        return []
    written = (tokenizer.decode(ids, skip_special_tokens=True) for ids in answers)
    return [recipe.task.grade(text, row) for row, text in zip(rows, written, strict=True)]


def _texts(
    tokenizer: Any, recipe: Recipe, prompts: list[list[int]], answers: list[list[int]], shown: list[Row]
) -> list[Text]:
    """Answers of the model and worked solutions of other problems in turn, until there are enough tokens."""
    said = [
        Text((*prompt, *answer[:LONGEST_SCORED]), len(prompt)) for prompt, answer in zip(prompts, answers, strict=True)
    ]
    worked = list(_worked(tokenizer, recipe, shown))
    texts: list[Text] = []
    for turn in range(max(len(said), len(worked))):
        texts += [*said[turn : turn + 1], *worked[turn : turn + 1]]
        if sum(len(text.ids) - text.start for text in texts) >= SCORED_TOKENS:
            break
    return texts


def _worked(tokenizer: Any, recipe: Recipe, rows: list[Row]) -> Iterable[Text]:
    solved = [(row, solution) for row in rows if (solution := recipe.task.worked(row)) is not None]
    prompts = _prompts(tokenizer, recipe, (row for row, _ in solved))
    for (_, solution), prompt in zip(solved, prompts, strict=True):
        ids = tokenizer(solution, add_special_tokens=False).input_ids[:LONGEST_SCORED]
        yield Text((*prompt, *ids, tokenizer.eos_token_id), len(prompt))
