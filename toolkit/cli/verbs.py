"""The verbs: what each accepts and which step it calls. What a step does stands in the step.

Every import that costs time happens inside the function of its verb, after the recipe is known to be right.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit import console
from toolkit.cli.deployment_verbs import OPEN_WEBUI, SERVE
from toolkit.cli.doctor_verbs import DOCTOR
from toolkit.cli.evaluation_verbs import ASK, EVAL
from toolkit.cli.export_verbs import EXPORT, VERIFY
from toolkit.cli.lookup import export_folder, resumable_run
from toolkit.cli.parsing import EXPORT_HELP, FILE_HELP, Parser, Verb, count, load, recipe_words, with_recipe
from toolkit.cli.pipeline import as_word, note_folder, run_stages
from toolkit.cli.processes import (
    process_options,
    process_words,
    train_in_processes,
    trains_for_another,
    wants_processes,
)
from toolkit.cli.ray_verbs import ray_options, ray_words, train_on_ray
from toolkit.cli.report_verbs import COMPARE, REPORT, RUNS
from toolkit.cli.sweep_verbs import SWEEP
from toolkit.errors import Stopped, ToolkitError, nearest
from toolkit.rundir import RunDir

if TYPE_CHECKING:
    from toolkit.recipe import Loaded

Arguments = argparse.Namespace
STAGES = ("train", "eval", "export", "verify")


def _train_arguments(parser: Parser) -> None:
    recipe_words(parser)
    parser.add_argument("--resume", metavar="RUN", help="continue an interrupted run with the recipe it began with")
    parser.add_argument("--to", choices=STAGES, default="train", help="go on, each stage in a process of its own")
    process_options(parser)
    ray_options(parser)
    parser.add_argument("--then", help=argparse.SUPPRESS)
    parser.add_argument("--note-folder", metavar="FILE", help=argparse.SUPPRESS)


def _train(arguments: Arguments) -> int:
    if arguments.resume and arguments.words:
        raise ToolkitError("a resumed run keeps the recipe it began with", hint="toolkit train --resume RUN")
    resume = resumable_run(arguments.resume) if arguments.resume else None
    if arguments.to != "train":
        return _pipeline(arguments, resume)
    loaded = _recipe_of(arguments, resume)
    if arguments.ray:
        return train_on_ray(arguments, loaded, resume)
    if wants_processes(arguments):
        return train_in_processes(arguments, loaded, resume)
    from toolkit.train import train

    try:
        note_folder(arguments.note_folder, train(loaded, resume=resume, then=arguments.then or "train"))
    except Stopped as stop:
        if arguments.then:
            stop.hint = f"{stop.hint} --to {arguments.then}"
        raise
    return 0


def _recipe_of(arguments: Arguments, resume: Path | None) -> Loaded:
    """`--resolved`: as another process of the toolkit found it, whose files may not be here."""
    if arguments.resolved:
        from toolkit.recipe import load_resolved

        return load_resolved(Path(arguments.resolved))
    return _resumed_recipe(resume) if resume else load(arguments.words)


def _pipeline(arguments: Arguments, resume: Path | None) -> int:
    """All stages from training on; of a run that is trained already, those that follow."""
    several = [*process_words(arguments), *ray_words(arguments)]
    to = "train" if trains_for_another(arguments) else arguments.to
    if resume is None:
        words = with_recipe(arguments.words)
        loaded = load(words)  # every fault of the recipe before the first process
        return run_stages([*words, *several], to=to, stages=STAGES, push=loaded.recipe.hub.push)
    push = arguments.to == "verify" and _resumed_recipe(resume).recipe.hub.push
    if RunDir(resume).adapter.is_dir():
        console.note("the run is trained already")
        return run_stages([as_word(resume)], to=arguments.to, stages=STAGES[1:], push=push)
    return run_stages(["--resume", as_word(resume), *several], to=to, stages=STAGES, push=push)


def _resumed_recipe(run: Path) -> Loaded:
    from toolkit.recipe import load_resolved

    return load_resolved(run / "recipe.json")


def _chat_arguments(parser: Parser) -> None:
    parser.add_argument("export", nargs="?", metavar="EXPORT", help=EXPORT_HELP)
    parser.add_argument("--file", metavar="NAME", help=FILE_HELP)
    parser.add_argument("--question", metavar="TEXT", help="answer this and end; without it ask in turn, or read stdin")
    server = "ask this server; default: the one at 127.0.0.1:8080 if it serves the file, else load the file here"
    parser.add_argument("--server", metavar="URL", help=server)


def _chat(arguments: Arguments) -> int:
    from toolkit.chat import chat

    folder = export_folder(arguments.export)
    chat(folder, file=arguments.file, question=arguments.question, server=arguments.server)
    return 0


def _push_arguments(parser: Parser) -> None:
    parser.add_argument("export", nargs="?", metavar="EXPORT", help=EXPORT_HELP)
    parser.add_argument("--repo", metavar="ORG/NAME", help="one repository for everything; default: the recipe's")
    parser.add_argument("--force", action="store_true", help="push what is not verified; the model card says so")


def _push(arguments: Arguments) -> int:
    from toolkit.hub import push_export

    push_export(export_folder(arguments.export), repo=arguments.repo, force=arguments.force)
    return 0


def _check_arguments(parser: Parser) -> None:
    recipe_words(parser)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    forecast = "also load the base model, sample N prompts and make one step: what the run will be like"
    parser.add_argument("--probe", type=count, metavar="N", help=forecast)


def _check(arguments: Arguments) -> int:
    """0: fine; 1: warnings; 2: something that stops a training."""
    loaded = load(arguments.words)
    from toolkit.preflight import check, show

    if arguments.probe:
        from toolkit.probe import prepare

        prepare(loaded.recipe)
    report = check(loaded)
    if not arguments.json:
        show(report)
    found = _forecast(loaded, arguments.probe, shown=not arguments.json) if arguments.probe and report.passed else None
    if arguments.json:
        console.raw_json(report.as_json() | ({"forecast": found} if found else {}), indent=2)
    return report.exit_code


def _forecast(loaded: Loaded, prompts: int, *, shown: bool) -> dict[str, Any]:
    from toolkit.probe import probe, show

    found = probe(loaded, prompts)
    if shown:
        show(found)
    return found.as_json()


def _data_arguments(parser: Parser) -> None:
    recipe_words(parser)
    parser.add_argument("--rows", type=int, default=3, metavar="N", help="how many rows to show; default: 3")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def _data(arguments: Arguments) -> int:
    loaded = load(arguments.words)
    from toolkit.data import look, show

    report = look(loaded, rows=max(0, arguments.rows))
    if arguments.json:
        console.raw_json(report.as_json(), indent=2)
    else:
        show(report)
    return 0 if report.enough else 1


def _recipes_arguments(parser: Parser) -> None:
    parser.add_argument("action", nargs="?", default="list", metavar="list|show", help="default: list")
    recipe_words(parser)


def _recipes(arguments: Arguments) -> int:
    if arguments.action == "show":
        return _show_recipe(load(arguments.words))
    if arguments.action != "list" or arguments.words:
        raise _unknown_action("recipes", arguments.action, ("list", "show"))
    from toolkit.recipe import DEFAULT_RECIPE, list_recipes

    rows = [
        (
            entry.name + (" (default)" if entry.name == DEFAULT_RECIPE else ""),
            console.untrusted(entry.description),
        )
        for entry in list_recipes()
    ]
    console.table("", ("recipe", "description"), rows)
    return 0


def _show_recipe(loaded: Loaded) -> int:
    import json

    rows = [
        (
            key,
            console.untrusted(json.dumps(loaded.values[key], ensure_ascii=False)),
            console.untrusted(source),
        )
        for key, source in loaded.provenance.items()
    ]
    console.table(console.untrusted(f"{loaded.name} ({loaded.path})"), ("key", "value", "source"), rows)
    return 0


def _unknown_action(verb: str, given: str, actions: Sequence[str]) -> ToolkitError:
    near = nearest(given, actions)
    hint = f"did you mean toolkit {verb} {near}?" if near else f"toolkit {verb} {'|'.join(actions)}"
    return ToolkitError(f"toolkit {verb} knows no {given[:60]}", hint=hint)


def _rewards_arguments(parser: Parser) -> None:
    parser.add_argument("action", nargs="?", default="list", metavar="list|score|lint", help="default: list")
    recipe_words(parser, "[FILE]")
    parser.add_argument("--json", action="store_true", help="lint: print the report as JSON")


def _rewards(arguments: Arguments) -> int:
    actions = {"list": _rewards_list, "score": _rewards_score, "lint": _rewards_lint}
    if arguments.action not in actions:
        raise _unknown_action("rewards", arguments.action, tuple(actions))
    return actions[arguments.action](arguments)


def _rewards_list(_: Arguments) -> int:
    from toolkit.rewards import REWARDS

    rows = [(name, console.untrusted((kind.__doc__ or "").strip().split("\n")[0])) for name, kind in REWARDS.items()]
    console.table("", ("reward", "what it pays"), rows)
    return 0


def _rewards_score(arguments: Arguments) -> int:
    if len(arguments.words) < 2:
        raise ToolkitError("a recipe and a file of completions are needed", hint="toolkit rewards score RECIPE FILE")
    recipe, file, *overrides = arguments.words
    loaded = load([recipe, *overrides])
    from toolkit.preflight import bound_rewards
    from toolkit.rewards.scoring import score_file

    for scores in score_file(bound_rewards(loaded.recipe), Path(file), task=loaded.recipe.task):
        console.raw_json(scores)
    return 0


def _rewards_lint(arguments: Arguments) -> int:
    loaded = load(arguments.words)
    from toolkit.preflight import lint_rewards, show_lint

    task = loaded.recipe.task
    report = lint_rewards(loaded.recipe, [*task.rows("train"), *task.rows("heldout")])
    if arguments.json:
        console.raw_json({"schema_version": 1, "passed": report.ok} | report.model_dump(mode="json"), indent=2)
    else:
        show_lint(report)
    return report.exit_code


VERBS = {
    "train": Verb("train a recipe (default: the embedded one) into runs/", _train_arguments, _train),
    "sweep": SWEEP,
    "eval": EVAL,
    "ask": ASK,
    "export": EXPORT,
    "verify": VERIFY,
    "chat": Verb("talk to an export in the terminal", _chat_arguments, _chat),
    "serve": SERVE,
    "open-webui": OPEN_WEBUI,
    "push": Verb("upload a verified export to the Hugging Face Hub", _push_arguments, _push),
    "doctor": DOCTOR,
    "report": REPORT,
    "compare": COMPARE,
    "runs": RUNS,
    "check": Verb("find out beforehand what would go wrong with a recipe", _check_arguments, _check),
    "data": Verb("show a recipe's rows as the model will read them, and their lengths", _data_arguments, _data),
    "recipes": Verb("list the recipes, or show one with the source of each value", _recipes_arguments, _recipes),
    "rewards": Verb("list the rewards, score a file of completions, or lint a recipe", _rewards_arguments, _rewards),
}
