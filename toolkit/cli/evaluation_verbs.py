"""The verbs that look at what a run learned: what each accepts and which step it calls."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from toolkit import console
from toolkit.cli.lookup import run_folder
from toolkit.cli.parsing import RUN_HELP, Parser, Verb, count
from toolkit.errors import ToolkitError

Arguments = argparse.Namespace


def _eval_arguments(parser: Parser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help=RUN_HELP)
    which = "also a saved checkpoint, by its step, or all of them; may be given again"
    parser.add_argument("--checkpoint", action="append", default=[], metavar="STEP|all", help=which)
    on = "ask the rows of a task (gsm8k) or a recipe instead: what was forgotten? The record is eval-NAME.json"
    parser.add_argument("--on", metavar="TASK|RECIPE", help=on)
    parser.add_argument("--first", type=count, metavar="N", help="only the first rows; without --on: eval-first-N.json")
    parser.add_argument("--max-tokens", type=count, metavar="N", help="longest answer; default: as trained")
    few = "also the base model with worked examples before each question; default: eval.few_shot"
    parser.add_argument("--few-shot", type=count, metavar="N", help=few)
    parser.add_argument("--samples", type=count, metavar="K", help="samples a row; default: eval.samples")
    harness = "run EleutherAI's lm-eval on base and tuned instead, with its own protocol for that task"
    parser.add_argument("--harness", metavar="TASK", help=harness)


def _eval(arguments: Arguments) -> int:
    if arguments.harness:
        return _harness(arguments)
    checkpoints = _checkpoints(arguments.checkpoint)
    run = run_folder(arguments.run)
    from toolkit.evaluate import evaluate_run

    evaluate_run(
        run,
        on=arguments.on,
        first=arguments.first,
        max_tokens=arguments.max_tokens,
        few_shot=arguments.few_shot,
        samples=arguments.samples,
        checkpoints=checkpoints,
    )
    return 0


def _checkpoints(given: list[str]) -> Any:
    """`all`, or the steps; in the order of training."""
    if "all" in given:
        return "all"
    if wrong := [word for word in given if not word.isdecimal()]:
        raise ToolkitError(f"--checkpoint takes the number of a step, or all; not {wrong[0][:20]}")
    return sorted({int(word) for word in given})


def _harness(arguments: Arguments) -> int:
    ours = {"--on": arguments.on, "--checkpoint": arguments.checkpoint, "--samples": arguments.samples}
    if unused := [option for option, value in {**ours, "--max-tokens": arguments.max_tokens}.items() if value]:
        raise ToolkitError(f"--harness has a protocol of its own and takes no {unused[0]}")
    from toolkit.evaluate.harness import run_harness

    run = run_folder(arguments.run)
    run_harness(run, arguments.harness, first=arguments.first, few_shot=arguments.few_shot)
    return 0


def _ask_arguments(parser: Parser) -> None:
    words = (
        "the run (a folder, an id or a recipe; without it the newest), then questions; none: each line of stdin is one"
    )
    parser.add_argument("words", nargs="*", metavar="[RUN] QUESTION", help=words)
    parser.add_argument("--file", type=Path, metavar="FILE", help="a question on each line")
    gold = "the right answer; once a question, in their order. Then rewards and grade are shown, too"
    parser.add_argument("--gold", action="append", default=[], metavar="ANSWER", help=gold)
    samples = "so many answers at the training temperature; default: one, the likeliest"
    parser.add_argument("--samples", type=count, default=0, metavar="K", help=samples)
    parser.add_argument("--json", action="store_true", help="print the answers as JSON")


def _ask(arguments: Arguments) -> int:
    # A run's id has no spaces, and a question of one word is rare.
    words = list(arguments.words)
    run = run_folder(words.pop(0) if words and not _is_question(words[0]) else None)
    questions = words + (_lines(arguments.file) if arguments.file else [])
    if not questions and not sys.stdin.isatty():
        questions = _stripped(sys.stdin.read())
    from toolkit.ask import ask, show

    asked = ask(run, questions, golds=arguments.gold, samples=arguments.samples)
    if arguments.json:
        console.raw_json({"schema": 1, "asked": asked}, indent=2)
    else:
        show(asked)
    return 0


def _is_question(word: str) -> bool:
    return any(character.isspace() for character in word.strip()) or word.strip().endswith("?")


def _lines(file: Path) -> list[str]:
    try:
        return _stripped(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ToolkitError(f"cannot be read: {error}", where=str(file)) from error


def _stripped(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


EVAL = Verb("measure a run on held-out rows, base against tuned", _eval_arguments, _eval)
ASK = Verb("ask a run's base, warm-up and tuned model the same questions", _ask_arguments, _ask)
