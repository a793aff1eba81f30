"""What the tests run in the process that imported unsloth first (`unsloth_process`). Answers are plain data.

Every function loads the tiny checkpoint through `load_policy`, as a run does, in float32 unless its recipe says otherwise.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from micro_batches import CASES
from toolkit.recipe import Recipe
from toolkit.rewards import RewardBase


def begin(folder: str) -> None:
    """First in the process: unsloth, then one thread, and a folder to make a mess in."""
    os.chdir(folder)
    from toolkit.engine.load import import_unsloth

    import_unsloth()
    import torch

    torch.set_num_threads(1)


def loaded(recipe: Recipe, *, strength: float = 0.05) -> Any:
    """A policy with an adapter that changes the model; a fresh one changes nothing and lets half its gradients be zero."""
    import torch

    from toolkit.engine.load import add_adapter, load_policy

    policy = load_policy(recipe)
    add_adapter(policy, recipe)
    torch.manual_seed(1)
    with torch.no_grad():
        for name, weight in policy.model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=strength)
    return policy


def accepted_arguments() -> dict[str, list[str]]:
    """The names that the installed libraries take."""
    import peft
    import trl
    import unsloth

    fast = unsloth.FastLanguageModel
    return {
        "load": list(inspect.signature(fast.from_pretrained).parameters),
        "adapter": list(inspect.signature(fast.get_peft_model).parameters),
        "grpo": [field.name for field in dataclasses.fields(trl.GRPOConfig)],
        "warmup": [field.name for field in dataclasses.fields(trl.SFTConfig)],
        "lora": [field.name for field in dataclasses.fields(peft.LoraConfig)],
    }


def built(recipe: Recipe) -> dict[str, Any]:
    """Build model, adapter and both configurations as a run does, and read back what they hold."""
    import trl

    from toolkit.engine.arguments import warmup_arguments
    from toolkit.engine.rollout import RewardRecorder
    from toolkit.engine.trainers import build_grpo_trainer

    policy = loaded(recipe)
    rows = recipe.task.rows("train")
    recorder = RewardRecorder(recipe.rewards, {row.id: row for row in rows})
    trainer = build_grpo_trainer(policy, recipe, rows, recorder, Path("built"), [])
    trainer.create_optimizer()
    return {
        "model": _model_facts(policy),
        "lora": _plain(dict(vars(policy.model.peft_config["default"]))),
        "grpo": _plain(trainer.args.to_dict()),
        "warmup": _plain(trl.SFTConfig(**warmup_arguments(recipe, policy.setting, Path("warm"))).to_dict()),
        "trainer": _plain({name: value for name, value in vars(trainer).items() if not name.startswith("_")}),
        "rewards": [getattr(function, "__name__", "") for function in trainer.reward_funcs],
        "reward_weights": trainer.reward_weights.tolist(),
        "optimizer": [type(trainer.optimizer).__name__, _plain(trainer.optimizer.defaults)],
        "class": type(trainer).__name__,
        "adapters": sorted(policy.model.peft_config),
        "changes": [change.key for change in policy.setting.changes],
    }


def _model_facts(policy: Any) -> dict[str, Any]:
    modules = list(policy.model.modules())
    lora = next(module for module in modules if hasattr(module, "lora_A"))
    return {
        "dtype": str(policy.model.dtype).removeprefix("torch."),
        "four_bit": any(type(module).__name__ == "Linear4bit" for module in modules),
        "checkpointing": any(getattr(module, "gradient_checkpointing", False) for module in modules),
        "scaling": lora.scaling["default"],
        "adapted": sorted(
            {name.rpartition(".")[2] for name, m in policy.model.named_modules() if hasattr(m, "lora_A")}
        ),
        "max_seq_length": getattr(policy.model, "max_seq_length", None),
        "first_weights": float(lora.lora_A["default"].weight.detach().float().abs().sum()),
    }


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    plain = (str, int, float, bool, type(None))
    keep = {name: sorted(value) if isinstance(value, set) else value for name, value in values.items()}
    return {
        name: value
        for name, value in keep.items()
        if isinstance(value, plain)
        or (isinstance(value, (list, tuple)) and all(isinstance(item, plain) for item in value))
    }


class Spread(RewardBase):
    """A reward that pays by the text's bytes; the same for every second prompt, whose group then has no spread."""

    name: str = "correctness"

    def score(self, text: str, row: Any) -> float | None:
        if int(row.id.rpartition("/")[2]) % 2:
            return 1.0
        return (len(text) * 7 + sum(text.encode()) % 13) % 5 / 2


class Length(RewardBase):
    """A second reward, so that weights matter."""

    name: str = "xmlcount"

    def score(self, text: str, row: Any) -> float | None:
        return 0.0 if int(row.id.rpartition("/")[2]) % 2 else min(len(text), 4) / 10


class Place(RewardBase):
    """Pays each completion another amount, so that every group has spread."""

    name: str = "correctness"

    def score_batch(self, texts: Any, rows: Any, *, ids: Any = None) -> list[float | None]:
        return [float(place) for place in range(len(texts))]


class Silent(RewardBase):
    """Can judge nothing."""

    name: str = "correctness"

    def score(self, text: str, row: Any) -> float | None:
        return None


PAID: dict[str, list[RewardBase]] = {
    "spread": [Spread(), Length()],
    "always": [Place(), Length()],
    "never": [Silent(), Silent(name="xmlcount")],
}
"""Rewards for a tiny model, whose texts no reward of a recipe would pay."""


@contextmanager
def trls_own_trainer() -> Iterator[None]:
    """Without the toolkit's shortcuts."""
    from toolkit.engine import trainers

    with mock.patch.object(trainers, "lean_trainer", lambda base: base):
        yield


def trained_weights(recipe: Recipe, *, lean: bool) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The adapter after training with `Spread`, by the toolkit's trainer or TRL's own, and what was logged."""
    from contextlib import nullcontext

    from toolkit.engine.rollout import RewardRecorder
    from toolkit.engine.trainers import build_grpo_trainer

    policy = loaded(recipe)
    rows = recipe.task.rows("train")
    recorder = RewardRecorder(PAID["spread"], {row.id: row for row in rows})
    with nullcontext() if lean else trls_own_trainer():
        trainer = build_grpo_trainer(policy, recipe, rows, recorder, Path("trained"), [])
    assert type(trainer).__name__ == ("LeanGRPOTrainer" if lean else "ComparingGRPOTrainer")
    before = _adapter(policy.model)
    trainer.train()
    moved = {name: weight - before[name] for name, weight in _adapter(policy.model).items()}
    return moved, [entry for entry in trainer.state.log_history if "loss" in entry]


def _adapter(model: Any) -> dict[str, Any]:
    return {name: weight.detach().double().clone() for name, weight in model.named_parameters() if weight.requires_grad}


def lean_and_trl(recipe: Recipe) -> dict[str, Any]:
    """How far the adapter moved with each trainer, how far apart they are (share of the movement), and what was logged."""
    lean, lean_logs = trained_weights(recipe, lean=True)
    own, own_logs = trained_weights(recipe, lean=False)
    moved = norm(own.values())
    return {
        "moved": moved,
        "apart": norm(lean[name] - own[name] for name in own) / moved,
        "logged": [[logs[0].get(key) for logs in (lean_logs, own_logs)] for key in ("reward", "frac_reward_zero_std")],
        "grad_norm": [[entry["grad_norm"] for entry in logs] for logs in (lean_logs, own_logs)],
    }


def norm(tensors: Any) -> float:
    return float(sum(float((tensor**2).sum()) if hasattr(tensor, "sum") else tensor**2 for tensor in tensors) ** 0.5)


def loss_gradients(recipe: Recipe) -> dict[str, dict[str, float]]:
    """Loss and gradient of every micro-batch in CASES by both trainers: size of TRL's gradient, and distances to it."""
    from toolkit.engine.rollout import RewardRecorder
    from toolkit.engine.trainers import build_grpo_trainer

    policy = loaded(recipe)
    rows = recipe.task.rows("train")
    recorder = RewardRecorder(recipe.rewards, {row.id: row for row in rows})
    lean = build_grpo_trainer(policy, recipe, rows, recorder, Path("hand"), [])
    with trls_own_trainer():
        own = build_grpo_trainer(policy, recipe, rows, recorder, Path("hand"), [])
    assert type(lean) is not type(own)
    return {case: _compared(policy.model, lean, own, make) for case, make in CASES.items()}


def _compared(model: Any, lean: Any, own: Any, make: Callable[[], dict[str, Any]]) -> dict[str, float]:
    found = []
    for trainer in (lean, own):
        trainer.current_gradient_accumulation_steps = 2
        model.train()
        model.zero_grad()
        with mock.patch("toolkit.engine.lean.HEAD_ROWS", 8):  # several pieces even of a short batch
            loss = trainer._compute_loss(model, make())
        loss.backward()
        gradients = {name: w.grad for name, w in model.named_parameters() if w.requires_grad}
        found.append((loss.item(), {name: 0.0 if grad is None else grad.clone() for name, grad in gradients.items()}))
    (lean_loss, lean_gradients), (own_loss, own_gradients) = found
    return {
        "size": norm(own_gradients.values()),
        "apart": norm(lean_gradients[name] - own_gradients[name] for name in own_gradients),
        "losses apart": abs(lean_loss - own_loss),
    }


def greedy_text(recipe: Recipe, prompts: Sequence[Sequence[int]]) -> tuple[list[list[int]], list[list[int]]]:
    """Greedy token ids by the toolkit and by `model.generate`, adapter on, in the process that trains."""
    from dataclasses import replace

    import torch

    from toolkit.engine.arguments import training_sampling
    from toolkit.engine.generate import generate
    from toolkit.engine.load import for_generation

    policy = loaded(recipe)
    sampling = replace(training_sampling(recipe, policy.stop_token_ids), temperature=0.0)
    with for_generation(policy, "default") as model:
        ours = [completion.token_ids for completion in generate(model, prompts, sampling)]
    policy.model.eval()
    theirs = []
    for prompt in prompts:
        ids = torch.tensor([list(prompt)])
        out = policy.model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, pad_token_id=256,
            max_new_tokens=sampling.max_new_tokens, eos_token_id=list(sampling.stop_token_ids),
        )  # fmt: skip
        theirs.append(out[0, len(prompt) :].tolist())
    return ours, theirs


def generation_switches(recipe: Recipe) -> dict[str, Any]:
    """Logits of the bare base, with the adapter beside the weights and merged into them, and the weights before and after."""
    import torch

    from toolkit.engine.load import for_generation, load_policy, save_adapter

    policy = loaded(recipe)
    ids = torch.arange(40)[None]
    bare = load_policy(recipe).model.eval()
    with torch.inference_mode():
        alone = bare(ids).logits.float()
        policy.model.eval()
        beside = policy.model(ids).logits.float()
    policy.model.train()
    before = {name: value.clone() for name, value in policy.model.state_dict().items()}
    trainable = [name for name, weight in policy.model.named_parameters() if weight.requires_grad]
    facts: dict[str, Any] = {"four_bit": any(type(m).__name__ == "Linear4bit" for m in policy.model.modules())}
    logits = {}
    for name in (None, "default"):
        with for_generation(policy, name) as model, torch.inference_mode():
            assert not model.training
            logits[name] = model(ids).logits.float()
            merged = _merged_layers(model)
            facts[f"merged layers for {name}"] = merged
    try:
        with for_generation(policy, "default"):
            raise RuntimeError
    except RuntimeError:
        pass
    after = policy.model.state_dict()
    facts["training again"] = policy.model.training
    facts["unchanged"] = all(torch.equal(before[name], after[name]) for name in before) and len(before) == len(after)
    facts["still trainable"] = trainable == [n for n, w in policy.model.named_parameters() if w.requires_grad] != []
    facts["merged layers afterwards"] = _merged_layers(policy.model)
    facts["base"] = _apart(logits[None], alone)
    facts["adapter"] = _apart(logits["default"], beside)
    facts["adapter against base"] = _apart(logits["default"], alone)
    save_adapter(policy, recipe, Path("saved"))
    facts["reloaded"] = _reloaded(recipe, ids, logits["default"], alone)
    return facts


def _reloaded(recipe: Recipe, ids: Any, tuned: Any, alone: Any) -> list[float]:
    """As the evaluation does it: two adapters by name, asked in turn."""
    import torch

    from toolkit.engine.load import for_generation, load_adapter, load_policy

    policy = load_policy(recipe)
    load_adapter(policy, Path("saved"), "warmup")
    load_adapter(policy, Path("saved"), "tuned")
    with torch.no_grad():
        for name, weight in policy.model.named_parameters():
            if "lora_B.warmup" in name:
                weight.zero_()
    found = []
    for name, expected in ((None, alone), ("warmup", alone), ("tuned", tuned), (None, alone)):
        with for_generation(policy, name) as model, torch.inference_mode():
            found.append(_apart(model(ids).logits.float(), expected))
    return found


def _merged_layers(model: Any) -> int:
    return sum(bool(getattr(module, "merged_adapters", [])) for module in model.modules())


def _apart(one: Any, other: Any) -> float:
    """Mean KL divergence of next-token distributions."""
    import torch

    p, q = torch.log_softmax(one, dim=-1), torch.log_softmax(other, dim=-1)
    return float((p.exp() * (p - q)).sum(dim=-1).mean())


def interrupted(recipe: Recipe, moment: tuple[str, int]) -> dict[str, Any]:
    """A new run, with Ctrl-C at the end of this step of this stage."""
    return train_tiny(recipe, None, moment)


def train_tiny(
    recipe: Recipe, run: str | None = None, interrupt: tuple[str, int] | None = None, pay: str = "spread"
) -> dict[str, Any]:
    """The training step on the tiny model, a new run or `run` resumed, paid by PAID[pay], else as the recipe says."""
    import signal

    from toolkit.engine.rollout import RewardRecorder
    from toolkit.errors import ToolkitError
    from toolkit.recipe.load import Loaded
    from toolkit.train import record, train

    def paid(rewards: Any, rows: Any, **more: Any) -> RewardRecorder:
        return RewardRecorder(PAID.get(pay, list(rewards)), rows, **more)

    append = record.Recorder._append

    def appended(recorder: Any, line: dict[str, Any]) -> dict[str, Any]:
        if (line["stage"], line["step"]) == interrupt:
            os.kill(os.getpid(), signal.SIGINT)
        return append(recorder, line)

    loaded = Loaded(recipe, {}, {}, Path("tiny.yaml"), "tiny")
    found: dict[str, Any] = {"raised": None, "exit_code": 0}
    with (
        mock.patch("toolkit.engine.trainers.RewardRecorder", paid),
        mock.patch.object(record.Recorder, "_append", appended),
    ):
        try:
            found["run"] = str(Path(train(loaded, resume=Path(run) if run else None)).resolve())
        except ToolkitError as error:
            found |= {"raised": type(error).__name__, "exit_code": error.exit_code, "hint": error.hint}
            found["message"] = error.message
            found["run"] = run or str(max(Path("runs").iterdir(), key=lambda path: path.stat().st_mtime_ns).resolve())
    return found


def evaluated(run: str) -> None:
    """The evaluation step on a run of the tiny model."""
    from toolkit.evaluate import evaluate_run

    evaluate_run(Path(run))
