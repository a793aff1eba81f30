"""The recipe as frozen pydantic models: every key, its meaning, limits and vetted default. It reads no file.

Keys carry the names of TRL, peft and Unsloth where they mean the same. Every default of `grpo` that decides
the algorithm stands here and is passed on explicitly, so that a new TRL does not change a recipe's meaning.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator

from toolkit.errors import KeyFault
from toolkit.recipe.checks import cross_problems
from toolkit.rewards import Reward
from toolkit.rewards.endpoint import checked_address
from toolkit.tasks import Task

Projection = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
SEVEN_PROJECTIONS: tuple[Projection, ...] = (
    "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
)  # fmt: skip
GgufType = Literal[
    "f32", "f16", "bf16", "q8_0", "q6_k", "q5_k_m", "q5_k_s", "q5_1", "q5_0",
    "q4_k_m", "q4_k_s", "q4_1", "q4_0", "iq4_nl", "iq4_xs",
    "q3_k_l", "q3_k_m", "q3_k_s", "iq3_m", "iq3_s", "iq3_xs", "iq3_xxs",
    "q2_k", "q2_k_s", "iq2_m", "iq2_s", "iq2_xs", "iq2_xxs", "iq1_m", "iq1_s",
    "tq2_0", "tq1_0", "q2_0", "q1_0", "mxfp4_moe",
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


def _bytes_of(size: str) -> int:
    number, unit = size[:-2], size[-2:].upper()
    return int(float(number) * {"MB": 10**6, "GB": 10**9}[unit])


def _size(size: str) -> str:
    try:
        large_enough = _bytes_of(size) > 0
    except (KeyError, ValueError, OverflowError):
        large_enough = False
    if not large_enough:
        raise ValueError("a size is written 500MB or 45GB")
    return size


def _server_address(url: str) -> str:
    example = "vllm_server: http://10.0.0.5:8000"
    address = checked_address(url, example=example, where_keys_go="its key goes into the variable VLLM_API_KEY")
    if address.endswith("/v1"):
        raise KeyFault("expected the server's own address, without /v1", hint=example)
    if urlsplit(address).hostname in ("0.0.0.0", "::"):
        raise KeyFault("there a server listens on all its addresses; name one by which it is reached", hint=example)
    return address


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
    """Load the base in 4 bits (NF4): a quarter of the memory, a little slower, a little less exact; false is 16-bit LoRA."""
    load_in_8bit: bool = False
    """Load the base in 8 bits (LLM.int8(), arXiv 2208.07339) instead; on a GPU only, and without fast_inference."""
    full_finetuning: bool = False
    """Train all weights, held in float32, instead of an adapter: 16 bytes of memory each, and learning rates a tenth or less of an
    adapter's. Refused with 4 or 8 bits, `model.lora`, `grpo.beta`, the base as judge; without vLLM on a GPU (docs/gpu.md)."""
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """Type of the arithmetic and of weights that are not 4-bit; `auto` takes what the machine is good at."""
    fast_inference: Literal["auto"] | bool = "auto"
    """Generate with vLLM: inside Unsloth on a GPU, beside it on a CPU (docs/fast-inference.md); `auto` where it is installed."""
    gpu_memory_utilization: float = Field(default=0.6, gt=0, le=1)
    """Share of the GPU's memory that vLLM may take."""
    standby: bool = False
    """On a GPU, let vLLM give its memory back while a step is computed. Unsloth then sets gpu_memory_utilization by itself, to
    0.71 to 0.88 by the size of the GPU; what it took is recorded (docs/gpu.md)."""
    vllm_server: Annotated[Text, AfterValidator(_server_address)] | None = None
    """Address of a vLLM server (`trl vllm-serve`) on its own GPU or machine that draws the completions, http://10.0.0.5:8000; it
    gets the weights before each step. Its key, if it wants one, stands in VLLM_API_KEY (docs/scaling.md)."""
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
    """Weight of the KL penalty against the base model (GRPO, arXiv 2402.03300); 0 needs no reference model (arXiv 2503.14476)."""
    loss_type: Literal["grpo", "bnpo", "dr_grpo", "dapo"] = "grpo"
    """How token losses average: grpo over each completion, then over completions (arXiv 2402.03300); dapo over the tokens of
    a step (arXiv 2503.14476), bnpo over those of a backward pass; dr_grpo by a constant (arXiv 2503.20783)."""
    scale_rewards: Literal["group", "batch", "none"] = "group"
    """Divide advantages by the standard deviation of the group (arXiv 2402.03300), of the batch (arXiv 2508.08221), or not at
    all (Dr. GRPO, arXiv 2503.20783)."""
    importance_sampling_level: Literal["token", "sequence"] = "token"
    """Probability ratio per token (arXiv 2402.03300), or one per completion (GSPO, arXiv 2507.18071)."""
    epsilon: float = Field(default=0.2, ge=0, lt=1)
    """Lower clipping range of the ratio (PPO, arXiv 1707.06347)."""
    epsilon_high: float = Field(default=0.2, ge=0)
    """Upper clipping range of the ratio (DAPO, arXiv 2503.14476, uses 0.28)."""
    delta: float | None = Field(default=None, gt=0)
    """Hard upper bound of the ratio where the advantage is negative (arXiv 2505.07291); must be above 1 + epsilon."""
    num_iterations: int = Field(default=1, ge=1)
    """Optimiser passes over each batch of completions (mu in arXiv 2402.03300)."""
    mask_truncated_completions: bool = False
    """Leave completions that were cut out of the loss (arXiv 2503.14476)."""
    resample_rounds: int = Field(default=0, ge=0, le=100)
    """Draw groups without spread in their rewards anew, from other prompts, at most so many times a step (DAPO's dynamic
    sampling, arXiv 2503.14476). They would teach nothing; each round generates at most a step's completions once more."""
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
    """Completions in one backward pass: memory only, not the result (but for loss_type bnpo). null = the largest number of
    whole groups that divides a step's completions and fits the machine; one optimiser step is always one generation of
    prompts_per_step * num_generations completions, in as many backward passes as that takes."""
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
    few_shot: int = Field(default=0, ge=0, le=64)
    """Also ask the base model with this many worked examples of the training half before each question, so that it knows the
    format: what is left of the gain against it is answers. 0 = off (it costs one model more)."""
    every: int | None = Field(default=None, ge=1)
    """During GRPO, steps between greedy answers to a few held-out rows, and once before the first; null = off."""
    every_rows: int = Field(default=32, ge=1)
    """Held-out rows asked during training: the last ones, so that those the evaluation asks are others where there are enough."""
    keep_best: bool = False
    """Keep the adapter of the step that was best on those rows instead of the last one's."""
    stop_after: int | None = Field(default=None, ge=1)
    """Stop when so many evaluations in a row were below the best one while the reward rose (docs/evaluation.md); null = never."""


class Export(Section):
    """The files that leave."""

    merged: bool = True
    """A folder that transformers opens: the adapter merged into the base, or all weights as they were trained."""
    merged_dtype: Literal["base", "float32"] = "base"
    """Type of the merged weights. `base`: the base's own, mostly 16 bits, in whose steps small changes vanish; then verification
    fails. `float32` keeps them, at twice the size; GGUF files are made from it, too, and `f32` among them is exact."""
    base: Source | None = None
    """The 16-bit original to merge into, where `model.source` is a 4-bit copy whose original is not found by its name."""
    dequantize_base: bool = False
    """Of a 4-bit base: merge into weights computed back from its 4 bits. Lossy against the original; recorded."""
    gguf: Annotated[tuple[GgufType, ...], AfterValidator(_distinct)] = ("f16", "q8_0", "q4_k_m")
    """GGUF types for llama.cpp, Ollama and Open WebUI."""
    imatrix: bool = False
    """Quantise with an importance matrix computed from the recipe's training prompts; below 3 bits most types need one."""
    lora_gguf: bool = False
    """Also the adapter alone as a GGUF LoRA, which llama.cpp puts beside the base model (`--lora`)."""
    max_shard_size: Annotated[Text, AfterValidator(_size)] | None = "45GB"
    """GGUF files above this are split, `500MB` or `45GB`; null = never. The Hub takes files up to 50 GB."""

    @property
    def is_wide(self) -> bool:
        """Whether all merged weights are float32."""
        return self.merged_dtype == "float32"

    @property
    def max_shard_bytes(self) -> int | None:
        """`max_shard_size` in bytes."""
        return None if self.max_shard_size is None else _bytes_of(self.max_shard_size)


class Hub(Section):
    """Where the files of a run go on the Hugging Face Hub (docs/hub.md)."""

    repo: Annotated[Text, AfterValidator(_repo_name)] | None = None
    """Repository `user/name`, taken literally: for the merged model, and for what has no repository of its own."""
    adapter_repo: Annotated[Text, AfterValidator(_repo_name)] | None = None
    """Repository for the adapter alone; null: the folder `adapter` of hub.repo."""
    gguf_repo: Annotated[Text, AfterValidator(_repo_name)] | None = None
    """Repository for the GGUF files; null: hub.repo."""
    private: bool = True
    """Make them as private repositories, and push into no public one."""
    push: bool = False
    """Push at the end of `toolkit train --to verify`, if the export passed; the permission is asked for before training."""
    push_checkpoints: bool = False
    """Send each checkpoint up during training, to the branch `checkpoints`; what fails is counted and stops nothing."""

    @property
    def repos(self) -> tuple[str, ...]:
        """The repositories that are named, each once."""
        return tuple(dict.fromkeys(filter(None, (self.repo, self.adapter_repo, self.gguf_repo))))

    @property
    def checkpoint_repo(self) -> str | None:
        """Where checkpoints go: they are adapters."""
        return self.adapter_repo or self.repo or self.gguf_repo


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
    """Where the files go on the Hugging Face Hub."""
    report_to: Literal["none", "trackio", "tensorboard", "wandb"] = "none"
    """Tracker that GRPO's metrics go to as well, by the trainer's own support; none sends nothing anywhere (docs/metrics.md)."""

    @model_validator(mode="after")
    def _agree(self) -> Recipe:
        problems = cross_problems(self)
        if problems:
            raise ValueError("; ".join(f"{problem.keys[0]}: {problem.message}" for problem in problems))
        return self
