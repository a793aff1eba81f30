"""The end of the pipeline for a newcomer: what was learned, what was made, what comes next. It measures nothing."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any

from toolkit import console
from toolkit.rundir import ExportDir, RunDir, preferred_gguf, read_json

MODELS = {"base": "base model", "warmup": "after warm-up", "tuned": "after GRPO"}
"""The models of eval.json, in the order of training."""


def show_summary(run: Path, export: Path) -> None:
    """From the records of a pipeline that went through: one table, one sentence, the files and the next commands."""
    evaluation = read_json(RunDir(run).evaluation)
    _show_answers(evaluation)
    console.say(gain(evaluation))
    _show_files(ExportDir(export))
    _show_next(ExportDir(export))


def _show_answers(evaluation: dict[str, Any]) -> None:
    models = evaluation["models"]
    rows = [
        (
            name,
            _share(models[key]),
            _share(models[key]["greedy"]) if "greedy" in models[key] else None,
            f"{models[key]['format_rate']:.1%}",
        )
        for key, name in MODELS.items()
        if key in models
    ]
    title = f"What was learned: answers to {evaluation['n']} problems that were not in the training"
    console.table(title, ("model", "right, sampled", "right, greedy", "in the right format"), rows)
    console.say(
        f"[dim]sampled: {evaluation['samples']} answers to each problem at temperature "
        f"{evaluation['decoding']['temperature']:g}, as in training; greedy: the likeliest answer; "
        "in brackets: 95 % interval[/]"
    )


def _share(record: dict[str, Any]) -> str:
    low, high = record["ci95"]
    return f"{record['accuracy']:.1%} ({low:.1%} to {high:.1%})"


def gain(evaluation: dict[str, Any]) -> str:
    """What GRPO added to the stage before it, in one sentence."""
    before = "warmup" if "warmup" in evaluation["models"] else "base"
    difference = evaluation["differences"][f"tuned-{before}"]
    delta, low, high = (100 * value for value in (difference["delta"], *difference["ci95"]))
    against = f"against the {'model after warm-up' if before == 'warmup' else 'base model'}"
    interval = f"95 % interval {low:+.1f} to {high:+.1f}, the same problems compared"
    if low > 0:
        return f"GRPO added [bold]{delta:.1f} points[/] to the share of right sampled answers {against} ({interval})."
    if high < 0:
        return f"GRPO took [bold]{-delta:.1f} points[/] from the share of right sampled answers {against} ({interval})."
    return f"GRPO made no difference that can be shown: {delta:+.1f} points {against} ({interval})."


def _show_files(export: ExportDir) -> None:
    certificate = read_json(export.certificate)
    results = [certificate["merged"], *certificate["files"]]
    width = max(len(str(export.path / result["file"])) for result in results)
    console.say(f"\n[bold]What was made[/] (proof: {console.untrusted(export.certificate)})")
    for result in results:
        path = str(export.path / result["file"])
        verdict = "verified" if result["passed"] else "NOT VERIFIED"
        console.say(f"  {console.untrusted(path.ljust(width))}  {result['size_bytes'] / 1e6:7.0f} MB  {verdict}")


def _show_next(export: ExportDir) -> None:
    file = preferred_gguf(read_json(export.manifest)["files"])
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
