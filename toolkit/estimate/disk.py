"""How much of the disk each step of a recipe needs: arithmetic on counts of weights. It looks at no disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from toolkit.llamacpp import weights_bytes

if TYPE_CHECKING:
    from toolkit.estimate.shape import Shape
    from toolkit.recipe import Recipe

VOCABULARY_BYTES = 50_000_000
"""Room for tokens, merges and alignment in one file; the largest vocabularies in use need half of it."""
COMPLETION_BYTES_PER_TOKEN = 6
"""Of the table of completions and the metrics, compressed, with the rewards of each (measured: 4 to 5)."""
CHECKPOINTS = 3
"""Two are kept (`save_total_limit`), and a third is there while it is written."""

Place = Literal["hub", "cache", "runs", "exports"]


@dataclass(frozen=True, slots=True)
class Need:
    """What one thing takes, in bytes, and the folder that it lies in."""

    what: str
    size: int
    place: Place


def run_needs(recipe: Recipe, shape: Shape) -> list[Need]:
    """What training writes into its run."""
    adapter, whole = 4 * _trained(recipe, shape), recipe.model.full_finetuning
    completions = recipe.grpo.completions_per_step * recipe.grpo.max_steps * (1 + recipe.grpo.resample_rounds)
    tokens = completions * recipe.grpo.max_completion_length
    return [
        Need(f"checkpoints ({'model' if whole else 'adapter'} and optimiser)", CHECKPOINTS * 3 * adapter, "runs"),
        Need("trained models" if whole else "adapters", (2 if recipe.warmup is None else 3) * adapter, "runs"),
        Need("completions, at most", COMPLETION_BYTES_PER_TOKEN * tokens, "runs"),
    ]


def _trained(recipe: Recipe, shape: Shape) -> int:
    """Weights that are trained: the adapter's, or all."""
    lora = recipe.model.lora
    if recipe.model.full_finetuning:
        return shape.weights
    return shape.layers * sum(lora.r * sum(shape.projections[name]) for name in lora.target_modules)


def export_needs(recipe: Recipe, shape: Shape) -> list[Need]:
    """What the export writes: the merged folder and each GGUF file."""
    export = recipe.export
    adapter = 0 if recipe.model.full_finetuning else 4 * _trained(recipe, shape)
    odd = any(inputs % 256 for inputs, _ in shape.projections.values())
    width = 4 if export.is_wide else 2
    needs = [Need("merged folder", width * shape.weights + 4 * adapter, "exports")]
    for kind in export_types(export.gguf, "f32" if export.is_wide else "f16"):
        size = gguf_bytes(kind, matrices=shape.matrices, embeddings=shape.embeddings, odd_rows=odd)
        needs.append(Need(f"GGUF {kind}", size, "exports"))
    largest = max((need.size for need in needs[1:]), default=0)
    if export.max_shard_bytes is not None and largest > export.max_shard_bytes:
        needs.append(Need("a GGUF file while it is split", largest, "exports"))
    return needs


def export_types(kinds: Sequence[str], source: Literal["f32", "f16"]) -> list[str]:
    """The GGUF files of an export: those that are asked for, and the conversion that quants come from, which is one of them or
    goes away at the end."""
    own = {"f32"} if source == "f32" else {"f16", "bf16"}
    return [*kinds, *([source] if kinds and not own & set(kinds) else [])]


def gguf_bytes(kind: str, *, matrices: int, embeddings: int, odd_rows: bool) -> int:
    """Upper estimate of one GGUF file."""
    return weights_bytes(kind, matrices=matrices, embeddings=embeddings, odd_rows=odd_rows) + VOCABULARY_BYTES
