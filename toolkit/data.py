"""The data step: a recipe's rows as the model will read them, their lengths, and what is left out. It loads no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from toolkit import console
from toolkit.preflight import chat_template, prompt_text, prompt_tokens
from toolkit.tasks.halves import Overlap, overlap, repeats

if TYPE_CHECKING:
    from toolkit.engine.tokenizer import ChatTemplate
    from toolkit.recipe import Loaded, Recipe
    from toolkit.tasks import Row

SCHEMA_VERSION = 1
BINS = 10
_BAR = 40
_NAMED = 5


@dataclass(frozen=True, slots=True)
class Shown:
    """One row as it will be asked. Text and tokens are None where there is no tokenizer to ask."""

    id: str
    messages: list[dict[str, str]]
    text: str | None
    tokens: int | None
    gold: str | None
    worked: str | None
    columns: list[str]
    """Names under which rewards find the data's own columns."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long the prompts of one half are, in tokens after the template."""

    rows: int
    min: int
    median: float
    p95: int
    max: int
    histogram: list[tuple[int, int, int]]
    """From, to (both included), rows."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Rows that training will not see, and why; the ids of the first few."""

    why: str
    rows: int
    ids: list[str]


@dataclass(frozen=True, slots=True)
class DataReport:
    """What a recipe's data are. Lengths and what depends on them are None without a tokenizer."""

    recipe: str
    task: str
    graded: bool
    train_rows: int
    heldout_rows: int
    shown: list[Shown]
    no_tokens: str | None
    """Why no tokens could be counted."""
    system_role: bool | None
    """Whether the template has one; without it a system text stands in the first user turn."""
    limit: int
    lengths: dict[str, Lengths] | None
    left_out: list[LeftOut] | None
    kept: int | None
    needed: int
    """Rows that one step needs."""
    overlap: Overlap
    repeats: int
    notices: list[str]

    @property
    def enough(self) -> bool:
        """Whether the rows that are kept, as far as is known, fill one step."""
        return (self.train_rows if self.kept is None else self.kept) >= self.needed

    def as_json(self) -> dict[str, Any]:
        """The report for a program."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self), "enough": self.enough}


def look(loaded: Loaded, *, rows: int) -> DataReport:
    """Read both halves, render the first `rows` training rows, measure all. DataError where the data cannot be read."""
    recipe, task = loaded.recipe, loaded.recipe.task
    train, heldout = task.rows("train"), task.rows("heldout")
    template, missing = chat_template(recipe)
    halves = {"train": train, "heldout": heldout}
    lengths = {half: prompt_tokens(recipe, template, of) if template else [] for half, of in halves.items()}
    left_out = None if template is None else _too_long(recipe, train, lengths["train"])
    return DataReport(
        recipe=loaded.name,
        task=getattr(task, "name", ""),
        graded=task.graded,
        train_rows=len(train),
        heldout_rows=len(heldout),
        shown=[_shown(recipe, template, row) for row in train[:rows]],
        no_tokens=missing,
        system_role=template.takes_system if template else None,
        limit=recipe.grpo.max_prompt_length,
        lengths={half: _lengths(counts) for half, counts in lengths.items() if counts} if template else None,
        left_out=left_out,
        kept=None if left_out is None else len(train) - sum(part.rows for part in left_out),
        needed=recipe.grpo.prompts_per_step,
        overlap=overlap(train, heldout),
        repeats=repeats(train),
        notices=list(dict.fromkeys([*task.notices("train"), *task.notices("heldout")])),
    )


def _shown(recipe: Recipe, template: ChatTemplate | None, row: Row) -> Shown:
    messages = recipe.task.messages(row)
    text = prompt_text(recipe, template, row) if template else None
    tokens = len(template.token_ids([text])[0]) if template and text is not None else None
    gold = row.gold if recipe.task.graded else None
    return Shown(row.id, messages, text, tokens, gold, recipe.task.worked(row), list(row.columns))


def _lengths(counts: Sequence[int]) -> Lengths:
    ordered = sorted(counts)
    low, high = ordered[0], ordered[-1]
    width = max(1, -(-(high - low + 1) // BINS))
    edges = range(low, high + 1, width)
    filled = [sum(edge <= count < edge + width for count in ordered) for edge in edges]
    histogram = [(edge, edge + width - 1, rows) for edge, rows in zip(edges, filled, strict=True)]
    # The nearest rank: the shortest length that 95 % of the rows do not exceed.
    p95 = ordered[-(-95 * len(ordered) // 100) - 1]
    return Lengths(len(ordered), low, median(ordered), p95, high, histogram)


def _too_long(recipe: Recipe, rows: Sequence[Row], counts: Sequence[int]) -> list[LeftOut]:
    limit = recipe.grpo.max_prompt_length
    long = [row.id for row, count in zip(rows, counts, strict=True) if count > limit]
    return [LeftOut(f"longer than {limit} tokens (grpo.max_prompt_length)", len(long), long[:_NAMED])] if long else []


def show(report: DataReport) -> None:
    """The report on the terminal."""
    for shown in report.shown:
        _show_row(shown)
    if report.no_tokens:
        console.warn(f"no tokens are counted: {console.untrusted(report.no_tokens)}")
    if report.system_role is False:
        console.say("the model's template has no system role: a system text stands in the first user turn")
    _show_lengths(report)
    console.say(f"rows: {report.train_rows} to train on, {report.heldout_rows} held out; golds: {_golds(report)}")
    for part in report.left_out or []:
        ids = console.untrusted(", ".join(part.ids)) + (", …" if part.rows > len(part.ids) else "")
        console.say(f"left out: {part.rows} training rows, {part.why}: {ids}")
    for notice in report.notices:
        console.say(f"note: {console.untrusted(notice)}")
    _show_doubles(report)
    if not report.enough:
        kept = report.train_rows if report.kept is None else report.kept
        console.say(f"[red]one step needs {report.needed} rows (grpo.prompts_per_step), and there are {kept}[/]")


def _show_row(shown: Shown) -> None:
    facts = [] if shown.tokens is None else [f"{shown.tokens} tokens"]
    facts += [] if shown.gold is None else [f"gold {console.untrusted(shown.gold)}"]
    facts += [f"columns {console.untrusted(', '.join(shown.columns))}"] if shown.columns else []
    console.say(f"[bold]{console.untrusted(shown.id)}[/]  {', '.join(facts)}")
    written = "\n".join(f"{message['role']}: {message['content']}" for message in shown.messages)
    console.say(console.untrusted(written if shown.text is None else shown.text))
    if shown.worked is not None:
        console.say(f"[bold]worked solution[/]\n{console.untrusted(shown.worked)}")
    console.say()


def _show_lengths(report: DataReport) -> None:
    if not report.lengths:
        return
    rows = [(half, of.rows, of.min, of.median, of.p95, of.max) for half, of in report.lengths.items()]
    columns = ("half", "rows", "min", "median", "95 %", "max")
    console.table(f"tokens of a prompt (limit {report.limit})", columns, rows)
    if "train" in report.lengths:
        bins = report.lengths["train"].histogram
        most = max(rows for _, _, rows in bins)
        console.table("", ("tokens", "rows", ""), [(f"{a}–{b}", n, "█" * (-(-n * _BAR // most))) for a, b, n in bins])


def _show_doubles(report: DataReport) -> None:
    exact, near = report.overlap.exact, report.overlap.folded
    if exact or near:
        console.warn(f"training rows that are also held out: {exact}, and {near} but for case and spacing")
    else:
        console.say("no training row is also held out")
    if report.repeats:
        console.say(f"{report.repeats} training rows ask what an earlier one asks")


def _golds(report: DataReport) -> str:
    return "yes" if report.graded else "none, so rewards judge without"
