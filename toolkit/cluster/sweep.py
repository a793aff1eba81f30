"""Variants of a recipe as trials of Ray Tune, each an ordinary run that `python -m toolkit` makes. It compares nothing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from toolkit import console
from toolkit.cluster.child import settings
from toolkit.cluster.post import open_post, require_ended_well, watch
from toolkit.cluster.session import Machine, connected, cores_each, machines
from toolkit.cluster.shared import marked
from toolkit.cluster.sweep_record import SweepRecord, held, state_of
from toolkit.cluster.sweep_results import Reader, Result
from toolkit.cluster.trial import Surroundings, Trial, run_trial
from toolkit.recipe.grid import Variant
from toolkit.rundir import SWEEPS, SweepDir


@dataclass(frozen=True, slots=True)
class Sweep:
    """How the variants are trained, and on what."""

    address: str
    folder: Path
    """That `runs/` and `sweeps/` lie in."""
    to: str = "eval"
    """The last stage of each: train or eval."""
    processes: int = 1
    """Of one variant."""
    concurrent: int | None = None
    """Variants at a time; None: one on each GPU (on `processes` of them), or on each machine without any."""


def run_sweep(variants: Sequence[Variant], how: Sweep) -> list[Result]:
    """Train the variants but those that are done already; in their order what became of each.

    Ctrl-C lets those that run save what they have, and starts no other.
    """
    where = SweepDir(how.folder / SWEEPS / variants[0].loaded.name)
    with held(where):
        record = SweepRecord(where)
        results = [Result(variant, run=record.run_of(variant.fingerprint)) for variant in variants]
        for result in results:
            result.state = "done" if state_of(result.run, to=how.to) == "done" else "not started"
        left = [result for result in results if result.state != "done"]
        if len(left) < len(results):
            console.note(f"{len(results) - len(left)} of {len(results)} variants are done already")
        if left:
            _train(left, how, Reader(where, record, results))
    return results


def _train(results: Sequence[Result], how: Sweep, reader: Reader) -> None:
    trials = [_trial(result, how) for result in results]
    with connected(how.address, workers=(how.concurrent or 1) * how.processes):
        there = machines()
        at_once = min(how.concurrent or _at_once(there, how.processes), len(trials))
        cores = cores_each(there, at_once, gpus=how.processes)
        gpus = how.processes if any(machine.gpus for machine in there) else 0
        console.note(f"{len(trials)} variants to train, {at_once} at a time")
        post = open_post()
        with marked(str(how.folder)) if how.folder.is_dir() else nullcontext(None) as scratch:
            threads = None if gpus else max(1, cores // how.processes)
            around = Surroundings(str(how.folder), scratch or "", settings(), threads, how.to, how.processes)
            job = _start(trials, around, post, at_once=at_once, cores=cores, gpus=gpus)
            waiting_for = f"{at_once} × ({cores} cores{f', {gpus} GPUs' if gpus else ''})"
            stopping = "the variants that run finish their step and save, no other begins"
            watch(job, post, reader.hear, waiting_for=waiting_for, stopping=stopping)
            require_ended_well(job, go_on="the same command again")
    reader.close()


def _trial(result: Result, how: Sweep) -> Trial:
    loaded = result.variant.loaded
    return Trial(
        number=result.variant.number,
        name=loaded.name,
        recipe=loaded.recipe.model_dump(mode="json"),
        run=str(result.run.absolute()) if result.run else None,
        trained=state_of(result.run, to=how.to) == "trained",
    )


def _at_once(there: Sequence[Machine], processes: int) -> int:
    """As many as find devices of their own: GPUs, or a machine without any."""
    gpus = any(machine.gpus for machine in there)
    return max(1, sum(machine.gpus // processes for machine in there) if gpus else len(there))


def _start(trials: Sequence[Trial], around: Surroundings, post: Any, *, at_once: int, cores: int, gpus: int) -> Any:
    """The sweep as a Ray object. It runs inside the cluster, so that a client outside of it needs no part of Ray Tune."""
    import ray  # type: ignore[import-not-found]

    drive: Any = ray.remote(num_cpus=0, max_retries=0)(_drive)
    resources: dict[str, float] = {"CPU": cores, "GPU": gpus} if gpus else {"CPU": cores}
    return drive.remote(trials, around, post, at_once, resources)


def _drive(trials: Sequence[Trial], around: Surroundings, post: Any, at_once: int, resources: dict[str, float]) -> None:
    os.environ |= {"RAY_CHDIR_TO_TRIAL_DIR": "0", "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1"}
    from ray import tune  # type: ignore[import-not-found]

    with nullcontext(around.scratch) if around.scratch else marked(around.folder) as storage:
        around = replace(around, scratch=storage)
        trainable = tune.with_parameters(run_trial, trials=list(trials), around=around, post=post)
        tune.Tuner(
            tune.with_resources(trainable, resources),
            param_space={"trial": tune.grid_search(list(range(len(trials))))},
            tune_config=tune.TuneConfig(max_concurrent_trials=at_once),
            run_config=tune.RunConfig(name="sweep", storage_path=storage, verbose=0),
        ).fit()
