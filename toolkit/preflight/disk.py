"""Whether the disks hold what a recipe writes, whether it may be written there, and whether its paths are short enough."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.engine.gguf_checkpoint import LAYOUT
from toolkit.engine.source import is_hub_name, local_path
from toolkit.estimate.disk import Need, Place, export_needs, run_needs
from toolkit.preflight.finding import Finding, Status
from toolkit.rundir import EXPORTS, RUNS, cache_folder

if TYPE_CHECKING:
    from toolkit.estimate import Shape
    from toolkit.recipe import Recipe

SPARE = 1.1
"""So much more than the estimate should be free."""
LONGEST_FILE = "checkpoints/checkpoint-100000/.adapter_model.safetensors.12345.tmp"
"""The longest path that is made below a run, and it is longer than any below an export's `merged/`."""
STAMP = "-20260101-120000-2"


def folders() -> dict[Place, Path]:
    """Where each kind of file lies."""
    try:
        from huggingface_hub.constants import HF_HUB_CACHE
    except ImportError:
        HF_HUB_CACHE = str(Path.home() / ".cache" / "huggingface" / "hub")
    return {"hub": Path(HF_HUB_CACHE), "cache": cache_folder(), "runs": RUNS, "exports": EXPORTS}


def needs(recipe: Recipe, shape: Shape, *, fetch_bytes: int) -> list[Need]:
    """Everything that all steps of the recipe write, but what is there already."""
    return [*_base(recipe, shape, fetch_bytes), *run_needs(recipe, shape), *export_needs(recipe, shape)]


def _base(recipe: Recipe, shape: Shape, fetch_bytes: int) -> Iterator[Need]:
    if fetch_bytes:
        yield Need("from the Hub", fetch_bytes, "hub")
    if is_hub_name(recipe.model.source):
        return
    file = local_path(recipe.model.source)
    made = (cache_folder() / "checkpoints").glob(f"{file.stem}-*-v{LAYOUT}")
    if file.is_file() and not any(made):
        yield Need("checkpoint of the GGUF file", 2 * shape.weights, "cache")


def disk_findings(wanted: Sequence[Need], *, now: frozenset[Place]) -> Iterator[Finding]:
    """Each need, and each file system with all needs on it together. What does not fit stops a training where its own files,
    or those of the steps that follow at once (`now`), are among them."""
    places = folders()
    for need in wanted:
        yield Finding("disk", need.what, f"{_gb(need.size)} in {_shown(places[need.place])}")
    systems: dict[int, list[Need]] = {}
    for need in wanted:
        systems.setdefault(_existing(places[need.place]).stat().st_dev, []).append(need)
    for on_it in systems.values():
        yield _file_system(on_it, places, now)


def _file_system(on_it: list[Need], places: dict[Place, Path], now: frozenset[Place]) -> Finding:
    free = shutil.disk_usage(_existing(places[on_it[0].place])).free
    whole, soon = sum(need.size for need in on_it), sum(need.size for need in on_it if need.place in now)
    status: Status = "failed" if soon > free else "warning" if whole * SPARE > free else "ok"
    where = ", ".join(dict.fromkeys(_shown(places[need.place]) for need in on_it))
    hint = "toolkit runs clean; fewer types in export.gguf; or another disk: HF_HOME, TOOLKIT_CACHE"
    value = f"{_gb(whole)} of {_gb(free)} free"
    return Finding("disk", f"together in {where}", value, status, None if status == "ok" else hint)


def _gb(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.1f} GB" if size_bytes >= 5e7 else f"{size_bytes / 1e6:.1f} MB"


def _shown(folder: Path) -> str:
    """Shortened to the home folder, which a report need not name."""
    try:
        return f"~/{folder.relative_to(Path.home())}"
    except (ValueError, RuntimeError):
        return str(folder)


def _existing(folder: Path) -> Path:
    """The nearest folder above that is there."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())


def writable_findings(places: Sequence[Place]) -> Iterator[Finding]:
    """One line where all folders can be written to; else one for each that cannot: tried, since permissions are not all."""
    known, bad = folders(), False
    for place in places:
        if problem := _refusal(known[place]):
            bad = True
            hint = (
                "ls -ld, df -h; another folder for caches: HF_HOME, TOOLKIT_CACHE"
                if place in ("hub", "cache")
                else "ls -ld ."
            )
            yield Finding("disk", f"writing to {_shown(known[place])}", problem, "failed", hint)
    if not bad:
        yield Finding("disk", "writing", "allowed in " + ", ".join(_shown(known[place]) for place in places))


def _refusal(folder: Path) -> str | None:
    there = _existing(folder)
    if not there.is_dir():
        return f"{_shown(there)} is a file"
    try:
        with tempfile.TemporaryFile(dir=there):
            return None
    except OSError as error:
        return error.strerror or type(error).__name__


def path_findings(name: str) -> Iterator[Finding]:
    """Whether the longest name and the longest path that a run makes are allowed where it lies."""
    there, folder = _existing(RUNS), f"{name}{STAMP}"
    try:
        longest_name, longest_path = os.pathconf(there, "PC_NAME_MAX"), os.pathconf(there, "PC_PATH_MAX")
    except (OSError, ValueError, AttributeError):
        return
    file_name = f".{folder}-iq3_xxs-00001-of-00010.gguf.12345.tmp"
    length = len(os.fsencode(RUNS.absolute() / folder / LONGEST_FILE))
    if len(os.fsencode(file_name)) > longest_name:
        what = f"names of its files get {len(os.fsencode(file_name))} bytes, {longest_name} are allowed"
        yield Finding("disk", "names", what, "failed", f"a shorter name for the recipe than {name[:40]}…")
    elif length > longest_path:
        hint = "work in a folder nearer to the root"
        yield Finding("disk", "paths", f"up to {length} bytes, {longest_path} are allowed", "failed", hint)
    else:
        yield Finding("disk", "longest path", f"{length} of {longest_path} bytes")
