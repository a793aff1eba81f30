"""Where the records of half a task come from: a file on this machine, or a split of a data set on the Hub. It builds no rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pydantic import Field, model_validator

from toolkit.errors import DataError, KeyFault, MissingExtraError
from toolkit.tasks.base import Split, TaskBase
from toolkit.tasks.cells import stored
from toolkit.tasks.files import Record, read_file

_SHOWN = 5
_NUMBERED = 40
NO_STREAMING = (
    "streaming is refused: rows are counted, measured and compared before the first step",
    "leave it out; max_train, or train_rows, says how many rows are taken",
)
"""What is wrong with it, and the way out."""


class Source(Protocol):
    """Records with their numbers, and the words for their places."""

    @property
    def name(self) -> str: ...
    @property
    def stamp(self) -> object:
        """Another one where the records may be others."""
        ...

    def records(self) -> Iterator[Record]: ...
    def place(self, number: int) -> str: ...


@dataclass(frozen=True, slots=True)
class FileSource:
    """The records of a file."""

    path: Path

    @property
    def name(self) -> str:
        return str(self.path)

    @property
    def stamp(self) -> tuple[int, int] | None:
        if not self.path.is_file():
            return None
        status = self.path.stat()
        return status.st_mtime_ns, status.st_size

    def records(self) -> Iterator[Record]:
        return read_file(self.path)

    def place(self, number: int) -> str:
        return f"{'row' if self.path.suffix.lower() == '.parquet' else 'line'} {number}"


@dataclass(frozen=True, slots=True)
class HubSource:
    """The records of one split of a data set on the Hub, whole: what is counted and compared is not streamed."""

    dataset: str
    split: str
    config: str | None = None
    revision: str | None = None
    way_out: str | None = None

    @property
    def name(self) -> str:
        return f"{self.dataset}, split {self.split}"

    @property
    def stamp(self) -> None:
        return None

    def records(self) -> Iterator[Record]:
        try:
            import datasets
        except ImportError as cause:
            raise MissingExtraError("datasets", "cpu") from cause
        silent = not Path(self.dataset).is_dir() and not _hub_answers(self.dataset)
        try:
            with _offline() if silent else nullcontext():
                loaded: Any = datasets.load_dataset(self.dataset, self.config, split=self.split, revision=self.revision)
        except Exception as cause:  # the boundary to the Hub: no network, no such revision, a broken cache
            reason = "the Hub does not answer, and no copy is kept here" if silent else cause
            raise DataError(f"cannot be loaded from the Hub: {reason}", where=self.name, hint=self.way_out) from cause
        for number, record in enumerate(loaded, 1):
            yield number, {key: stored(value) for key, value in record.items()}

    def place(self, number: int) -> str:
        return f"row {number}"


def _hub_answers(dataset: str) -> bool:
    """Asked once, briefly: without a network `datasets` asks again and again for half a minute, even for what it keeps."""
    from httpx import TransportError
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        HfApi().dataset_info(dataset, timeout=10)
    except (HfHubHTTPError, ValueError):  # an answer, if no good one, or a name that the Hub cannot have
        return True
    except (TransportError, OSError):
        return False
    return True


@contextmanager
def _offline() -> Iterator[None]:
    """Meanwhile both libraries only look at what they keep on this machine."""
    from datasets import config
    from huggingface_hub import constants

    before = config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before


class FileTask(TaskBase):
    """A task whose rows come from files or from the Hub."""

    train_file: str | None = None
    """File with the training rows: JSONL, JSON, CSV or parquet (docs/data.md)."""
    heldout_file: str | None = None
    """The same for the held-out rows."""
    max_train: int | None = Field(default=None, ge=1)
    """Take only the first so many training rows."""
    max_heldout: int | None = Field(default=None, ge=1)
    """Take only the first so many held-out rows."""

    @model_validator(mode="before")
    @classmethod
    def _whole(cls, data: Any) -> Any:
        """`streaming` is no key. Whoever knows it from `datasets` asks for something that would not work."""
        if not isinstance(data, Mapping) or "streaming" not in data:
            return data
        if data["streaming"] is not False:
            message, hint = NO_STREAMING
            raise KeyFault(message, at=("streaming",), hint=hint)
        return {key: value for key, value in data.items() if key != "streaming"}

    def _file(self, split: Split) -> Path | None:
        given = self.train_file if split == "train" else self.heldout_file
        return Path(given).expanduser() if given else None

    def _limit(self, split: Split) -> int | None:
        return self.max_train if split == "train" else self.max_heldout


def rejection(source: Source, rejected: Sequence[tuple[int, str]], total: int, *, what: str, hint: str) -> DataError:
    """Rows that cannot be used, each with its place: the first ones with the reason, the others by number."""
    shown = [f"{source.place(number)}: {reason}" for number, reason in rejected[:_SHOWN]]
    if rest := [str(number) for number, _ in rejected[_SHOWN:]]:
        shown.append(f"and {', '.join(rest[:_NUMBERED])}" + (", …" if len(rest) > _NUMBERED else ""))
    where = source.name
    if len(rejected) == 1 and isinstance(source, FileSource):
        where = f"{where}:{rejected[0][0]}"
    return DataError(f"{len(rejected)} of {total} rows {what}: {'; '.join(shown)}", where=where, hint=hint)
