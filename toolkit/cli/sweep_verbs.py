"""The verb that trains variants of a recipe and shows how they did: what it accepts and which steps it calls."""

from __future__ import annotations

import argparse
import shlex
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit import console
from toolkit.cli.parsing import Parser, Verb, count, with_recipe
from toolkit.cli.ray_verbs import ADDRESSES
from toolkit.errors import Stopped, ToolkitError

if TYPE_CHECKING:
    from toolkit.cluster.sweep_results import Result
    from toolkit.recipe.grid import Variant
    from toolkit.report.records import Records

Arguments = argparse.Namespace
_STAGES = ("train", "eval")
FAILED = 1
"""The exit code where a variant failed."""
_WORDS = "a recipe's name or file, then key=value,value: every combination is a variant; a list is one value: [a,b]"
_STORAGE = "the folder, the same on every machine, that runs/ and sweeps/ lie in; default: this folder"


def _arguments(parser: Parser) -> None:
    parser.add_argument("words", nargs="*", metavar="RECIPE KEY=VALUE,VALUE", help=_WORDS)
    parser.add_argument("--ray", default="local", metavar="ADDRESS", help=f"{ADDRESSES}; default: local")
    at_once = "variants at a time; default: one on each GPU, or on each machine without any"
    parser.add_argument("--concurrent", type=count, metavar="N", help=at_once)
    parser.add_argument(
        "--processes", type=count, default=1, metavar="N", help="of each variant, one a GPU; default: 1"
    )
    parser.add_argument("--to", choices=_STAGES, default="eval", help="the last stage of each; default: eval")
    parser.add_argument("--storage", metavar="FOLDER", help=_STORAGE)


def _sweep(arguments: Arguments) -> int:
    """0: every variant is done; 1: one failed; 130: it was stopped."""
    recipe, *words = with_recipe(arguments.words)
    from toolkit.recipe.grid import variants

    asked = _distinct(variants(recipe, words))
    from toolkit.cluster.session import require_ray

    _require_shares(asked, arguments.processes)
    require_ray()
    from toolkit.cluster.sweep import Sweep, run_sweep

    folder = Path(arguments.storage or ".").absolute()
    how = Sweep(arguments.ray, folder, arguments.to, arguments.processes, arguments.concurrent)
    results = run_sweep(asked, how)
    _show(results, folder)
    return _ending(results, arguments)


def _distinct(found: Sequence[Variant]) -> list[Variant]:
    """Of variants that are the same recipe the first."""
    first: dict[str, Variant] = {}
    for variant in found:
        same = first.setdefault(variant.fingerprint, variant)
        if same is not variant:
            console.warn(console.untrusted(f"{variant.label} is the same recipe as {same.label}, and is left out"))
    return list(first.values())


def _require_shares(asked: Sequence[Variant], processes: int) -> None:
    from toolkit.preflight.shares import require_shares

    for variant in asked:
        try:
            require_shares(variant.loaded.recipe, processes)
        except ToolkitError as error:
            error.where = variant.label
            raise


def _show(results: Sequence[Result], folder: Path) -> None:
    from toolkit.report.records import read_run

    found = {result.variant.number: read_run(result.run) for result in results if result.run and result.run.is_dir()}
    keys = list(results[0].variant.changes)
    graded = any(records.graded for records in found.values())
    heads = (*keys, "state", "reward", "right" if graded else "mean reward, held out", "run")
    lines = [_line(result, found.get(result.variant.number), graded=graded) for result in results]
    console.table(f"{len(results)} variants of {console.untrusted(results[0].variant.loaded.name)}", heads, lines)
    for result in results:
        if result.state == "failed":
            console.warn(console.untrusted(f"{result.variant.label} failed: {result.why}"))
    evaluated = [records for records in found.values() if records.evaluation is not None]
    if len(evaluated) > 1:
        _warn_of_choice(evaluated)
    done = [result.run for result in results if result.state == "done" and result.run]
    if len(done) > 1:
        _compare(done, folder, results[0].variant.loaded.name)


def _line(result: Result, records: Records | None, *, graded: bool) -> tuple[Any, ...]:
    from toolkit.report.runs import LAST_STEPS

    colour = {"done": "green", "failed": "red", "stopped": "yellow"}.get(result.state, "cyan")
    steps = records.steps if records else []
    rewards = [line["reward"] for line in steps if line.get("reward") is not None][-LAST_STEPS:]
    return (
        *map(console.untrusted, result.variant.changes.values()),
        f"[{colour}]{result.state}[/]",
        f"{statistics.fmean(rewards):.3g}" if rewards else None,
        _held_out(records, graded=graded),
        console.untrusted(_from_here(result.run)) if result.run else None,
    )


def _held_out(records: Records | None, *, graded: bool) -> str | None:
    tuned = ((records.evaluation if records else None) or {}).get("models", {}).get("tuned")
    if tuned is None:
        return None
    found, value = (tuned, "accuracy") if graded else (tuned.get("reward") or {}, "mean")
    if found.get(value) is None:
        return None
    low, high = found["ci95"]
    shown = ".1%" if graded else ".3g"
    return f"{found[value]:{shown}} ({low:{shown}} to {high:{shown}})"


def _warn_of_choice(evaluated: Sequence[Records]) -> None:
    """The best of many looks better on the rows that chose it than it is (docs/scaling.md)."""
    rows = min(int((records.evaluation or {}).get("n") or 0) for records in evaluated)
    console.warn(
        f"{len(evaluated)} variants were measured on the same {rows} held-out rows: whoever takes the best of them should "
        "measure it once more on rows that chose nothing (toolkit eval RUN --on RECIPE, docs/scaling.md)"
    )


def _compare(runs: Sequence[Path], folder: Path, name: str) -> None:
    from toolkit.report.comparison import FOLDER, write_comparison

    page = write_comparison(runs, to=folder / FOLDER / f"sweep-{name}.html")
    console.say(f"comparison: {console.untrusted(_from_here(page))}")


def _from_here(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _ending(results: Sequence[Result], arguments: Arguments) -> int:
    states = {result.state for result in results}
    if states == {"done"}:
        return 0
    again = shlex.join(["toolkit", "sweep", *_words(arguments)])
    console.note(f"what is done stays; for the rest, the same again: {console.untrusted(again)}")
    return Stopped.exit_code if states & {"stopped", "not started"} else FAILED


def _words(arguments: Arguments) -> list[str]:
    given = {
        "--ray": arguments.ray if arguments.ray != "local" else None,
        "--concurrent": arguments.concurrent,
        "--processes": arguments.processes if arguments.processes > 1 else None,
        "--to": arguments.to if arguments.to != "eval" else None,
        "--storage": arguments.storage,
    }
    return [*arguments.words, *(word for name, value in given.items() if value for word in (name, str(value)))]


SWEEP = Verb("train variants of a recipe (key=a,b,c) with Ray Tune, and compare them", _arguments, _sweep)
