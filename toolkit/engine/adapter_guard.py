"""Proof that an adapter reaches vLLM, Unsloth's or a server: greedy samples, compared with the model. It trains nothing.

An adapter that vLLM drops in silence (names it does not know, a stale id, another scale) costs a whole run: rollouts
come from the base while the adapter learns from them. A young adapter changes little, so what is compared is made large: a
copy, or for a moment the adapter itself, with a `lora_B` that changes every projection by about an eighth.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.engine.completions import Completion, Sampling
from toolkit.engine.unsloth_vllm import ONLY, batches
from toolkit.errors import EngineError

if TYPE_CHECKING:
    import torch

    from toolkit.engine.load import Policy

TOKENS = 8
ROUNDING = 1e-3
"""Log-probabilities of one sample that differ by less are equal: 16-bit arithmetic."""
STRENGTH = 0.2
QUESTION = [{"role": "user", "content": "How much is 17 plus 25?"}]
HINT = (
    "model.fast_inference: false (or model.vllm_server: null), and tell us the model and the versions in manifest.json"
)


@dataclass(frozen=True)
class Agreement:
    """Of vLLM's log-probabilities with the trained model's: mean differences, with the adapter, to it and to the bare base."""

    apart: float
    apart_from_base: float


def require_trained_adapter(policy: Policy) -> Agreement:
    """Before training: vLLM answers as the model does with the adapter, not as the base, and leaves the adapter's weights.

    `lora_B` is filled with noise meanwhile and restored bit for bit. Raises EngineError where the adapter does not reach
    vLLM: where both samples are equal, or vLLM's log-probabilities with it are nearer to the base's than to the model's.
    """
    with _strong_adapter(policy) as unchanged:
        with_it, without = _sample(policy, ONLY), _sample(policy, None)
        if not unchanged():
            raise EngineError("vLLM changed the adapter's weights while it generated", hint=HINT)
        _require_difference(with_it, without, "the adapter in training")
        return _require_agreement(policy, with_it)


def require_handed_over(policy: Policy) -> Agreement:
    """Before training: the vLLM server answers as the model does with the adapter, not as the base.

    `lora_B` is filled with noise meanwhile, as above. The first of several processes asks this alone.
    """
    with _strong_adapter(policy):
        return _require_agreement(policy, _sample(policy, ONLY))


def _require_agreement(policy: Policy, with_it: Completion) -> Agreement:
    found = Agreement(
        _mean_difference(with_it.logprobs, model_logprobs(policy, with_it, adapted=True)),
        _mean_difference(with_it.logprobs, model_logprobs(policy, with_it, adapted=False)),
    )
    if found.apart >= found.apart_from_base:
        what = f"{found.apart:.2g} from the model with the adapter and {found.apart_from_base:.2g} from the base"
        raise EngineError(f"vLLM does not answer as the model in training: log-probabilities are {what}", hint=HINT)
    return found


def require_saved_adapter(policy: Policy, folder: Path, name: str) -> None:
    """vLLM answers otherwise with a strong copy of the saved adapter, loaded as itself, than without."""
    with tempfile.TemporaryDirectory(prefix="toolkit-lora-") as copy:
        if not strong_copy(folder, Path(copy)):
            return  # an adapter of zeros is the base
        from unsloth_zoo.vllm_utils import load_lora

        load: Any = load_lora
        kept, policy.served[name] = policy.served[name], load(policy.model, copy)
        try:
            _require_difference(_sample(policy, name), _sample(policy, None), f"the adapter {name}")
        finally:
            policy.served[name] = kept


def strong_copy(folder: Path, out: Path) -> bool:
    """The adapter with its `lora_B` scaled up to where nothing is rounded away; False where all of it is zero."""
    import torch
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "adapter_model.safetensors")
    largest = max((float(t.abs().max()) for name, t in tensors.items() if "lora_B" in name), default=0.0)
    if not largest:
        return False
    scaled = {name: t * (STRENGTH / largest) if "lora_B" in name else t for name, t in tensors.items()}
    save_file({name: t.to(torch.float32) for name, t in scaled.items()}, out / "adapter_model.safetensors")
    shutil.copyfile(folder / "adapter_config.json", out / "adapter_config.json")
    return True


def _require_difference(with_it: Completion, without: Completion, what: str) -> None:
    same = with_it.token_ids == without.token_ids
    if same and _mean_difference(with_it.logprobs, without.logprobs) < ROUNDING:
        raise EngineError(f"{what} does not reach vLLM: a greedy answer is the same with it and without", hint=HINT)


def _sample(policy: Policy, adapter: str | None) -> Completion:
    prompt = policy.prompt_ids(QUESTION)
    sampling = Sampling(TOKENS, temperature=0.0, stop_token_ids=policy.stop_token_ids)
    draw = policy.remote.batches if policy.remote else batches
    (drawn,) = draw(policy, adapter, [prompt], sampling)
    return drawn.rows[0]


def model_logprobs(policy: Policy, said: Completion, *, adapted: bool) -> list[float]:
    """What the model in training gives the tokens of this answer to QUESTION, with its adapter or without."""
    import torch

    model, prompt = policy.model, policy.prompt_ids(QUESTION)
    ids = torch.tensor([[*prompt, *said.token_ids]], device=model.device)
    cast = torch.autocast("cuda", dtype=getattr(torch, policy.setting.dtype), enabled=model.device.type == "cuda")
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), cast, nullcontext() if adapted else model.disable_adapter():
            logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0, len(prompt) - 1 : -1].float()
    finally:
        model.train(was_training)
    return torch.log_softmax(logits, dim=-1).gather(1, ids[0, len(prompt) :, None])[:, 0].tolist()


def _mean_difference(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(abs(a - b) for a, b in zip(one, other, strict=True)) / max(1, len(one))


@contextmanager
def _strong_adapter(policy: Policy) -> Iterator[Any]:
    """`lora_B` of noise, restored on leaving. Yields a function that says whether the noise is still what it was."""
    import torch

    weights = {name: w for name, w in policy.model.named_parameters() if f"lora_B.{ONLY}" in name}
    kept = {name: weight.detach().clone() for name, weight in weights.items()}
    noise = {name: _noise(policy, weight, at) for at, (name, weight) in enumerate(weights.items())}
    try:
        with torch.no_grad():
            for name, weight in weights.items():
                weight.copy_(noise[name])
        yield lambda: all(torch.equal(weight, noise[name]) for name, weight in weights.items())
    finally:
        with torch.no_grad():
            for name, weight in weights.items():
                weight.copy_(kept[name])


def _noise(policy: Policy, weight: torch.Tensor, number: int) -> torch.Tensor:
    """Of a size that changes the projection's output by an eighth, whatever the rank and the scale."""
    import torch

    config = policy.model.peft_config[ONLY]
    scale = config.lora_alpha / (config.r**0.5 if config.use_rslora else config.r)
    generator = torch.Generator().manual_seed(number)
    drawn = torch.randn(weight.shape, generator=generator) * (STRENGTH / config.r**0.5 / scale)
    return drawn.to(weight.device, weight.dtype)
