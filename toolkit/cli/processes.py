"""`toolkit train` in several processes and on several machines: its options, and how the verb starts itself in each of them."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.cli.parsing import Parser, count
from toolkit.cli.pipeline import as_word
from toolkit.errors import ToolkitError
from toolkit.parallel.environment import DEFAULT_PORT, Machines, first, machines, place
from toolkit.rundir import newest_unfinished

if TYPE_CHECKING:
    from toolkit.recipe import Loaded

Arguments = argparse.Namespace


def process_options(parser: Parser) -> None:
    """What says how many processes train, and where."""
    group = parser.add_argument_group("several processes (docs/scaling.md)")
    group.add_argument("--processes", type=count, metavar="N", help="train in N processes on this machine, one a GPU")
    group.add_argument("--machines", type=count, metavar="M", help="on M machines, each started with this command")
    group.add_argument("--rank", type=_rank, metavar="R", help="which of them this is, from 0; 0 writes the run")
    group.add_argument("--address", metavar="HOST[:PORT]", help="where the machine of rank 0 listens for the others")


def _rank(word: str) -> int:
    if not word.isdecimal():
        raise argparse.ArgumentTypeError(f"a number from 0 on is needed, not {word[:20]}")
    return int(word)


def wants_processes(arguments: Arguments) -> bool:
    """Whether this process is to start others, which train; one that a launcher started trains itself."""
    if "LOCAL_RANK" in os.environ and place().world > 1:
        return False
    return any(value is not None for value in _given(arguments).values())


def trains_for_another(arguments: Arguments) -> bool:
    """Whether the run is written by another process or machine, so that nothing can follow the training here."""
    return bool(_machines(arguments).rank) if wants_processes(arguments) else not first()


def _given(arguments: Arguments) -> dict[str, object]:
    return {name: getattr(arguments, name) for name in ("processes", "machines", "rank", "address")}


def process_words(arguments: Arguments) -> list[str]:
    """The options again, for a process that runs the verb."""
    given = {name: value for name, value in _given(arguments).items() if value is not None}
    return [word for name, value in given.items() for word in (f"--{name}", str(value))]


def train_in_processes(arguments: Arguments, loaded: Loaded, resume: Path | None) -> int:
    """The exit code of the training, which stands in processes of its own."""
    here = _machines(arguments)
    each = arguments.processes or 1
    from toolkit.preflight.shares import require_shares

    require_shares(loaded.recipe, each * here.count)
    from toolkit.parallel.launch import require_devices, run_processes

    require_devices(each)

    hidden = [("--then", arguments.then), ("--note-folder", arguments.note_folder), ("--resolved", arguments.resolved)]
    words = ["--resume", as_word(resume)] if resume else list(arguments.words)
    words += [word for name, value in hidden if value for word in (name, value)]

    def go_on() -> str:
        run = resume or newest_unfinished(recipe=loaded.name) or "RUN"
        return f"toolkit train --resume {run} {' '.join(process_words(arguments))}"

    return run_processes(["train", *words], processes=each, machines=here, go_on=go_on)


def _machines(arguments: Arguments) -> Machines:
    """As the options say; without them as the cluster's environment does."""
    if arguments.machines is None:
        if arguments.rank is not None or arguments.address is not None:
            raise ToolkitError("--rank and --address belong to --machines", hint="--machines M --rank R --address HOST")
        return machines()
    missing = [f"--{name}" for name in ("rank", "address") if getattr(arguments, name) is None]
    if missing and arguments.machines > 1:
        hint = f"on every machine: --machines {arguments.machines} --rank R --address HOST, R from 0 on"
        raise ToolkitError(f"missing: {' and '.join(missing)}", hint=hint)
    rank = arguments.rank or 0
    if rank >= arguments.machines:
        raise ToolkitError(f"--rank {rank} of {arguments.machines} machines", hint="ranks count from 0")
    host, _, port = (arguments.address or "127.0.0.1").partition(":")
    if not host or (port and not port.isdecimal()):
        raise ToolkitError(
            f"--address {arguments.address[:60]} is no HOST or HOST:PORT", hint="--address 10.0.0.1:29500"
        )
    several = arguments.machines > 1
    return Machines(arguments.machines, rank, host, int(port) if port else DEFAULT_PORT if several else 0)
