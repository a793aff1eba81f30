"""Gathers what files are compared with: the merged model, the base, the adapter, their texts and answers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.engine.tokenizer import ChatTemplate
from toolkit.fixed_chats import CHATS, TEXTS
from toolkit.verify import reference
from toolkit.verify.reference import Text
from toolkit.verify.stats import Rows

if TYPE_CHECKING:
    import numpy

    from toolkit.recipe import Recipe
    from toolkit.tasks import Grade, Row

SCORED_TOKENS = 480
LONGEST_ANSWER = 128
ADAPTER_TEXTS = 4


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """A chat as transformers writes and splits it with the merged folder's tokenizer."""

    name: str
    messages: list[dict[str, str]]
    text: str
    ids: list[int]


@dataclass(frozen=True, slots=True)
class Spoken:
    """The language side of the merged folder."""

    chats: list[RenderedChat]
    texts: list[tuple[str, list[int], list[int]]]
    """Text, ids without and with the tokenizer's own special tokens."""
    template: str
    bos: int | None
    eos: int
    stops: list[int]
    special: dict[int, str]
    n_merges: int | None


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
    """Base and adapter through PEFT, for the first texts."""
    loading: dict[str, list[str]]


def gather(recipe: Recipe, *, base: Path, merged: Path, adapter: Path, problems: int) -> Material:
    """Load merged and base model in turn, and ask them everything."""
    tokenizer = reference.tokenizer_of(merged)
    spoken = _spoken(tokenizer, merged)
    rows = recipe.task.rows("heldout")
    asked_rows = rows[:problems]
    shown_rows = rows[problems : 2 * problems] or asked_rows
    max_new = min(recipe.grpo.max_completion_length, LONGEST_ANSWER)
    prompts = [_prompt(tokenizer, recipe, row) for row in asked_rows]
    with reference.loaded(merged) as (model, loading):
        answers = reference.greedy(model, prompts, stops=spoken.stops, max_new=max_new)
        texts = _texts(tokenizer, recipe, prompts, answers, shown_rows)
        tuned = reference.log_probabilities(model, texts)
    with reference.loaded(base, adapter=adapter) as (model, _):
        unmerged = reference.log_probabilities(model, texts[:ADAPTER_TEXTS])
        model.disable_adapters()
        plain = reference.log_probabilities(model, texts)
    written = [tokenizer.decode(ids, skip_special_tokens=True) for ids in answers]
    graded = zip(asked_rows, written, strict=True) if recipe.task.graded else ()
    grades = [recipe.task.grade(text, row) for row, text in graded]
    config = json.loads((merged / "config.json").read_text(encoding="utf-8"))
    asked = Asked(asked_rows, prompts, answers, grades, max_new)
    return Material(recipe, config, spoken, asked, texts, tuned, plain, unmerged, loading)


def _prompt(tokenizer: Any, recipe: Recipe, row: Row) -> list[int]:
    return _chat_ids(tokenizer, ChatTemplate(tokenizer).chat(recipe.task.messages(row)))


def _chat_ids(tokenizer: Any, messages: list[dict[str, str]]) -> list[int]:
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)


def _texts(
    tokenizer: Any, recipe: Recipe, prompts: list[list[int]], answers: list[list[int]], shown: list[Row]
) -> list[Text]:
    """Answers of the model and worked solutions of other problems in turn, until there are enough tokens."""
    spoken = [Text((*prompt, *answer), len(prompt)) for prompt, answer in zip(prompts, answers, strict=True)]
    worked = []
    for row in shown:
        solution = recipe.task.worked(row)
        if solution is not None:
            prompt = _prompt(tokenizer, recipe, row)
            ids = tokenizer(solution, add_special_tokens=False).input_ids[:LONGEST_ANSWER]
            worked.append(Text((*prompt, *ids, tokenizer.eos_token_id), len(prompt)))
    texts: list[Text] = []
    for turn in range(max(len(spoken), len(worked))):
        texts += [*spoken[turn : turn + 1], *worked[turn : turn + 1]]
        if sum(len(text.ids) - text.start for text in texts) >= SCORED_TOKENS:
            break
    return texts


def _spoken(tokenizer: Any, merged: Path) -> Spoken:
    chats = []
    for name, messages in CHATS.items():
        try:
            text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        except Exception:  # a template refuses a role in its own words; then no chat of this form exists
            continue
        chats.append(RenderedChat(name, messages, text, _chat_ids(tokenizer, messages)))
    texts = [(text, tokenizer(text, add_special_tokens=False).input_ids, tokenizer(text).input_ids) for text in TEXTS]
    generation = json.loads((merged / "generation_config.json").read_text(encoding="utf-8"))
    eos = generation["eos_token_id"]
    special = {number: token.content for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    return Spoken(
        chats, texts, tokenizer.chat_template, tokenizer.bos_token_id, tokenizer.eos_token_id,
        eos if isinstance(eos, list) else [eos], special, _n_merges(merged),
    )  # fmt: skip


def _n_merges(merged: Path) -> int | None:
    path = merged / "tokenizer.json"
    if not path.is_file():
        return None
    model = json.loads(path.read_text(encoding="utf-8")).get("model", {})
    return len(model.get("merges", [])) if model.get("type") == "BPE" else None


def sample_weights(
    base: Path, merged: Path, changed: list[str], count: int = 8
) -> dict[str, tuple[numpy.ndarray, numpy.ndarray]]:
    """Base and merged values of a few changed matrices, spread over the model, as float32."""
    from toolkit.verify.weights import read

    matrices = [name for name in changed if name.endswith("_proj.weight")] or changed
    step = max(1, len(matrices) // count)
    names = matrices[::step][:count]
    at_base, at_merged = read(base, names), read(merged, names)
    return {name: (at_base[name], at_merged[name]) for name in names}
