"""The recipe as frozen pydantic models: every key, its meaning, limits and vetted default. It reads no file.

Keys carry the names of TRL, peft and Unsloth where they mean the same. Every default of `grpo` that decides
the algorithm stands here and is passed on explicitly, so that a new TRL does not change a recipe's meaning.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator

from toolkit.recipe.checks import cross_problems
from toolkit.rewards import Reward
from toolkit.tasks import Task

Projection = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
SEVEN_PROJECTIONS: tuple[Projection, ...] = (
    "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
)  # fmt: skip
GgufType = Literal[
    "f32", "f16", "bf16", "q8_0", "q6_k", "q5_k_m", "q5_k_s", "q5_1", "q5_0",
    "q4_k_m", "q4_k_s", "q4_1", "q4_0", "q3_k_l", "q3_k_m", "q3_k_s", "q2_k",
]  # fmt: skip
Optimizer = Literal[
    "adamw_torch", "adamw_torch_fused", "adamw_8bit", "paged_adamw_8bit", "paged_adamw_32bit",
    "adafactor", "lion_8bit", "paged_lion_8bit", "sgd",
]  # fmt: skip
Schedule = Literal["linear", "cosine", "constant", "constant_with_warmup"]


def _some(items: tuple[Any, ...]) -> tuple[Any, ...]:
    # Not min_length: pydantic would also call a list empty whose items are all faulty.
    if not items:
        raise ValueError("must not be empty")
    return items


def _distinct(items: tuple[Any, ...]) -> tuple[Any, ...]:
    twice = [item for index, item in enumerate(items) if item in items[:index]]
    if twice:
        raise ValueError(f"{twice[0]} stands in the list twice")
    return items


def _known_source(source: str) -> str:
    if source.startswith("package:"):
        package, _, file = source.removeprefix("package:").partition("/")
        if not package.isidentifier() or not file:
            raise ValueError("a model in a package is written package:<import name>/<file>.gguf")
    return source


def _repo_name(repo: str) -> str:
    owner, slash, name = repo.partition("/")
    if not (owner and slash and name) or "/" in name or any(character.isspace() for character in repo):
        raise ValueError("a repository on the Hub is written user/name")
    return repo


Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Source = Annotated[Text, AfterValidator(_known_source)]


class Section(BaseModel):
    """What all parts of a recipe share: frozen, no unknown keys, no nan, a docstring under each field."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


class Lora(Section):
    """The adapter (peft's LoraConfig)."""

    r: int = Field(default=16, ge=1, le=1024)
    """Rank of the adapter."""
    lora_alpha: int = Field(default=16, ge=1)
    """Scale of the adapter: its output is multiplied by lora_alpha / r."""
    lora_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout before the adapter; 0 lets Unsloth use its fast kernels."""
    target_modules: Annotated[tuple[Projection, ...], AfterValidator(_some), AfterValidator(_distinct)] = (
        SEVEN_PROJECTIONS
    )
    """Projections that get an adapter."""
    use_rslora: bool = False
    """Scale by lora_alpha / sqrt(r) instead (rank-stabilised LoRA, arXiv 2312.03732)."""


class Model(Section):
    """The base model and how it is loaded."""

    source: Source
    """Hub name `org/name`, a folder, a GGUF file, or in a package: `package:<import name>/<file>.gguf`."""
    revision: Text | None = None
    """Branch, tag or commit of a Hub model."""
    max_seq_length: int = Field(default=1024, ge=32)
    """Longest prompt plus completion, in tokens."""
    load_in_4bit: bool = True
    """Load the base in 4 bits (NF4): a quarter of the memory, a little slower, a little less exact."""
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """Type of the arithmetic and of weights that are not 4-bit; `auto` takes what the machine is good at."""
    fast_inference: bool = False
    """Generate with vLLM inside Unsloth (needs a GPU)."""
    gpu_memory_utilization: float = Field(default=0.6, gt=0, le=1)
    """Share of the GPU's memory that vLLM may take."""
    lora: Lora = Lora()
    """The adapter."""


class Warmup(Section):
    """A short supervised pass over worked solutions before GRPO, so that there is something to reward."""

    max_steps: int = Field(default=20, ge=1)
    """Optimiser steps."""
    batch_size: int = Field(default=8, ge=1)
    """Worked solutions per step."""
    learning_rate: float = Field(default=5e-4, gt=0, lt=1)
    """Peak learning rate."""

    @property
    def rows(self) -> int:
        """How many worked solutions the pass reads."""
        return self.max_steps * self.batch_size


class Grpo(Section):
    """The reinforcement learning (TRL's GRPOConfig; GRPO: arXiv 2402.03300)."""

    num_generations: int = Field(default=8, ge=2)
    """Group size: completions per prompt. Their rewards are compared with each other."""
    prompts_per_step: int = Field(default=8, ge=1)
    """Prompts per optimiser step; completions per step = prompts_per_step * num_generations."""
    max_steps: int = Field(default=250, ge=1)
    """Optimiser steps."""
    learning_rate: float = Field(default=5e-6, gt=0, lt=1)
    """Peak learning rate."""
    temperature: float = Field(default=1.0, gt=0, le=10)
    """Sampling temperature; at 0 all completions of a group would be equal and nothing could be learned."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Sample from the most likely tokens that together hold this probability."""
    top_k: int = Field(default=0, ge=0)
    """Sample from this many most likely tokens; 0 = all."""
    min_p: float | None = Field(default=None, ge=0, le=1)
    """Drop tokens less likely than this share of the likeliest one's probability."""
    repetition_penalty: float = Field(default=1.0, gt=0)
    """Above 1 makes repeated tokens less likely while sampling."""
    max_prompt_length: int = Field(default=256, ge=1)
    """Rows whose prompt has more tokens (after the chat template) are dropped and counted."""
    max_completion_length: int = Field(default=256, ge=1)
    """Longest completion, in tokens; longer ones are cut."""
    beta: float = Field(default=0.0, ge=0)
    """Weight of the KL penalty against the base model; 0 needs no reference model (arXiv 2503.14476)."""
    loss_type: Literal["grpo", "bnpo", "dr_grpo", "dapo"] = "grpo"
    """How token losses average: grpo per completion, bnpo and dapo over tokens, dr_grpo by a constant."""
    scale_rewards: Literal["group", "batch", "none"] = "group"
    """Divide advantages by the standard deviation of the group, of the batch, or not at all (Dr. GRPO)."""
    importance_sampling_level: Literal["token", "sequence"] = "token"
    """Probability ratio per token, or one per completion (GSPO, arXiv 2507.18071)."""
    epsilon: float = Field(default=0.2, ge=0, lt=1)
    """Lower clipping range of the ratio."""
    epsilon_high: float = Field(default=0.2, ge=0)
    """Upper clipping range of the ratio (DAPO, arXiv 2503.14476, uses 0.28)."""
    delta: float | None = Field(default=None, gt=0)
    """Hard upper bound of the ratio where the advantage is negative; must be above 1 + epsilon."""
    num_iterations: int = Field(default=1, ge=1)
    """Optimiser passes over each batch of completions (mu in the paper)."""
    mask_truncated_completions: bool = False
    """Leave completions that were cut out of the loss."""
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    """Adam's first decay rate."""
    adam_beta2: float = Field(default=0.99, ge=0, lt=1)
    """Adam's second decay rate."""
    weight_decay: float = Field(default=0.1, ge=0)
    """Decoupled weight decay."""
    warmup_steps: float = Field(default=0.1, ge=0)
    """Steps in which the learning rate rises; below 1 a share of max_steps (once called warmup_ratio)."""
    lr_scheduler_type: Schedule = "cosine"
    """How the learning rate falls."""
    optim: Optimizer = "adamw_8bit"
    """Optimiser; what a machine cannot do is replaced, shown and recorded."""
    max_grad_norm: float = Field(default=0.1, gt=0)
    """Gradients are scaled down to this norm."""
    per_device_train_batch_size: int | None = Field(default=None, ge=1)
    """Completions in one backward pass; null = chosen for the machine. Memory only, not the result."""
    gradient_checkpointing: bool = True
    """Recompute activations in the backward pass: less memory, a third more time."""
    save_steps: int = Field(default=50, ge=1)
    """Steps between checkpoints."""

    @property
    def completions_per_step(self) -> int:
        """Completions in one optimiser step."""
        return self.num_generations * self.prompts_per_step


class Eval(Section):
    """What is measured on held-out rows after training, for base and tuned alike."""

    rows: int = Field(default=300, ge=1)
    """Held-out rows to ask."""
    samples: int = Field(default=4, ge=1)
    """Samples per row at the training temperature, for pass@1."""
    greedy: bool = True
    """Also answer once without sampling."""
    batch_size: int = Field(default=32, ge=1)
    """Completions generated together. Speed and memory only."""


class Export(Section):
    """The files that leave."""

    merged: bool = True
    """A 16-bit folder with the adapter merged into the base."""
    gguf: Annotated[tuple[GgufType, ...], AfterValidator(_distinct)] = ("f16", "q8_0", "q4_k_m")
    """GGUF types for llama.cpp, Ollama and Open WebUI."""


class Hub(Section):
    """Where a verified export may be pushed to."""

    repo: Annotated[Text, AfterValidator(_repo_name)] | None = None
    """Repository on the Hugging Face Hub, `user/name`, for `toolkit push`."""
    private: bool = True
    """Create it as a private repository, and push into no public one."""


class Recipe(Section):
    """Everything that makes a run, resolved."""

    description: str = ""
    """One line for `toolkit recipes`."""
    seed: int = Field(default=3407, ge=0, lt=2**32)
    """Seed of shuffling, sampling and the adapter's first weights."""
    model: Model
    """The base model and how it is loaded."""
    task: Task
    """Where rows come from and how an answer is graded."""
    rewards: Annotated[tuple[Reward, ...], AfterValidator(_some)]
    """What a completion is paid for; the total is the weighted sum."""
    warmup: Warmup | None = None
    """Supervised pass before GRPO; null or absent = off."""
    grpo: Grpo = Grpo()
    """The reinforcement learning."""
    eval: Eval = Eval()
    """What is measured afterwards."""
    export: Export = Export()
    """The files that leave."""
    hub: Hub = Hub()
    """Where a verified export may be pushed to."""

    @model_validator(mode="after")
    def _agree(self) -> Recipe:
        problems = cross_problems(self)
        if problems:
            raise ValueError("; ".join(f"{problem.keys[0]}: {problem.message}" for problem in problems))
        return self
