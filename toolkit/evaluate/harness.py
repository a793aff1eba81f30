"""EleutherAI's lm-evaluation-harness on a run, for the protocols that papers quote. It runs it as a program of its own.

The harness brings its tasks, prompts, few-shot examples and extraction; the toolkit's grader has no say. It is asked for base
and tuned model, so that the difference is measured by the same protocol.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from toolkit import console
from toolkit.atomic import read_json
from toolkit.errors import MissingExtraError, ToolkitError
from toolkit.rundir import RunDir, is_whole

PACKAGE, EXTRA = "lm_eval", "harness"
INSTALL = ".venv/bin/python -m pip install --no-deps --requirement requirements/harness.txt"


def run_harness(path: Path, task: str, *, first: int | None = None, few_shot: int | None = None) -> dict[str, Any]:
    """Results of `task` by model: the harness's own metrics. Its files lie in the run's folder `harness/`."""
    if find_spec(PACKAGE) is None:
        missing = MissingExtraError(PACKAGE, EXTRA)
        missing.hint = INSTALL
        raise missing
    from toolkit.recipe import load_resolved

    run = RunDir(path)
    recipe = load_resolved(run.recipe).recipe
    if not run.adapter.is_dir():
        raise ToolkitError(
            "the run has no trained adapter or model", where=str(path), hint=f"toolkit train --resume {path}"
        )
    from toolkit.engine.source import checkpoint_of

    base = checkpoint_of(recipe.model.source, recipe.model.revision)
    results = {}
    for name, adapter in (("base", None), ("tuned", run.adapter)):
        out = run.harnesses / Path(task).stem / name
        console.say(f"{task} by lm-eval: {name}")
        _call(harness_words(base, adapter, task, out, first=first, few_shot=few_shot, chat=True))
        results[name] = _results(out, task)
    _show(task, results)
    return results


def harness_words(
    base: Path,
    adapter: Path | None,
    task: str,
    out: Path,
    *,
    first: int | None = None,
    few_shot: int | None = None,
    chat: bool = False,
) -> list[str]:
    """The words of lm-eval's command line. Without `few_shot` the task's own number of examples is used."""
    model = f"pretrained={base}" + (f",peft={adapter}" if adapter else "")
    if adapter and is_whole(adapter):
        model = f"pretrained={adapter},tokenizer={base}"
    words = ["run", "--model", "hf", "--model_args", model, "--tasks", task, "--batch_size", "8"]
    words += ["--output_path", str(out)]
    words += ["--apply_chat_template"] if chat else []
    words += ["--limit", str(first)] if first is not None else []
    return words + (["--num_fewshot", str(few_shot)] if few_shot is not None else [])


def _call(words: Sequence[str]) -> None:
    code = subprocess.run([sys.executable, "-m", PACKAGE, *words]).returncode
    if code:
        raise ToolkitError(f"lm-eval ended with exit code {code}", hint="what it said stands above")


def _results(out: Path, task: str) -> dict[str, Any]:
    """The numbers of the newest results file. A task given as a file has its own name there."""
    files = sorted(out.rglob("results_*.json"), key=lambda file: file.stat().st_mtime)
    if not files:
        raise ToolkitError("lm-eval wrote no results", where=str(out))
    results = read_json(files[-1])["results"]
    found = results.get(task) or next(iter(results.values()))
    return {name: value for name, value in found.items() if isinstance(value, int | float)}


def _show(task: str, results: dict[str, dict[str, Any]]) -> None:
    names = [name for name in results["base"] if "stderr" not in name]
    rows = [(console.untrusted(name), *(f"{given[name]:.3f}" for given in results.values())) for name in names]
    console.table(f"{console.untrusted(task)} by lm-eval's protocol", ("metric", *results), rows)
