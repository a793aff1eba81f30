"""Every artefact's path by name, and which of them are the newest, held, or chosen.

A run is `runs/<recipe>-<time>/`, an export `exports/<run>/`. What the files mean stands in the steps that write them.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any

from toolkit.atomic import read_json
from toolkit.errors import ExportError, ToolkitError, nearest

SCHEMA = 1
"""Version of the JSON records (`recipe.json` excepted: it is the recipe itself)."""

RUNS = Path("runs")
EXPORTS = Path("exports")
SWEEPS = Path("sweeps")
_STAMPED = re.compile(r"(.+)-(\d{8})-\d{6}(-\d+)?")


@dataclass(frozen=True, slots=True)
class RunDir:
    """The files of one run, by name."""

    path: Path

    @property
    def recipe(self) -> Path:
        """The resolved recipe: written first."""
        return self.path / "recipe.json"

    @property
    def manifest(self) -> Path:
        """Versions, machine, data and base model, and every value the machine made the toolkit change."""
        return self.path / "manifest.json"

    @property
    def state(self) -> Path:
        """Whether the run is running, stopped, done or failed, and at which step."""
        return self.path / "state.json"

    @property
    def metrics(self) -> Path:
        """One JSON object a step."""
        return self.path / "metrics.jsonl"

    @property
    def completions(self) -> Path:
        """A folder with one parquet file a step."""
        return self.path / "completions"

    @property
    def checkpoints(self) -> Path:
        """What an interrupted run continues from."""
        return self.path / "checkpoints"

    @property
    def warmup_adapter(self) -> Path:
        """The adapter after the supervised pass: complete or absent."""
        return self.path / "warmup"

    @property
    def adapter(self) -> Path:
        """What was trained, the adapter or, after full fine-tuning, `whole`: complete or absent."""
        return self.whole if self.whole.is_dir() else self.path / "adapter"

    @property
    def whole(self) -> Path:
        """The whole model as it was trained, where a recipe asks for full fine-tuning: complete or absent."""
        return self.path / "model"

    @property
    def evaluation(self) -> Path:
        """The record of `toolkit eval`."""
        return self.evaluation_of(None)

    def evaluation_of(self, name: str | None) -> Path:
        """The record of an evaluation set; None: of the run's own held-out rows."""
        return self.path / ("eval.json" if name is None else f"eval-{name}.json")

    def answers_of(self, name: str | None) -> Path:
        """Every completion of that evaluation."""
        return self.path / ("eval_completions.parquet" if name is None else f"eval-{name}_completions.parquet")

    def evaluating(self, name: str | None) -> Path:
        """A folder with what an evaluation that has not ended has so far."""
        return self.path / ".evaluating" / (name or "own")

    @property
    def best(self) -> Path:
        """A folder with the adapters that were best on held-out rows so far, by step."""
        return self.path / "best"

    @property
    def harnesses(self) -> Path:
        """A folder with what EleutherAI's harness wrote, by task."""
        return self.path / "harness"

    def checkpoint_folders(self) -> dict[int, Path]:
        """The checkpoints that were written to their end (their state file is written last), by step."""
        found = {int(path.name.rpartition("-")[2]): path for path in self.checkpoints.glob("checkpoint-*")}
        return {step: path for step, path in sorted(found.items()) if (path / "trainer_state.json").is_file()}

    def adapters(self, steps: Sequence[int] = ()) -> dict[str, Path]:
        """The adapters that are there by the name of their model, in the order of training, and those of these steps."""
        saved = self.checkpoint_folders()
        named = {"warmup": self.warmup_adapter, **{f"step{step}": saved[step] for step in steps}, "tuned": self.adapter}
        return {name: folder for name, folder in named.items() if folder.is_dir()}

    @property
    def doctor(self) -> Path:
        """The record of `toolkit doctor`."""
        return self.path / "doctor.json"

    @property
    def report(self) -> Path:
        """The page of `toolkit report`."""
        return self.path / "report.html"

    @property
    def lock(self) -> Path:
        """An empty file that the process which trains the run has locked (`holding`)."""
        return self.path / ".lock"

    @property
    def hub(self) -> Path:
        """How many checkpoints went to the Hub, and how many did not."""
        return self.path / "hub.json"

    @property
    def eval_completions(self) -> Path:
        """Every completion of the evaluation, one row each."""
        return self.answers_of(None)


@dataclass(frozen=True, slots=True)
class ExportDir:
    """The files of one export, by name. GGUF files lie directly in it, named in the manifest."""

    path: Path

    @property
    def recipe(self) -> Path:
        """The resolved recipe of the run."""
        return self.path / "recipe.json"

    @property
    def merged(self) -> Path:
        """The merged model: a folder."""
        return self.path / "merged"

    @property
    def manifest(self) -> Path:
        """The files with their hashes: written last."""
        return self.path / "manifest.json"

    @property
    def certificate(self) -> Path:
        """The record of `toolkit verify`."""
        return self.path / "verify.json"

    @property
    def certificate_text(self) -> Path:
        """The same for readers; written after it."""
        return self.path / "CERTIFICATE.md"

    @property
    def is_verified(self) -> bool:
        """Whether it has a certificate that passed. Whether that is about the bytes that lie here, `push` asks."""
        return self.certificate.is_file() and bool(read_json(self.certificate)["passed"])

    @property
    def recommended(self) -> str | None:
        """The GGUF file that its certificate recommends, where it has one that does."""
        return read_json(self.certificate).get("recommended") if self.certificate.is_file() else None


@dataclass(frozen=True, slots=True)
class SweepDir:
    """The files of a recipe's sweeps, by name. Their runs are runs like others."""

    path: Path

    @property
    def record(self) -> Path:
        """Which variant is which run."""
        return self.path / "sweep.json"

    @property
    def lock(self) -> Path:
        """An empty file that the process which sweeps has locked."""
        return self.path / ".lock"

    def log(self, variant: int) -> Path:
        """All that a variant printed in the last sweep that ran it."""
        return self.path / f"variant-{variant}.log"


def preferred_gguf(files: Sequence[Mapping[str, Any]], *, recommended: str | None = None) -> str | None:
    """Of a manifest's files the one to use first: what the certificate recommends; else q8_0, half the size of f16 and
    nearly as exact; else the first."""
    names = [file["file"] for file in sorted(files, key=lambda file: file["type"] != "q8_0")]
    return recommended if recommended in names else next(iter(names), None)


def chosen_gguf(export: ExportDir, wanted: str | None) -> str:
    """The name of a GGUF file of this export. `wanted` is a name or a type; None takes the one to use first."""
    files: list[dict[str, Any]] = read_json(export.manifest)["files"]
    best = preferred_gguf(files, recommended=export.recommended)
    if best is None:
        hint = f"toolkit export {export.path.name} --format gguf"
        raise ExportError("the export holds no GGUF file", where=str(export.path), hint=hint)
    if wanted is None:
        return best
    for file in files:
        if wanted in (file["file"], file["type"]):
            return file["file"]
    names = [file["file"] for file in files]
    near = nearest(wanted, [*names, *(file["type"] for file in files)])
    hint = f"did you mean {near}?" if near else f"there are: {', '.join(names)}"
    raise ToolkitError(f"the export holds no file {wanted}", where=str(export.path), hint=hint)


def new_run(recipe_name: str, runs: Path = RUNS) -> RunDir:
    """Make a fresh folder; the name carries the local time, and a number where two runs start in one second."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for suffix in ("", *(f"-{number}" for number in range(2, 100))):
        path = runs / f"{recipe_name}-{stamp}{suffix}"
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise ToolkitError(
                f"cannot be made: {error.strerror}", where=str(path), hint="df -h .; ls -ld ."
            ) from error
        return RunDir(path)
    raise ToolkitError("too many runs in one second", where=str(runs))


@contextmanager
def holding(run: RunDir) -> Iterator[None]:
    """Within the block this process alone works on the run. The system lets go when it ends, however it ends."""
    with run.lock.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ToolkitError("another process works on this run", where=str(run.path), hint="toolkit runs") from error
        yield


def is_held(run: RunDir) -> bool:
    """Whether a living process works on the run."""
    try:
        with run.lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


LICENCE_TEXTS = ("LICENSE*", "LICENCE*")
LICENCE_FILES = (*LICENCE_TEXTS, "NOTICE*", "USE_POLICY*")
"""What an export takes over from its base model: it belongs into every repository."""
ADAPTER_WEIGHTS, WHOLE_WEIGHTS = "adapter_model.safetensors", "model.safetensors"


def is_whole(folder: Path) -> bool:
    """Whether this folder of a run, or a checkpoint, holds a whole model (full fine-tuning), and no adapter."""
    return any(folder.glob("model*.safetensors"))


def recipe_of(folder: Path) -> str:
    """The recipe's name in the name of a run or an export; empty where `new_run` did not name it."""
    found = _STAMPED.fullmatch(folder.name)
    return found[1] if found else ""


def day_of(run: str) -> date | None:
    """The day on which a run of this name began; None where `new_run` did not name it."""
    found = _STAMPED.fullmatch(run)
    with suppress(ValueError):  # eight digits that are no date
        return datetime.strptime(found[2], "%Y%m%d").date() if found else None
    return None


def newest_run(runs: Path = RUNS, *, recipe: str | None = None) -> Path | None:
    """The run (of this recipe) whose adapter is the newest; what was not trained to its end has none."""
    return _newest(runs, recipe, lambda path: RunDir(path).adapter)


def newest_unfinished(runs: Path = RUNS, *, recipe: str | None = None) -> Path | None:
    """The run without an adapter that began last: its recipe is written first, and never again."""
    return _newest(runs, recipe, lambda path: RunDir(path).recipe, lambda path: not RunDir(path).adapter.exists())


def newest_export(exports: Path = EXPORTS, *, recipe: str | None = None) -> Path | None:
    """The newest export (of this recipe) with a manifest, which is written last."""
    return _newest(exports, recipe, lambda path: ExportDir(path).manifest)


def _newest(
    parent: Path,
    recipe: str | None,
    artefact: Callable[[Path], Path],
    wanted: Callable[[Path], bool] = lambda _: True,
) -> Path | None:
    """By the time of the artefact. The folder's own time moves when an old run is evaluated, and the time in its name
    is when training began: a run that was interrupted, resumed and finished last is the newest."""
    if not parent.is_dir():
        return None
    found = [path for path in parent.iterdir() if artefact(path).exists() and wanted(path)]
    found = [path for path in found if recipe is None or recipe_of(path) == recipe]
    return max(found, key=lambda path: artefact(path).stat().st_mtime, default=None)


def cache_folder() -> Path:
    """Where converted base models are kept: $TOOLKIT_CACHE, else below the user's cache folder."""
    given = os.environ.get("TOOLKIT_CACHE")
    base = Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "grpo-toolkit"
    return base
