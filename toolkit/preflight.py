"""What can be known before the first expensive minute: a recipe's data, rewards and plan. Loads no model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from toolkit import console
from toolkit.errors import DataError, EngineError, ToolkitError

if TYPE_CHECKING:
    from toolkit.engine.tokenizer import ChatTemplate
    from toolkit.recipe import Loaded, Recipe
    from toolkit.rewards import RewardBase
    from toolkit.rewards.lint import LintReport
    from toolkit.tasks.base import Row

SCHEMA_VERSION = 1
Status = Literal["ok", "warning", "failed"]
_COLOURS = {"ok": "green", "warning": "yellow", "failed": "red"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: its value, whether that is well, and, where it is not, the way out."""

    part: str
    what: str
    value: Any
    status: Status = "ok"
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """All findings about one recipe."""

    recipe: str
    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """Whether training may start. Warnings do not stop it."""
        return all(finding.status != "failed" for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        """The report for a program."""
        findings = [asdict(finding) for finding in self.findings]
        return {
            "schema_version": SCHEMA_VERSION,
            "recipe": self.recipe,
            "passed": self.passed,
            "findings": findings,
        }


def check(loaded: Loaded) -> Report:
    """Look at everything. Data that cannot be read is a finding, and what needs it is left out."""
    recipe = loaded.recipe
    written = sum(source != "default" for source in loaded.provenance.values())
    findings = [
        Finding("recipe", "keys set", written),
        Finding("recipe", "keys left at their default", len(loaded.values) - written),
        *_tracker(recipe),
    ]
    try:
        train, heldout = recipe.task.rows("train"), recipe.task.rows("heldout")
    except ToolkitError as error:
        findings.append(Finding("data", error.where or "rows", error.message, "failed", error.hint))
        return Report(loaded.name, tuple(findings))
    findings += _data(recipe, train, heldout)
    findings += _ready(recipe, train)
    findings += _rewards(lint_rewards(recipe, [*train, *heldout]), graded=recipe.task.graded)
    findings += _plan(recipe, train, heldout)
    return Report(loaded.name, tuple(findings))


def show(report: Report) -> None:
    """The report as a table on the terminal, and one line that says what it comes to."""
    rows = [
        (
            finding.part,
            finding.what,
            console.untrusted(finding.value),
            f"[{_COLOURS[finding.status]}]{finding.status}[/]",
            console.untrusted(finding.hint or ""),
        )
        for finding in report.findings
    ]
    console.table(console.untrusted(report.recipe), ("part", "what", "found", "", "way out"), rows)
    failed = sum(finding.status == "failed" for finding in report.findings)
    console.say("[green]ready to train[/]" if report.passed else f"[red]{failed} of these stop a training[/]")


def _data(recipe: Recipe, train: Sequence[Row], heldout: Sequence[Row]) -> Iterator[Finding]:
    need = recipe.grpo.prompts_per_step
    enough = len(train) >= need
    yield Finding(
        "data",
        "training rows",
        len(train),
        "ok" if enough else "failed",
        None if enough else f"one step needs {need} rows (grpo.prompts_per_step)",
    )
    if enough:
        yield from _lengths(recipe, train)
    yield from _heldout(recipe, heldout)
    for notice in dict.fromkeys([*recipe.task.notices("train"), *recipe.task.notices("heldout")]):
        yield Finding("data", "notice", notice)
    yield from _overlap(recipe, train, heldout)
    if recipe.warmup is not None:
        worked = sum(recipe.task.worked(row) is not None for row in train)
        least, all_of_them = recipe.warmup.batch_size, recipe.warmup.rows
        status: Status = "failed" if worked < least else "warning" if worked < all_of_them else "ok"
        hint = f"the warm-up reads {all_of_them}, {least} a step; without worked solutions set warmup: null"
        yield Finding("data", "rows with a worked solution", worked, status, None if status == "ok" else hint)


def _lengths(recipe: Recipe, train: Sequence[Row]) -> Iterator[Finding]:
    """Rows whose prompt is too long after the template, and whether those that stay fill a step."""
    limit, need = recipe.grpo.max_prompt_length, recipe.grpo.prompts_per_step
    template, missing = chat_template(recipe)
    if template is None:
        from toolkit.engine.tokenizer import NO_CHAT_TEMPLATE

        stops = NO_CHAT_TEMPLATE in (missing or "")
        yield Finding("data", "tokens of the prompts", "not counted", "failed" if stops else "warning", missing)
        return
    try:
        long = sum(count > limit for count in prompt_tokens(recipe, template, train))
    except ToolkitError as error:
        yield Finding("data", error.where or "rows", error.message, "failed", error.hint)
        return
    status: Status = "failed" if len(train) - long < need else "warning" if long else "ok"
    hint = f"{len(train) - long} stay; one step needs {need} (grpo.prompts_per_step)" if long else None
    yield Finding("data", f"rows left out: over {limit} tokens (grpo.max_prompt_length)", long, status, hint)


def chat_template(recipe: Recipe) -> tuple[ChatTemplate | None, str | None]:
    """The recipe's real template; or why there is none here, with which the rows can still be shown."""
    from toolkit.engine.tokenizer import NO_CHAT_TEMPLATE, ChatTemplate, load_tokenizer

    try:
        tokenizer = load_tokenizer(recipe.model)
        if not tokenizer.chat_template:
            raise EngineError(NO_CHAT_TEMPLATE, where=recipe.model.source)
    except ToolkitError as error:
        return None, str(error)
    return ChatTemplate(tokenizer), None


def prompt_tokens(recipe: Recipe, template: ChatTemplate, rows: Sequence[Row]) -> list[int]:
    """Tokens of each row's prompt after the template. DataError names the row that the template refuses."""
    return [len(ids) for ids in template.token_ids([prompt_text(recipe, template, row) for row in rows])]


def prompt_text(recipe: Recipe, template: ChatTemplate, row: Row) -> str:
    """A row's prompt as the model reads it."""
    try:
        return template.text(recipe.task.messages(row))
    except EngineError as error:
        hint = "many templates want user and assistant in turn"
        raise DataError(error.message, where=row.id, hint=hint) from error


def _heldout(recipe: Recipe, heldout: Sequence[Row]) -> Iterator[Finding]:
    asked = recipe.eval.rows
    status: Status = "failed" if not heldout else "warning" if len(heldout) < asked else "ok"
    hint = None if status == "ok" else f"eval.rows asks for {asked}"
    yield Finding("data", "held-out rows", len(heldout), status, hint)


def _overlap(recipe: Recipe, train: Sequence[Row], heldout: Sequence[Row]) -> Iterator[Finding]:
    """Questions in both halves, compared as they are and again without case and spacing."""
    from toolkit.tasks.halves import overlap

    found = overlap(train, heldout)
    yield Finding(
        "data",
        "training rows that are also held out",
        found.exact,
        "failed" if found.exact else "ok",
        "the evaluation would measure memory: separate the files" if found.exact else None,
    )
    yield Finding("data", "… but for case and spacing", found.folded, "warning" if found.folded else "ok")


def _ready(recipe: Recipe, rows: Sequence[Row]) -> Iterator[Finding]:
    """What a reward that the lint leaves out lacks on this machine: a server that answers, room for its question."""
    for reward in bound_rewards(recipe):
        if not reward.asks_model:
            continue
        try:
            reward.ready(rows)
        except ToolkitError as error:
            yield Finding("rewards", reward.name, error.message, "failed", error.hint)


def _tracker(recipe: Recipe) -> Iterator[Finding]:
    """Whether the tracker that the recipe names is installed."""
    from toolkit.engine.trackers import require_tracker

    if recipe.report_to != "none":
        try:
            require_tracker(recipe.report_to)
            yield Finding("recipe", "report_to", recipe.report_to)
        except ToolkitError as error:
            yield Finding("recipe", "report_to", error.message, "failed", error.hint)


def _rewards(report: LintReport, *, graded: bool) -> Iterator[Finding]:
    """What the reward lint says. The faults of a published function that was asked for are warnings."""
    yield Finding("rewards", "rows tried", report.rows)
    totals = f"{report.lowest_total:g} to {report.highest_total:g}" if report.tried else "not known before"
    yield Finding("rewards", "lowest and highest total", totals)
    if graded:
        yield Finding("rewards", "share of the total that is for the right answer", f"{report.correctness_share:.0%}")
    for name in report.not_tried:
        yield Finding("rewards", name, "not tried: it asks a model")
    for problem in report.problems:
        stops = problem.level == "error" and not problem.legacy
        hint = "the reward was asked to be as published (legacy)" if problem.legacy else "toolkit rewards lint"
        yield Finding("rewards", problem.reward or "all", problem.message, "failed" if stops else "warning", hint)


def bound_rewards(recipe: Recipe) -> list[RewardBase]:
    """The recipe's rewards, able to count tokens and to ask the base model, which is loaded when first needed."""
    from toolkit.engine.surroundings import surroundings

    around = surroundings(recipe)
    return [reward.within(around) for reward in recipe.rewards]


def lint_rewards(recipe: Recipe, rows: Sequence[Row]) -> LintReport:
    """The reward lint over these rows."""
    from toolkit.rewards.lint import lint

    return lint(bound_rewards(recipe), rows, recipe.task)


def require_sound_rewards(recipe: Recipe, rows: Sequence[Row]) -> None:
    """The start of a training: a reward that could not work, or pays what it must not, is an error now, not after hours."""
    for reward in bound_rewards(recipe):
        reward.ready(rows)
    report = lint_rewards(recipe, rows)
    for problem in report.problems:
        if problem.level == "error" and not problem.legacy:
            raise ToolkitError(
                f"rewards: {problem.message}", hint="toolkit rewards lint RECIPE shows all that was tried"
            )
        console.warn(f"rewards: {problem.message}")


def show_lint(report: LintReport) -> None:
    """What each reward pays for texts that are no answer, then the problems."""
    names = list(report.probes[0].pays) if report.probes else []
    rows = [(probe.name, *map(_rounded, (*probe.pays.values(), probe.total))) for probe in report.probes]
    console.table("what is paid for texts that are no answer", ("text", *names, "total"), rows)
    console.say(f"{report.rows} rows tried; totals from {report.lowest_total:g} to {report.highest_total:g}")
    console.say(f"{report.correctness_share:.0%} of the highest total is for the right answer")
    for name in report.not_tried:
        console.say(f"not tried, since it asks a model: {name}")
    for problem in report.problems:
        colour = "red" if problem.level == "error" else "yellow"
        console.say(f"[{colour}]{problem.level}[/]: {console.untrusted(problem.message)}")
    count = len(report.errors)
    console.say("[green]no errors[/]" if report.ok else f"[red]{count} error{'s' * (count > 1)}[/]")


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _plan(recipe: Recipe, train: Sequence[Row], heldout: Sequence[Row]) -> Iterator[Finding]:
    """The arithmetic of the run: what one step is, and how much there will be."""
    from toolkit.recipe.plan import plan

    grpo = recipe.grpo
    if recipe.warmup is not None:
        yield Finding("plan", "warm-up, worked solutions", recipe.warmup.rows)
    yield Finding("plan", "prompts per step", grpo.prompts_per_step)
    yield Finding("plan", "completions per prompt (group size)", grpo.num_generations)
    yield Finding("plan", "completions per step", grpo.completions_per_step)
    yield Finding("plan", "steps", grpo.max_steps)
    if len(train) >= grpo.prompts_per_step:
        figures = plan(recipe, len(train))
        yield Finding("plan", "steps per epoch", figures.steps_per_epoch)
        yield Finding("plan", "epochs", figures.epochs)
        yield Finding("plan", "completions in all", figures.generations * grpo.completions_per_step)
        if grpo.resample_rounds:
            yield Finding("plan", "… at most, where every group is drawn again", figures.completions_at_most)
        yield Finding("plan", "completion tokens in all, at most", figures.tokens_at_most)
    models = 2 if recipe.warmup is None else 3
    answers = min(recipe.eval.rows, len(heldout)) * (recipe.eval.samples + recipe.eval.greedy) * models
    yield Finding("plan", "answers in the evaluation", answers)
