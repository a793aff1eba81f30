"""Loads a base model through Unsloth and puts adapters on it. The order of imports that Unsloth needs stands here.

Unsloth rewrites trl, transformers and peft when it is imported, so it comes before them, in this module only.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.engine import whole
from toolkit.engine.arguments import adapter_arguments, load_arguments
from toolkit.engine.machine import Machine, Setting, resolve, return_large_blocks, this_machine
from toolkit.engine.source import checkpoint_of, training_source
from toolkit.engine.tokenizer import NO_CHAT_TEMPLATE, ChatTemplate, refusals
from toolkit.engine.vllm_beside import Beside
from toolkit.errors import EngineError, MissingExtraError
from toolkit.rundir import ADAPTER_WEIGHTS, is_whole

if TYPE_CHECKING:
    from toolkit.engine.vllm_remote import Remote
    from toolkit.recipe import Recipe

CHATTER = (
    "torch.utils._pytree", "torchao.kernel.intmm", "bitsandbytes.backends.cpu.ops", "torchao", "torch._library.triton", "vllm",
)  # fmt: skip
"""Loggers that warn of what a CPU does not need: at import, vLLM later, too. Their errors come through."""
QUANTIZED = ("Linear4bit", "Linear8bitLt")
"""bitsandbytes' layers: an adapter that is added into such weights is rounded away."""


@dataclass
class Policy:
    """A loaded model with its tokenizer, and what the machine made of the recipe."""

    model: Any
    tokenizer: Any
    machine: Machine
    setting: Setting
    served: dict[str, Any] = field(default_factory=dict)
    """Adapters that Unsloth's vLLM reads from their folders: its requests by name."""
    whole: dict[str, Path] = field(default_factory=dict)
    """Folders with weights of full fine-tuning, by the name that `load_adapter` was given."""
    beside: Beside | None = None
    """vLLM beside the model, where the setting says so (on a CPU)."""
    remote: Remote | None = None
    """A vLLM server that draws instead of this machine, where the recipe names one."""

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Every token that ends an answer: the tokenizer's and the generation config's."""
        configured = self.model.generation_config.eos_token_id
        several = configured if isinstance(configured, list) else [configured]
        return tuple(dict.fromkeys(i for i in (self.tokenizer.eos_token_id, *several) if i is not None))

    @cached_property
    def template(self) -> ChatTemplate:
        """The tokenizer's chat template."""
        return ChatTemplate(self.tokenizer)

    def prompt_ids(self, messages: list[dict[str, str]]) -> list[int]:
        """The chat through the template, ready for the answer, as token ids."""
        with refusals():
            chat = self.template.chat(messages)
            return self.tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)

    def text(self, token_ids: list[int]) -> str:
        """Token ids as text, without special tokens."""
        return self.tokenizer.decode(token_ids, skip_special_tokens=True)


def import_unsloth(*, standby: bool | None = None) -> Any:
    """The module, imported before everything it rewrites. It sends nothing to anybody.

    standby (None: as it is): it decides at import how memory is allocated, so it must be known the first time.
    """
    if standby is not None:
        os.environ["UNSLOTH_VLLM_STANDBY"] = str(int(standby))
    os.environ.setdefault("UNSLOTH_DISABLE_STATISTICS", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")  # Unsloth imports vLLM where it is installed
    os.environ.setdefault("DO_NOT_TRACK", "1")
    for name in CHATTER:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        import unsloth
    except ImportError as error:
        raise MissingExtraError("unsloth", "cpu") from error
    return unsloth


def load_policy(recipe: Recipe) -> Policy:
    """The base model as the recipe asks for it, without an adapter."""
    unsloth = import_unsloth(standby=recipe.model.standby)
    import torch

    machine = this_machine()
    setting, remote = resolve(recipe, machine), None
    if setting.generator == "server":
        from toolkit.engine.vllm_remote import connected

        setting, remote = connected(recipe, machine, setting)
    if machine.device == "cpu":
        return_large_blocks()
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", machine.threads)))
    torch.manual_seed(recipe.seed)
    arguments = load_arguments(recipe, setting, _source(recipe, setting))
    with quiet_progress():
        model, tokenizer = unsloth.FastLanguageModel.from_pretrained(**arguments)
    if not tokenizer.chat_template:
        raise EngineError(NO_CHAT_TEMPLATE, where=recipe.model.source, hint="take its instruct variant")
    policy = Policy(model, tokenizer, machine, setting, remote=remote)
    if setting.generator == "unsloth":
        from toolkit.engine.unsloth_vllm import read_back

        policy.setting = read_back(policy, recipe)
    elif setting.generator == "vllm":
        policy.beside = Beside(recipe)
    return policy


def _source(recipe: Recipe, setting: Setting) -> str:
    """What is loaded. Unsloth's vLLM takes no revision and says so in passing: it gets the folder of that revision."""
    model = recipe.model
    if setting.generator == "unsloth" and model.revision is not None:
        return str(checkpoint_of(model.source, model.revision))
    return training_source(model)


def add_adapter(policy: Policy, recipe: Recipe) -> None:
    """Put a fresh, trainable adapter on the model; with full fine-tuning none, as all of it is trained."""
    if recipe.model.full_finetuning:
        whole.require_trainable(policy.model)
        return
    policy.model = import_unsloth().FastLanguageModel.get_peft_model(policy.model, **adapter_arguments(recipe))
    if policy.machine.device == "cpu":
        from toolkit.engine.lean_layers import fuse_adapters

        fuse_adapters(policy.model)


def load_adapter(policy: Policy, folder: Path, name: str) -> None:
    """Put a saved adapter (or the weights of full fine-tuning) on the model under a name, for generating; the base stays
    reachable."""
    if is_whole(folder):
        policy.whole[name] = folder
        return
    if policy.setting.generator == "unsloth":
        from toolkit.engine.unsloth_vllm import serve

        serve(policy, folder, name)
        return
    from peft import PeftModel

    if isinstance(policy.model, PeftModel):
        policy.model.load_adapter(str(folder), adapter_name=name)
    else:
        policy.model = PeftModel.from_pretrained(policy.model, str(folder), adapter_name=name)


def read_adapter_weights(policy: Policy, folder: Path) -> None:
    """Fill what is trained, adapter or model, with saved weights, one to one."""
    if is_whole(folder):
        whole.read(policy.model, folder)
        return
    from peft import set_peft_model_state_dict
    from safetensors.torch import load_file

    loaded = set_peft_model_state_dict(policy.model, load_file(folder / ADAPTER_WEIGHTS))
    if loaded.unexpected_keys:
        raise EngineError(f"the adapter does not fit the model: {loaded.unexpected_keys[:3]}", where=str(folder))


def save_adapter(policy: Policy, recipe: Recipe, folder: Path) -> None:
    """The trainable adapter in peft's format, or the whole model where all of it is trained. The base is named as the recipe
    names it, not by a path of this machine."""
    if recipe.model.full_finetuning:
        whole.save(policy.model, folder)
        return
    config = policy.model.peft_config["default"]
    loaded_from, config.base_model_name_or_path = config.base_model_name_or_path, recipe.model.source
    try:
        policy.model.save_pretrained(folder, selected_adapters=["default"], save_embedding_layers=False)
    finally:
        config.base_model_name_or_path = loaded_from


def adapter_fingerprint(model: Any) -> str:
    """A hash of the trained weights, the adapter's or all: unchanged after training, nothing was learned."""
    import hashlib

    import torch

    digest, everything = hashlib.sha256(), not hasattr(model, "peft_config")
    for name, parameter in sorted(model.named_parameters()):
        if everything or ".default." in name:
            digest.update(name.encode())
            digest.update(parameter.detach().to("cpu", torch.float32).numpy().tobytes())
    return digest.hexdigest()


@contextmanager
def for_generation(policy: Policy, adapter: str | None) -> Iterator[Any]:
    """The model ready to generate with this adapter (None: the bare base), its weights restored bit for bit afterwards.

    A model without any is what it is: the base, or what full fine-tuning has made of it so far. Where the base is 16-bit the
    adapter is added into the weights meanwhile, which saves three products per projection; into 4-bit weights it would be
    rounded away, so there it stays beside them.
    """
    import torch
    from peft import PeftModel

    model = policy.model
    was_training = model.training
    model.eval()
    try:
        if not isinstance(model, PeftModel):
            with in_place(policy, adapter):
                yield model
        elif adapter is None:
            with model.disable_adapter():
                yield model
        elif any(type(module).__name__ in QUANTIZED for module in model.modules()):
            model.set_adapter(adapter)
            yield model
        else:
            with torch.no_grad(), _merged(model, adapter):
                yield model
    finally:
        if was_training and policy.machine.device == "cuda" and hasattr(model, "for_training"):
            model.for_training()  # Unsloth's `generate` switched gradient checkpointing off, too
        else:
            model.train(was_training)


def in_place(policy: Policy, adapter: str | None) -> AbstractContextManager[None]:
    """The weights of full fine-tuning that have this name in the model meanwhile; where none have it, nothing is done."""
    folder = policy.whole.get(adapter) if adapter else None
    return whole.in_place(policy.model, folder) if folder else nullcontext()


@contextmanager
def _merged(model: Any, adapter: str) -> Iterator[None]:
    layers = [module for module in model.modules() if adapter in getattr(module, "lora_A", {})]
    kept = [layer.get_base_layer().weight.data.clone() for layer in layers]
    model.merge_adapter([adapter])
    try:
        yield
    finally:
        model.unmerge_adapter()
        for layer, weight in zip(layers, kept, strict=True):
            layer.get_base_layer().weight.data.copy_(weight)  # subtracting again would leave rounding behind


@contextmanager
def quiet_progress() -> Iterator[None]:
    """Libraries' own progress bars off."""
    import datasets
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    from transformers.utils import logging as transformers_logging

    was_off = are_progress_bars_disabled()
    disable_progress_bars()
    datasets.disable_progress_bars()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.enable_progress_bar()
        datasets.enable_progress_bars()
        if not was_off:
            enable_progress_bars()
