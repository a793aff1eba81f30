"""The end of the pipeline for a newcomer: what was learned, what was made, what comes next. It measures nothing."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toolkit import console
from toolkit.atomic import read_json
from toolkit.rundir import ExportDir, RunDir, preferred_gguf

MODELS = {"base": "base model", "few_shot": "base, few-shot", "warmup": "after warm-up", "tuned": "after GRPO"}
"""The models of eval.json, in the order of training."""


def show_summary(run: Path, export: Path) -> None:
    """From the records of a pipeline that went through: one table, one sentence, the files and the next commands."""
    evaluation = read_json(RunDir(run).evaluation)
    _show_answers(evaluation)
    console.say(gain(evaluation))
    if evaluation.get("gain"):
        console.say(evaluation["gain"]["sentence"])
    _show_files(ExportDir(export))
    _show_next(run, ExportDir(export))


def _show_answers(evaluation: dict[str, Any]) -> None:
    graded = evaluation.get("graded", True)
    models = [(name, evaluation["models"][key]) for key, name in MODELS.items() if key in evaluation["models"]]
    what = "problems" if graded else "prompts"
    title = f"What was learned: answers to {evaluation['n']} {what} {_unseen(evaluation.get('overlap'))}"
    heads = ("right, sampled", "right, greedy", "in the right format") if graded else _REWARD_HEADS
    line = _graded_line if graded else _reward_line
    console.table(title, ("model", *heads), [(name, *line(model)) for name, model in models])
    console.say(
        f"[dim]sampled: {evaluation['samples']} answers to each {what[:-1]} at temperature "
        f"{evaluation['decoding']['temperature']:g}, as in training; greedy: the likeliest answer; "
        "in brackets: 95 % interval[/]"
    )


def _unseen(overlap: dict[str, Any] | None) -> str:
    both = overlap["exact"] + overlap["folded"] if overlap else 0
    return f"({both} of them stand in the training data, too)" if both else "that were not in the training"


_REWARD_HEADS = ("mean reward, sampled", "mean reward, greedy", "tokens")


def _graded_line(model: dict[str, Any]) -> tuple[str | None, ...]:
    greedy = _share(model["greedy"]) if "greedy" in model else None
    return _share(model), greedy, f"{model['format_rate']:.1%}"


def _reward_line(model: dict[str, Any]) -> tuple[str | None, ...]:
    return _reward(model["reward"]), _reward(model.get("greedy", {}).get("reward")), f"{model['mean_tokens']:.0f}"


def _share(record: dict[str, Any]) -> str:
    low, high = record["ci95"]
    return f"{record['accuracy']:.1%} ({low:.1%} to {high:.1%})"


def _reward(record: dict[str, Any] | None) -> str | None:
    if record is None:
        return None
    low, high = record["ci95"]
    return f"{record['mean']:.3g} ({low:.3g} to {high:.3g})"


def gain(evaluation: dict[str, Any]) -> str:
    """What GRPO added to the stage before it, in one sentence: right answers, or reward where there are no golds."""
    before = "warmup" if "warmup" in evaluation["models"] else "base"
    difference = evaluation["differences"][f"tuned-{before}"]
    against = f"against the {'model after warm-up' if before == 'warmup' else 'base model'}"
    if evaluation.get("graded", True):
        points = [100 * value for value in (difference["delta"], *difference["ci95"])]
        return _gain(points, ".1f", " points", f"the share of right sampled answers {against}", "problems")
    if difference["reward"] is None:
        return f"No answer could be judged both before and after GRPO, so nothing can be said {against}."
    change = difference["reward"]
    return _gain(
        [change["delta"], *change["ci95"]], ".3g", "", f"the mean reward of sampled answers {against}", "prompts"
    )


def _gain(change: Sequence[float], digits: str, unit: str, what: str, asked: str) -> str:
    """`change`: by how much, and its interval's ends."""
    delta, low, high = change
    interval = f"95 % interval {low:+{digits}} to {high:+{digits}}, the same {asked} compared"
    if low > 0:
        return f"GRPO added [bold]{delta:{digits}}{unit}[/] to {what} ({interval})."
    if high < 0:
        return f"GRPO took [bold]{-delta:{digits}}{unit}[/] from {what} ({interval})."
    return f"GRPO made no difference that can be shown: {delta:+{digits}}{unit} in {what} ({interval})."


def _show_files(export: ExportDir) -> None:
    certificate = read_json(export.certificate)
    results = [certificate["merged"], *certificate["files"]]
    width = max(len(str(export.path / result["file"])) for result in results)
    console.say(f"\n[bold]What was made[/] (proof: {console.untrusted(export.certificate)})")
    for result in results:
        path = str(export.path / result["file"])
        verdict = "verified" if result["passed"] else "NOT VERIFIED"
        verdict += ", [bold]recommended[/]" if result["file"] == certificate.get("recommended") else ""
        console.say(f"  {console.untrusted(path.ljust(width))}  {result['size_bytes'] / 1e6:7.0f} MB  {verdict}")


def _show_next(run: Path, export: ExportDir) -> None:
    ask = shlex.join([_python(), "-m", "toolkit", "ask", str(run)])
    console.say(f'[bold]Before and after, side by side[/]\n  [green]{console.untrusted(ask)} "…"[/]')
    file = preferred_gguf(read_json(export.manifest)["files"], recommended=export.recommended)
    if file is None:
        console.say(
            f"transformers opens {console.untrusted(export.merged)}; the recipe names no GGUF type (export.gguf)"
        )
        return
    path = export.path / file
    chat = shlex.join([_python(), "-m", "toolkit", "chat", str(export.path)])
    lines = [
        "[bold]Talk to it[/]",
        f"  [green]{console.untrusted(chat)}[/]" + (" (or: make chat)" if Path("Makefile").is_file() else ""),
        "[bold]Elsewhere[/]",
        f"  llama.cpp   {console.untrusted(shlex.join(['llama-cli', '-m', str(path)]))}",
        f"  Ollama      a Modelfile that says: FROM {console.untrusted(path.resolve())}",
        "  Open WebUI  through either of them",
        f"  There, too, give it its system prompt: task.system_prompt in {console.untrusted(export.recipe)}",
    ]
    console.say("\n".join(lines))


def _python() -> str:
    """This Python as one types it from here."""
    path = Path(sys.executable)
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
