"""How much memory a training takes, term by term: arithmetic on a shape, a recipe and a machine. It loads and measures nothing.

What is held all the time: libraries, weights, adapter, gradients, optimiser. On top of it comes the largest of what takes turns:
the warm-up, then in every step drawing completions, and the backward pass over them. Sources of the formulas: docs/preflight.md. The
coefficients of the CPU path are checked against measured peaks (tests/test_memory_estimate.py); those of GPUs are read in the
libraries' source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from toolkit.engine.lean import HEAD_ROWS
from toolkit.engine.lean_packed import FEW_PRODUCTS
from toolkit.engine.machine import Machine, Setting, resolve

if TYPE_CHECKING:
    from toolkit.estimate.shape import Shape
    from toolkit.recipe import Recipe

GIB = 2**30
MARGIN = 0.2
"""The estimate is held to 20 % of measured peaks; so much it may be off."""
LIBRARIES_GIB = 0.68
"""On a CPU: Unsloth, TRL and datasets imported, a trainer built (0.62 to 0.70). Measured with torch 2.13; what passes leave in the
C library's heap is little since large blocks go back (`engine.machine.return_large_blocks`)."""
CONTEXT_GIB = 0.6
"""A CUDA context with cuBLAS's workspaces, before the first tensor (0.4 to 0.7, by card and driver)."""
NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
"""A weight in NF4 with double quantisation (QLoRA, arXiv 2305.14314, section 3): 4 bits, an 8-bit constant for each block of
64, and a 32-bit one for each 256 of those."""
OPTIMIZER_BYTES = {"adamw_8bit": 2, "paged_adamw_8bit": 2, "lion_8bit": 1, "paged_lion_8bit": 1, "sgd": 0}
"""State for each trained weight; 8 (two moments in float32) where nothing else is said. Adafactor's is counted apart."""
DRAW_LOGITS_BYTES = 24
"""For each entry of [rows, vocabulary] while a token is drawn: logits, scaled, probabilities, their blocks and sums, in float32."""
VLLM_LIBRARIES_GIB = 0.8
"""vLLM imported beside Unsloth, its engine built."""

SENT_BYTES = {"cuda": 3 * GIB, "cpu": float("inf")}
"""What of the weights is copied at a time for a vLLM server: two packed buffers of 1 GiB (vLLM's `packed_tensor.py`) and what one
is packed from; all of them where they go as files."""

Phase = Literal["always", "warm-up", "generation", "backward"]
GENERATION_ROWS = 128
"""Completions that are drawn together at most (`Draws.batch_rows`)."""


@dataclass(frozen=True, slots=True)
class Term:
    """One part of the memory. `how`: the formula with its figures."""

    name: str
    gib: float
    how: str
    phase: Phase = "always"


@dataclass(frozen=True, slots=True)
class Estimate:
    """All terms for one machine."""

    machine: Machine
    setting: Setting
    terms: tuple[Term, ...]

    @property
    def gib(self) -> float:
        """The peak: what is always held, and the largest of the phases."""
        return self.of("always") + max(self.of("warm-up"), self.of("generation"), self.of("backward"))

    @property
    def low(self) -> float:
        return self.gib * (1 - MARGIN)

    @property
    def high(self) -> float:
        return self.gib * (1 + MARGIN)

    @property
    def verdict(self) -> Literal["fits", "tight", "too large"]:
        """Too large: even with the margin in its favour. On a GPU some of the memory is never to be had (fragments, the desktop)."""
        have = self.machine.memory_gib
        return "too large" if self.low > have else "tight" if self.high > have else "fits"

    def of(self, phase: Phase) -> float:
        return sum(term.gib for term in self.terms if term.phase == phase)

    def as_json(self) -> dict[str, Any]:
        """The estimate for a program."""
        return {
            "machine": self.machine.name,
            "memory_gib": self.machine.memory_gib,
            "batch_rows": self.setting.batch_rows,
            "peak_gib": round(self.gib, 3),
            "range_gib": [round(self.low, 3), round(self.high, 3)],
            "verdict": self.verdict,
            "terms": {f"{term.phase}: {term.name}": round(term.gib, 4) for term in self.terms},
        }


def estimate(recipe: Recipe, shape: Shape, machine: Machine, setting: Setting | None = None) -> Estimate:
    """The memory of training this recipe on this machine, its completions as long as they may be."""
    setting = setting or resolve(recipe, machine)
    counts = _Counts(recipe, shape, setting)
    terms = [*_held(counts, machine), *_warmup(counts), *_generation(counts, machine), *_backward(counts)]
    return Estimate(machine, setting, tuple(term for term in terms if term.gib > 0))


@dataclass(frozen=True, slots=True)
class _Counts:
    """What several terms share."""

    recipe: Recipe
    shape: Shape
    setting: Setting

    @property
    def wide(self) -> int:
        """Bytes of a number that is not quantised."""
        return 4 if self.setting.dtype == "float32" else 2

    @property
    def whole(self) -> bool:
        """Whether all weights are trained: they are held in float32."""
        return self.recipe.model.full_finetuning

    @property
    def in_4bit(self) -> bool:
        return not self.whole and ((self.recipe.model.load_in_4bit and not self.in_8bit) or self.shape.quantized)

    @property
    def in_8bit(self) -> bool:
        return self.setting.load_in_8bit

    @property
    def trained(self) -> int:
        """Weights of the adapter: r * (inputs + outputs) of every projection that has one (LoRA, arXiv 2106.09685); or all."""
        if self.whole:
            return self.shape.weights
        lora = self.recipe.model.lora
        return self.shape.layers * sum(lora.r * sum(self.shape.projections[name]) for name in lora.target_modules)

    @property
    def rows(self) -> int:
        return self.setting.batch_rows

    @property
    def lengths(self) -> tuple[int, int]:
        return self.recipe.grpo.max_prompt_length, self.recipe.grpo.max_completion_length

    @property
    def is_lean(self) -> bool:
        """Whether the backward pass goes the way of `engine.lean`, in which a group computes its prompt once."""
        return self.setting.device == "cpu" and self.recipe.grpo.beta == 0 and self.shape.window is None

    @property
    def is_fused(self) -> bool:
        """Whether `engine.lean_layers` computes the adapters: plain ones, beside weights that are not quantised."""
        plain = not (self.in_4bit or self.whole or self.recipe.model.lora.lora_dropout)
        return self.setting.device == "cpu" and plain

    @property
    def groups(self) -> int:
        """Prompts of one backward pass, where it has each once."""
        return -(-self.rows // self.recipe.grpo.num_generations)

    @property
    def tokens(self) -> int:
        """Positions of one backward pass."""
        prompt, completion = self.lengths
        if not self.is_lean:
            return self.rows * (prompt + completion)
        return self.groups * prompt + self.rows * completion


def _term(name: str, size_bytes: float, how: str, phase: Phase = "always") -> Term:
    return Term(name, size_bytes / GIB, how, phase)


def _held(counts: _Counts, machine: Machine) -> list[Term]:
    trained = counts.trained
    base = CONTEXT_GIB if machine.device == "cuda" else LIBRARIES_GIB
    terms = [Term("CUDA context" if machine.device == "cuda" else "Python and libraries", base, "measured")]
    terms += _weights(counts)
    how = f"{trained / 1e6:.1f}M weights of rank {counts.recipe.model.lora.r}"
    terms += [] if counts.whole else [_term("adapter", 4 * trained, f"{how}, 4 bytes each")]
    terms.append(_term("gradients", 4 * trained, "4 bytes each"))
    terms.append(_term(f"optimiser ({counts.setting.optim})", _optimizer_bytes(counts), "its moments"))
    return terms


def _weights(counts: _Counts) -> list[Term]:
    shape, wide = counts.shape, counts.wide
    outside = shape.embeddings + shape.other_weights
    if counts.in_8bit and not shape.quantized:
        how = f"{shape.matrices / 1e6:.0f}M of 1 byte, {outside / 1e6:.0f}M of {wide} (LLM.int8())"
        return [_term("weights in 8 bits", shape.matrices + outside * wide, how)]
    if not counts.in_4bit:
        stored = 4 if counts.whole else wide
        return [_term("weights", shape.weights * stored, f"{shape.weights / 1e6:.0f}M, {stored} bytes each")]
    kept = _kept_wide(shape)
    packed = shape.matrices - kept
    terms = [
        _term("weights in 4 bits", packed * NF4_BYTES, f"{packed / 1e6:.0f}M, {NF4_BYTES:.3f} bytes each (NF4)"),
        _term("embeddings, 16-bit parts", (outside + kept) * wide, f"{(outside + kept) / 1e6:.0f}M, {wide} bytes each"),
    ]
    if counts.setting.device == "cpu" and not shape.quantized:
        terms.append(_term("16-bit file, mapped", packed * 2, "read for the 4 bits; the system may take it back"))
    return terms


def _kept_wide(shape: Shape) -> int:
    """Weights of the layers' matrices that a 4-bit copy holds in 16 bits (Unsloth's dynamic quantisation)."""
    sizes = {name: rows * columns for name, (rows, columns) in shape.projections.items()}
    named = [module.rpartition(".")[2] for module in shape.wide_modules if ".layers." in f".{module}."]
    whole = {"self_attn": ("q_proj", "k_proj", "v_proj", "o_proj"), "mlp": ("gate_proj", "up_proj", "down_proj")}
    return sum(sum(sizes.get(part, 0) for part in whole.get(name, (name,))) for name in named)


def _optimizer_bytes(counts: _Counts) -> float:
    if counts.setting.optim == "adafactor":  # a row and a column for each matrix (arXiv 1804.04235)
        lora, shape = counts.recipe.model.lora, counts.shape
        if counts.whole:
            return 4 * (shape.layers * sum(sum(sizes) for sizes in shape.projections.values()) + 2 * shape.vocabulary)
        return 4 * shape.layers * sum(2 * lora.r + sum(shape.projections[name]) for name in lora.target_modules)
    return OPTIMIZER_BYTES.get(counts.setting.optim, 8) * counts.trained


def _generation(counts: _Counts, machine: Machine) -> list[Term]:
    if counts.setting.generator == "unsloth":
        return _of_unsloths_vllm(counts, machine)
    grpo, shape, wide = counts.recipe.grpo, counts.shape, counts.wide
    if counts.setting.generator == "server":
        size = min(SENT_BYTES[counts.setting.device], shape.weights * wide)
        return [_term("a copy of the weights", size, "on their way to the vLLM server", "generation")]
    if counts.setting.generator == "vllm":
        rows = min(GENERATION_ROWS, max(grpo.completions_per_step, counts.recipe.eval.batch_size))
        how = f"{shape.weights / 1e6:.0f}M, {wide} bytes each, a second time"
        return [
            _term("vLLM's weights", shape.weights * wide, how),
            _term("vLLM's KV cache", *_cache(counts, rows)),
            Term("vLLM's libraries", VLLM_LIBRARIES_GIB, "estimated"),
        ]
    rows = min(grpo.completions_per_step, GENERATION_ROWS)
    terms = [
        _term("KV cache", *_cache(counts, rows), "generation"),
        _term("drawing a token", DRAW_LOGITS_BYTES * rows * shape.vocabulary, f"{rows} × vocabulary", "generation"),
    ]
    if not (counts.in_4bit or counts.in_8bit or counts.whole):
        how = "while completions are drawn"  # with the adapter added into the weights (`engine.load`)
        terms.append(_term("a copy of adapted weights", _adapted(counts) * wide, how, "generation"))
    return terms


def _cache(counts: _Counts, rows: int) -> tuple[float, str]:
    """Keys and values of every layer, in bytes, and the formula."""
    shape, length = counts.shape, sum(counts.lengths)
    entries = 2 * shape.layers * shape.key_heads * shape.head_size * rows * length
    return entries * counts.wide, f"{rows} completions of {length} tokens, keys and values"


def _of_unsloths_vllm(counts: _Counts, machine: Machine) -> list[Term]:
    """What vLLM's share holds beside the weights, which it has in common with the training; asleep it gives that back."""
    share = counts.recipe.model.gpu_memory_utilization
    weights = sum(term.gib for term in _weights(counts))
    least = _cache(counts, counts.recipe.grpo.num_generations)[0] / GIB
    rest = max(least, share * machine.memory_gib - weights)
    how = f"{share:g} of {machine.memory_gib:g} GiB (model.gpu_memory_utilization) without the weights"
    return [Term("vLLM's KV cache", rest, how, "generation" if counts.setting.standby else "always")]


def _adapted(counts: _Counts) -> int:
    sizes = counts.shape.projections
    return counts.shape.layers * sum(
        sizes[name][0] * sizes[name][1] for name in counts.recipe.model.lora.target_modules
    )


def _warmup(counts: _Counts) -> list[Term]:
    """The supervised pass. Its logits are computed in pieces (Unsloth's cross-entropy), and do not count."""
    if counts.recipe.warmup is None:
        return []
    tokens = counts.recipe.warmup.batch_size * sum(counts.lengths)
    return [_activations(counts, tokens, _layer_bytes(counts), "warm-up")]


def _backward(counts: _Counts) -> list[Term]:
    each, tokens = _layer_bytes(counts), counts.tokens
    if counts.is_lean:
        each += (
            round(_packed_attention(counts) / tokens)
            - 2 * counts.wide * counts.shape.key_heads * counts.shape.head_size
        )
    return [_activations(counts, tokens, each, "backward"), _term("logits", *_logits(counts), "backward")]


def _layer_bytes(counts: _Counts) -> int:
    return layer_bytes(counts.shape, counts.wide, fused_rank=counts.recipe.model.lora.r if counts.is_fused else None)


def _packed_attention(counts: _Counts) -> int:
    """Bytes that one layer of a packed pass keeps of its attention beyond queries and result (`engine.lean_packed`).

    Keys and values stand there once for every completion that sees them. Few products are kept, in float32 and once more; else
    PyTorch's kernel keeps their mask and its result.
    """
    shape, wide, (prompt, completion) = counts.shape, counts.wide, counts.lengths
    total = 0
    for rows, tokens, seen in ((counts.groups, prompt, prompt), (counts.rows, completion, prompt + completion)):
        products = rows * tokens * seen * shape.heads
        few = products <= FEW_PRODUCTS
        total += 2 * wide * rows * seen * shape.key_heads * shape.head_size
        total += (1 if few else wide) * products // shape.key_heads  # the mask
        total += (6 if wide == 2 else 4) * products if few else wide * rows * tokens * shape.heads * shape.head_size
    return total


def _activations(counts: _Counts, tokens: int, each: int, phase: Phase) -> Term:
    """`each`: bytes of one token in one layer."""
    layers = counts.shape.layers
    if not counts.recipe.grpo.gradient_checkpointing:
        how = f"{tokens} tokens, {layers} layers, {each} bytes each"
        return _term("activations", tokens * layers * each, how, phase)
    # On a GPU Unsloth moves what is kept between the layers into the machine's own memory.
    between = 0 if counts.setting.device == "cuda" else layers * counts.shape.hidden * counts.wide
    return _term("activations", tokens * (between + each), f"{tokens} tokens: one layer at a time, recomputed", phase)


def layer_bytes(shape: Shape, wide: int, *, fused_rank: int | None = None) -> int:
    """What autograd keeps of one position in one layer with adapters on its projections.

    Counted in transformers' Llama. With fused adapters of this rank (`engine.lean_layers`): the norms' inputs in float32, and in the
    arithmetic's own type, their results, queries, keys, values and what was attended, the MLP's gate, its activation, the other
    half and their product, and the inner side of seven adapters. Under peft 0.21 (None), whose adapters are float32: in 16 bits
    a float32 copy of every projection's input besides. In float32 the copies are the tensors themselves. (None) is an upper bound
    for full fine-tuning, too, which keeps a copy in 16 bits for every projection and what the norms made of their input.
    """
    hidden, queries, inner = shape.hidden, shape.heads * shape.head_size, shape.intermediate
    if fused_rank is not None:
        keys = shape.key_heads * shape.head_size
        return 8 * hidden + wide * (2 * hidden + 2 * queries + 2 * keys + 4 * inner + 7 * fused_rank)
    if wide == 4:
        return 16 * hidden + 16 * queries + 16 * inner
    return 28 * hidden + 12 * queries + 10 * inner


def _logits(counts: _Counts) -> tuple[float, str]:
    """Bytes, and the formula. `tokens`: of the completions alone, which are all that is scored."""
    tokens, vocabulary = counts.rows * counts.lengths[1], counts.shape.vocabulary
    if counts.is_lean:
        # The logits of every token are kept for the backward pass; two in float32 are held for a few tokens at a time.
        held, wide = min(tokens, HEAD_ROWS), counts.wide
        return (
            wide * tokens + 8 * held
        ) * vocabulary, f"{tokens} tokens × {vocabulary}, {wide} bytes; 8 more for {held}"
    if counts.setting.device == "cuda":
        # Unsloth scores in at least four parts and recomputes each (unsloth_zoo 2026.10, autotune_batch_and_chunks).
        return 10 * tokens * vocabulary / 4, f"{tokens} tokens × {vocabulary}, 10 bytes, in four parts"
    return TRL_LOGITS_BYTES * tokens * vocabulary, f"{tokens} tokens × {vocabulary}, {TRL_LOGITS_BYTES} bytes"


TRL_LOGITS_BYTES = 16
"""TRL's own loss on a CPU, for each token and entry of the vocabulary: logits, scaled, log-probabilities and their gradients."""
