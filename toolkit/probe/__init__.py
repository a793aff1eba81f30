"""What a recipe would do, from a few prompts and one optimiser step with its base model. It keeps nothing on disk.

Everything goes the way of training: its sampling, its rewards, its trainer. After a warm-up the model is another one, and until it
was made nobody knows that one: the forecast is for the base.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit import console
from toolkit.errors import DataError, ToolkitError
from toolkit.estimate.pace import Range
from toolkit.preflight.timing import clock
from toolkit.probe.forecast import Forecast, Measured, forecast, grouped

if TYPE_CHECKING:
    from toolkit.engine.load import Policy
    from toolkit.recipe import Loaded, Recipe
    from toolkit.tasks import Row

Entry = dict[str, Any]
BUSY = 0.5
"""Processes of others a thread from which on measured times are not this machine's own."""


def prepare(recipe: Recipe) -> None:
    """Before anything loads transformers, which a check of rewards may do: Unsloth rewrites it when it is imported."""
    from toolkit.engine.load import import_unsloth

    with redirect_stdout(sys.stderr):  # it greets there, where only results belong
        import_unsloth(standby=recipe.model.standby)


def probe(loaded: Loaded, prompts: int) -> Forecast:
    """Sample so many training prompts, a group of completions each, and make one optimiser step."""
    with redirect_stdout(sys.stderr):
        return _probe(loaded.name, loaded.recipe, prompts)


def _probe(name: str, recipe: Recipe, prompts: int) -> Forecast:
    rows, heldout = recipe.task.rows("train"), recipe.task.rows("heldout")
    from toolkit.engine.load import load_policy
    from toolkit.engine.machine import peak_memory_gib

    load = os.getloadavg()[0]
    policy = load_policy(recipe)
    chosen = _fitting(policy, recipe, rows, max(prompts, recipe.grpo.prompts_per_step))
    entries, sampling_s = _sampled(policy, recipe, chosen[:prompts])
    loaded_gib = peak_memory_gib(policy.machine)
    warmup_s, step_s, table = _one_step(policy, recipe, chosen[: recipe.grpo.prompts_per_step])
    longest_prompt = max(len(policy.prompt_ids(recipe.task.messages(row))) for row in chosen)
    measured = Measured(
        sampling_s=sampling_s,
        sampled_tokens=sum(entry["tokens"] for entry in entries),
        step_s=step_s,
        warmup_step_s=warmup_s,
        loaded_gib=loaded_gib,
        peak_gib=peak_memory_gib(policy.machine),
        step_tokens=longest_prompt + max(entry["tokens"] for entry in table),
        other_work=load / policy.machine.threads,
    )
    return forecast(name, recipe, entries, measured, heldout=len(heldout), files_s=_files_seconds(recipe))


def _files_seconds(recipe: Recipe) -> dict[str, Range]:
    """Export and verification; nothing where the shape of the model is not to be had."""
    from toolkit.estimate import shape_of
    from toolkit.estimate.disk import export_needs
    from toolkit.estimate.pace import files_seconds

    try:
        return files_seconds(sum(need.size for need in export_needs(recipe, shape_of(recipe.model))))
    except ToolkitError:
        return {}


def _fitting(policy: Policy, recipe: Recipe, rows: Sequence[Row], wanted: int) -> list[Row]:
    """Rows whose prompts are short enough, in an order that depends on the recipe's seed alone; fewer where there are fewer."""
    found = []
    for row in random.Random(recipe.seed).sample(rows, len(rows)):
        if len(policy.prompt_ids(recipe.task.messages(row))) <= recipe.grpo.max_prompt_length:
            found.append(row)
        if len(found) == wanted:
            break
    if len(found) < recipe.grpo.prompts_per_step:
        hint = "raise grpo.max_prompt_length, or lower grpo.prompts_per_step"
        raise DataError(f"one step needs {recipe.grpo.prompts_per_step} rows, and {len(found)} fit", hint=hint)
    return found


def _sampled(policy: Policy, recipe: Recipe, rows: Sequence[Row]) -> tuple[list[Entry], float]:
    """A group of completions for each row with what the rewards say of them, and how long the sampling took."""
    from toolkit.engine.arguments import training_sampling
    from toolkit.engine.sampler import draw

    size = recipe.grpo.num_generations
    prompts = [policy.prompt_ids(recipe.task.messages(row)) for row in rows]
    begin = time.monotonic()
    drawn = draw(
        policy, None, prompts, training_sampling(recipe, policy.stop_token_ids), samples=size, seed=recipe.seed
    )
    seconds = time.monotonic() - begin
    repeated = [row for row in rows for _ in range(size)]
    return _scored(policy, recipe, repeated, [completion.token_ids for completion in drawn]), seconds


def _scored(policy: Policy, recipe: Recipe, rows: Sequence[Row], ids: Sequence[list[int]]) -> list[Entry]:
    """Through the functions that TRL calls in training, so that totals are those of training."""
    from toolkit.engine.rollout import ROW_COLUMN, RewardRecorder, has_spread
    from toolkit.engine.surroundings import surroundings

    around = surroundings(recipe, policy)
    rewards = [reward.within(around) for reward in recipe.rewards]
    recorder = RewardRecorder(rewards, {row.id: row for row in rows}, stop_token_ids=policy.stop_token_ids)
    texts = [policy.text(tokens) for tokens in ids]
    completions = [[{"role": "assistant", "content": text}] for text in texts]
    for function in recorder.functions:
        function(completions=completions, completion_ids=list(ids), **{ROW_COLUMN: [row.id for row in rows]})
    entries = recorder.take()
    for entry, text, row in zip(entries, texts, rows, strict=True):
        entry |= _grades(recipe, text, row)
    for group in grouped(entries).values():
        dead = not has_spread(entry["reward"] for entry in group)
        for entry in group:
            entry["dead"] = dead  # type: ignore[index]
    return entries


def _grades(recipe: Recipe, text: str, row: Row) -> dict[str, bool | None]:
    if not recipe.task.graded:
        return {"right": None, "well_formed": None}
    grade = recipe.task.grade(text, row)
    return {"right": grade.strict, "well_formed": grade.well_formed}


def _one_step(policy: Policy, recipe: Recipe, rows: Sequence[Row]) -> tuple[float, float, list[Entry]]:
    """Seconds of one warm-up step (0 without one), seconds of one GRPO step, its completions. A fresh adapter learns and is lost."""
    from toolkit.engine.load import add_adapter
    from toolkit.engine.trainers import run_grpo

    short = with_spread(recipe.model_copy(update={"grpo": recipe.grpo.model_copy(update={"max_steps": 1})}))
    seen: list[tuple[float | None, list[Entry]]] = []

    def on_step(_step: int, logs: dict[str, Any], table: list[Entry]) -> bool:
        seen.append((logs.get("step_time"), table))
        return False

    add_adapter(policy, recipe)
    with tempfile.TemporaryDirectory(prefix="toolkit-probe-") as folder:
        warmup_s = _warmup_step(policy, recipe, rows, Path(folder) / "warmup")
        begin = time.monotonic()
        run_grpo(policy, short, rows, Path(folder) / "grpo", on_step, resume=None)
        whole_s = time.monotonic() - begin
    step_s, table = seen[0]
    return warmup_s, step_s or whole_s, table  # TRL's own clock leaves out what building a trainer takes


def with_spread(recipe: Recipe) -> Recipe:
    """The recipe with a reward that hardly counts and nearly always differs, for measuring a step.

    Where a base earns nothing all groups are without spread; on a CPU they cost no backward pass, which training will need.
    """
    from toolkit.rewards.length import Length

    if any(reward.name == "length" for reward in recipe.rewards):
        return recipe
    tie_breaker = Length(ideal=1, unit="characters", form="distance", weight=1e-3)
    return recipe.model_copy(update={"rewards": (*recipe.rewards, tie_breaker)})


def _warmup_step(policy: Policy, recipe: Recipe, rows: Sequence[Row], folder: Path) -> float:
    from toolkit.engine.trainers import run_warmup

    if recipe.warmup is None:
        return 0.0
    worked = [(recipe.task.messages(row), text) for row in rows if (text := recipe.task.worked(row)) is not None]
    if not worked:
        return 0.0
    examples = (worked * recipe.warmup.batch_size)[: recipe.warmup.batch_size]
    short = recipe.model_copy(update={"warmup": recipe.warmup.model_copy(update={"max_steps": 1})})
    begin = time.monotonic()
    run_warmup(policy, short, examples, folder, lambda _step, _logs: False)
    return time.monotonic() - begin


def show(found: Forecast) -> None:
    """The forecast on the terminal."""
    console.say(f"[bold]{found.prompts} prompts, {found.group_size} completions each, with the base model[/]")
    if found.has_warmup:
        console.say("the recipe begins with a warm-up: GRPO will meet a model that knows the format; this is the base")
    if found.pass_rates is not None and found.accuracy is not None and found.format_rate is not None:
        console.say(f"right {found.accuracy:.1%}, in the right format {found.format_rate:.1%}")
        bars = [(name, count, "█" * count) for name, count in found.pass_rates.items()]
        console.table("prompts by right answers", ("of its completions", "prompts", ""), bars)
    rewards = [
        (name, *(_figure(value) for value in (paid.mean, paid.lowest, paid.highest, paid.spread)))
        for name, paid in found.rewards.items()
    ]
    console.table("what is paid", ("reward", "mean", "lowest", "highest", "spread where it differs"), rows=rewards)
    if found.other_work > BUSY:
        console.warn(
            f"others use this machine ({found.other_work:.1f} processes a thread): alone the run would be quicker"
        )
    console.table("forecast", ("", "likely", "range"), _lines(found))


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _lines(found: Forecast) -> list[tuple[str, str, str]]:
    memory = found.memory_gib
    return [
        ("groups without spread", f"{found.dead_groups.likely:.0%}", _between(found.dead_groups, ".0%")),
        (
            "completion length, tokens",
            f"{found.completion_length.likely:.0f}",
            _between(found.completion_length, ".0f"),
        ),
        ("cut off", f"{found.cut_off.likely:.0%}", _between(found.cut_off, ".0%")),
        ("tokens per second, sampling", f"{found.tokens_per_second:.0f}", ""),
        ("seconds a step", f"{found.step_s:.1f}", ""),
        *(
            (stage, clock(span.likely), f"{clock(span.low)} to {clock(span.high)}")
            for stage, span in found.stages_s.items()
        ),
        ("memory, GiB", f"{memory.likely:.1f}", f"up to {memory.high:.1f}"),
    ]


def _between(found: Range, digits: str) -> str:
    return f"{found.low:{digits}} to {found.high:{digits}}"
