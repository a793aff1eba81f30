"""Sends a run's newest checkpoint to the Hub while it trains, from a thread. What fails is warned of, counted, and stops nothing.

Beside the checkpoint go the run's small records, so that what lies on the branch is a run that can be resumed elsewhere.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from toolkit import console
from toolkit.atomic import read_json, write_json
from toolkit.hubapi.client import asking, client, redacted
from toolkit.hubapi.portable import portable_file
from toolkit.hubapi.upload import Item, remote_files, upload
from toolkit.rundir import RunDir

if TYPE_CHECKING:
    from huggingface_hub import HfApi

    from toolkit.recipe import Hub

BRANCH = "checkpoints"
"""Their own branch: what lies on the main one was verified."""
WAIT_S = 600.0
"""How long the end of a run waits for its last checkpoint."""
NOT_SENT = ("README.md", "training_args.bin")
"""A resumed run needs neither, and both hold paths of this machine."""


@dataclass
class Tally:
    """hub.json of a run: how many checkpoints went up and how many did not."""

    repo: str
    branch: str = BRANCH
    uploaded: int = 0
    failed: int = 0
    last_uploaded: str | None = None
    last_error: str | None = None


class CheckpointUploads:
    """A context around a training: `look` after each step. Without `hub.push_checkpoints` it does nothing."""

    def __init__(self, run: RunDir, hub: Hub, newest: Callable[[], Path | None], *, wait_s: float = WAIT_S) -> None:
        self._run, self._hub, self._newest, self._wait_s = run, hub, newest, wait_s
        self._repo = hub.checkpoint_repo if hub.push_checkpoints else None
        self._thread: threading.Thread | None = None
        self._tried: str | None = None
        self._outcome: str | None = None
        self._tally = self._read_tally() if self._repo else None

    def look(self) -> None:
        """Send the newest checkpoint, if it is a new one and nothing is under way. Costs links to its files, no waiting."""
        if self._tally is None or self._busy():
            return
        try:
            self._settle()
            checkpoint = self._newest()
            if checkpoint is not None and checkpoint.name not in (self._tried, self._tally.last_uploaded):
                self._start(checkpoint)
        except Exception as error:  # the other side of the boundary below: a full disk, a file that went away
            self._count(redacted(error) or type(error).__name__)

    def __enter__(self) -> Self:
        if self._tally is not None:
            # Already here: whoever switches bars off for a while, as training does, then leaves them off.
            from huggingface_hub.utils import disable_progress_bars

            disable_progress_bars()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for what is under way, then for the last checkpoint, once more where it failed; not for ever."""
        if self._tally is None:
            return
        try:
            if kind is None or not issubclass(kind, KeyboardInterrupt):
                self._finish(self._tally)
        except KeyboardInterrupt:
            console.warn("stopped waiting: the last checkpoint is not on the Hub")
        finally:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _finish(self, tally: Tally) -> None:
        until = time.monotonic() + self._wait_s
        self._wait(until)
        if not self._busy():
            self._tried = None
            self.look()
        if self._busy():
            console.note(f"sending the last checkpoint to {console.untrusted(tally.repo)}; Ctrl-C leaves it")
        self._wait(until)
        if self._busy():
            self._count(f"not done after {self._wait_s:.0f} s")

    def _wait(self, until: float) -> None:
        while self._busy() and time.monotonic() < until:
            assert self._thread is not None
            self._thread.join(0.2)  # in pieces: Ctrl-C is heard between them
        if not self._busy():
            self._settle()

    def _busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _start(self, checkpoint: Path) -> None:
        assert self._repo is not None
        self._tried, self._outcome = checkpoint.name, None
        items = list(self._items(checkpoint))
        # A daemon: a Hub that never answers does not keep the process alive.
        self._thread = threading.Thread(target=self._send, args=(self._repo, items), daemon=True)
        self._thread.start()

    def _send(self, repo: str, items: list[Item]) -> None:
        try:
            asking(lambda: self._upload(client(), repo, items), where=repo, retry="the next checkpoint is tried")
            self._outcome = ""
        except Exception as error:  # the named boundary: whatever goes wrong up there, the training goes on
            self._outcome = redacted(getattr(error, "message", error)) or type(error).__name__

    def _upload(self, api: HfApi, repo: str, items: list[Item]) -> None:
        api.create_repo(repo, private=self._hub.private, exist_ok=True)
        api.create_branch(repo, branch=BRANCH, exist_ok=True)
        kept = {item.name.rpartition("/")[0] for item in items}
        prefix = f"{self._remote}/checkpoints/"
        there = {name.rpartition("/")[0] for name in remote_files(api, repo, BRANCH) if name.startswith(prefix)}
        gone = sorted(f"{folder}/" for folder in there - kept)
        upload(api, repo, items, message=f"{self._run.path.name}, {self._tried}", revision=BRANCH, gone=gone)

    def _settle(self) -> None:
        """Count what the thread came to, in the thread that trains: it is the one that may print."""
        if self._thread is not None and not self._thread.is_alive():
            self._thread = None
            self._count(self._outcome or "")

    def _count(self, failure: str) -> None:
        tally = self._tally
        assert tally is not None
        tally.last_error = failure or None
        if failure:
            tally.failed += 1
            console.warn(console.untrusted(f"{self._tried} is not on the Hub: {failure} (the run goes on)"))
        else:
            tally.uploaded += 1
            tally.last_uploaded = self._tried
        with suppress(OSError):  # where not even this can be written, the training will say so itself
            write_json(self._run.hub, asdict(tally))

    def _items(self, checkpoint: Path) -> Iterator[Item]:
        """The run as it is now: a folder that can be resumed. The trainer removes old checkpoints, hence the links."""
        for record in (self._run.recipe, self._run.manifest, self._run.state):
            yield Item(f"{self._remote}/{record.name}", portable_file(record))
        yield Item(f"{self._remote}/{self._run.metrics.name}", self._run.metrics.read_bytes())
        shutil.rmtree(self._scratch, ignore_errors=True)
        for folder in (self._run.warmup_adapter, checkpoint):
            for file in sorted(path for path in folder.glob("*") if path.is_file() and path.name not in NOT_SENT):
                name = file.relative_to(self._run.path)
                yield Item(f"{self._remote}/{name.as_posix()}", self._kept(file, self._scratch / name))

    def _kept(self, file: Path, link: Path) -> Path | bytes:
        if file.suffix == ".json" and file.name != "tokenizer.json":
            return portable_file(file)
        link.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(file, link)
        except OSError:  # a file system without links
            shutil.copyfile(file, link)
        return link

    @property
    def _scratch(self) -> Path:
        return self._run.path / ".hub"

    @property
    def _remote(self) -> str:
        return f"runs/{self._run.path.name}"

    def _read_tally(self) -> Tally:
        assert self._repo is not None
        if self._run.hub.is_file():
            with suppress(TypeError):  # written by another version
                return Tally(**read_json(self._run.hub))
        return Tally(self._repo)
