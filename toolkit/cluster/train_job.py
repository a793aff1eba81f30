"""One training as a Ray Train job: each worker becomes a process of the training, as if torchrun had started it."""

from __future__ import annotations

import json
import os
import signal
import socket
import tempfile
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from toolkit import console
from toolkit.cluster.child import RUN_LINE, environment, run_child
from toolkit.cluster.post import Message, open_post, require_ended_well, show_line, watch
from toolkit.cluster.session import connected, cores_each, machines
from toolkit.cluster.shared import marked, require_shared
from toolkit.errors import EngineError, Stopped, ToolkitError
from toolkit.parallel.environment import Place

LAST_WORDS = 40
"""Lines of a follower that are shown where it failed: as long as all is well, it has nothing to say."""


@dataclass(frozen=True, slots=True)
class Job:
    """What every worker needs to know. The recipe goes along resolved: its file may not be there."""

    name: str
    recipe: Mapping[str, Any]
    folder: str
    """Where `runs/` lies, and what relative paths in the recipe start from; on every machine."""
    resume: str | None = None
    then: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    threads: int | None = None

    def words(self, scratch: Path) -> list[str]:
        """Of the command that trains. `scratch`: a folder on the worker's own machine."""
        then = ["--then", self.then] if self.then else []
        end = [*then, "--note-folder", str(scratch / "run")]
        if self.resume:
            return ["train", "--resume", self.resume, *end]
        file = scratch / self.name / "recipe.json"
        file.parent.mkdir()
        file.write_text(json.dumps(self.recipe), encoding="utf-8")
        return ["train", "--resolved", str(file), *end]


class WorkerEnded(RuntimeError):
    """A process of the training ended badly: Ray ends the others then. What it was stands in its last message."""


def train_on(address: str, job: Job, *, processes: int, go_on: Callable[[str], str]) -> Path | int:
    """The run's folder, or the exit code of the process that failed first, which has said why (130: it was stopped and saved).

    ToolkitError where a process was killed, or Ray could not do it; `go_on` makes the command that continues a run.
    """
    with connected(address, workers=processes):
        there = machines()
        cores = cores_each(there, processes)
        gpu = any(machine.gpus for machine in there)
        job = replace(job, threads=None if gpu else cores)
        told = _Told()
        # A laptop outside of the cluster does not see its folder: then the job marks it, where it runs.
        here = Path(job.folder).is_dir()
        with marked(job.folder) if here else nullcontext(None) as scratch:
            ended = _start(job, told.post, processes, cores=cores, gpu=gpu, scratch=scratch)
            what = f"{processes} × ({cores} cores{', a GPU' if gpu else ''}) of the cluster"
            watch(ended, told.post, told.hear, waiting_for=what, stopping="finishing this step and saving")
            return told.outcome(ended, go_on=go_on)


class _Told:
    """What the workers have said so far."""

    def __init__(self) -> None:
        self.post = open_post()
        self.begun: str | None = None
        self._run: str | None = None
        self._ends: list[Message] = []
        self._last: dict[int, list[str]] = {}

    def hear(self, message: Message) -> None:
        if message.kind == "run":
            self._run = message.text
        elif message.kind == "end":
            self._ends.append(message)
        elif message.sender == 0:
            if message.kind == "out" and message.text.startswith(RUN_LINE):
                self.begun = message.text.removeprefix(RUN_LINE)
            show_line(message)
        else:
            self._last[message.sender] = [*self._last.get(message.sender, []), message.text][-LAST_WORDS:]

    def outcome(self, job: Any, *, go_on: Callable[[str], str]) -> Path | int:
        # One that was stopped leaves; what the others make of that is no news.
        ends = sorted(self._ends, key=lambda message: (message.sender, message.code) != (0, Stopped.exit_code))
        bad = next((message for message in ends if message.code), None)
        if self._run is not None and not any(message.code for message in self._ends if message.sender == 0):
            return Path(self._run)
        again = go_on(self.begun or "RUN")
        if bad is None:
            require_ended_well(job, go_on=again)
            raise ToolkitError("the job ended without a run")
        if bad.error:
            raise bad.error
        for line in self._last.get(bad.sender, []):
            show_line(Message("err", bad.sender, line))
        if bad.code < 0:
            name = signal.Signals(-bad.code).name
            what = f"process {bad.sender} of the training was killed ({name}), and the others ended"
            raise EngineError(what, hint=again)
        if bad.code == Stopped.exit_code:
            console.note(f"on this Ray: {console.untrusted(again)}")
        return bad.code


def _start(job: Job, post: Any, processes: int, *, cores: int, gpu: bool, scratch: str | None) -> Any:
    """The job as a Ray object. It runs inside the cluster, so that a client outside of it needs no part of Ray Train."""
    import ray  # type: ignore[import-not-found]

    drive = ray.remote(num_cpus=0, max_retries=0)(_drive)
    return drive.remote(job, post, processes, cores, gpu, scratch)


def _drive(job: Job, post: Any, processes: int, cores: int, gpu: bool, scratch: str | None) -> None:
    os.environ |= {"RAY_CHDIR_TO_TRIAL_DIR": "0", "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "1"}
    import ray.train  # type: ignore[import-not-found]
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer  # type: ignore[import-not-found]

    with nullcontext(scratch) if scratch else marked(job.folder) as storage:
        DataParallelTrainer(
            _work,
            train_loop_config={"job": job, "post": post, "scratch": storage},
            backend_config=_shared_devices(),
            scaling_config=ray.train.ScalingConfig(
                num_workers=processes, use_gpu=gpu, resources_per_worker={"CPU": cores} | ({"GPU": 1} if gpu else {})
            ),
            run_config=ray.train.RunConfig(name="train", storage_path=storage),
        ).fit()


def _shared_devices() -> Any:
    """Every worker sees all GPUs of the job on its machine, as LOCAL_RANK wants it. There is no process group to set up here."""
    from ray.train.backend import Backend, BackendConfig  # type: ignore[import-not-found]

    class Devices(Backend):
        share_cuda_visible_devices = True

    class DevicesConfig(BackendConfig):
        @property
        def backend_cls(self) -> type[Backend]:
            return Devices

    return DevicesConfig()


def _work(config: dict[str, Any]) -> None:
    """In every worker."""
    import ray  # type: ignore[import-not-found]
    import ray.train  # type: ignore[import-not-found]
    from ray.train.collective import broadcast_from_rank_zero  # type: ignore[import-not-found]

    job, post = config["job"], config["post"]
    context = ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    meeting: Any = broadcast_from_rank_zero(_meeting_point() if rank == 0 else None)
    address, port = meeting
    local = context.get_local_rank(), context.get_local_world_size()
    # One process alone is no group: it would be wrapped as one.
    place = Place(rank, world, *local, address, port).variables() if world > 1 else {}
    try:
        require_shared(config["scratch"])
        end = Message("end", rank, code=_train(job, post, rank, place))
    except ToolkitError as error:
        end = Message("end", rank, code=error.exit_code, error=error)
    ray.get(post.put.remote(end))
    if end.code:
        raise WorkerEnded(f"process {rank} of the training ended with code {end.code}")


def _train(job: Job, post: Any, rank: int, place: Mapping[str, str]) -> int:
    env = environment(job.settings, job.threads) | dict(place)
    with tempfile.TemporaryDirectory(prefix="toolkit-") as scratch:
        words = job.words(Path(scratch))
        # The first process tells the others when to stop.
        code = run_child(words, sender=rank, post=post, folder=job.folder, env=env, stoppable=rank == 0)
        note = Path(scratch, "run")
        if rank == 0 and code == 0:
            post.put.remote(Message("run", rank, str(Path(job.folder, note.read_text(encoding="utf-8")))))
    return code


def _meeting_point() -> tuple[str, int]:
    """This machine's address, and a port that is free there."""
    import ray  # type: ignore[import-not-found]

    address = ray.util.get_node_ip_address()
    with socket.create_server((address, 0)) as probe:
        return address, probe.getsockname()[1]
