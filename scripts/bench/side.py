"""One way of doing it, in a process of its own: does what its parent asks for, one thing at a time, and says how long it took.

`plain` is a script by the book: Unsloth's FastLanguageModel and TRL's GRPOTrainer, nothing of the toolkit's in it. `trl` is the same
without Unsloth, for a GPU: TRL 1.15 alone makes no step on a CPU. `toolkit` and `fast` are the toolkit without and with vLLM.
Requests and answers are lines of JSON; all else that is printed goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import workload

Answer = dict[str, Any]
ENDLESS = 1_000_000
"""Steps of a training that ends when it is told to."""


class Plain:
    """What the notebooks of Unsloth and TRL do, with the recipe's values."""

    def __init__(self, source: str, prompts: int) -> None:
        self.recipe = workload.recipe(source, fast_inference=False, prompts=prompts, steps=ENDLESS)
        self.chats = [self.recipe.task.messages(row) for row in self.recipe.task.rows("train")]
        self.load()

    def load(self) -> None:
        from unsloth import FastLanguageModel  # before trl

        from toolkit.engine.source import training_source

        recipe, lora = self.recipe, self.recipe.model.lora
        model, self.tokenizer = FastLanguageModel.from_pretrained(
            training_source(recipe.model), max_seq_length=recipe.model.max_seq_length, load_in_4bit=False
        )
        self.model = FastLanguageModel.get_peft_model(
            model, r=lora.r, lora_alpha=lora.lora_alpha, target_modules=list(lora.target_modules),
            use_gradient_checkpointing=False, random_state=recipe.seed,
        )  # fmt: skip

    def trainer(self, folder: Path, callback: Any) -> Any:
        import torch
        import trl
        from datasets import Dataset

        grpo, on_cpu = self.recipe.grpo, not torch.cuda.is_available()
        arguments = trl.GRPOConfig(
            output_dir=str(folder), max_steps=ENDLESS, learning_rate=grpo.learning_rate, num_generations=workload.GROUP,
            per_device_train_batch_size=workload.GROUP, gradient_accumulation_steps=grpo.prompts_per_step,
            max_completion_length=workload.TOKENS, temperature=grpo.temperature, beta=grpo.beta, loss_type=grpo.loss_type,
            scale_rewards=grpo.scale_rewards, optim=grpo.optim, gradient_checkpointing=False, use_cpu=on_cpu,
            bf16=not on_cpu, logging_steps=1, save_strategy="no", report_to="none", disable_tqdm=True,
        )  # fmt: skip
        return trl.GRPOTrainer(
            model=self.model, args=arguments, processing_class=self.tokenizer, reward_funcs=[workload.half],
            train_dataset=Dataset.from_list([{"prompt": chat} for chat in self.chats]), callbacks=[callback],
        )  # fmt: skip

    def rollouts(self, rows: int) -> Sequence[int]:
        """`model.generate` as TRL calls it: every prompt once for each of its completions. Lengths of the completions.

        All of them to the limit: `generate` computes rows that have stopped as long as another goes on, for nothing.
        """
        import torch

        chats = [chat for chat in self.chats[: rows // workload.GROUP or 1] for _ in range(min(rows, workload.GROUP))]
        read = self.tokenizer.apply_chat_template(
            chats, add_generation_prompt=True, return_dict=True, return_tensors="pt", padding=True, padding_side="left"
        ).to(self.model.device)
        self.model.eval()
        with torch.inference_mode():
            made = self.model.generate(
                **read, max_new_tokens=workload.TOKENS, min_new_tokens=workload.TOKENS, do_sample=True, top_k=0, top_p=1.0,
                temperature=self.recipe.grpo.temperature, pad_token_id=self.tokenizer.pad_token_id,
            )  # fmt: skip
        self.model.train()
        return [made.shape[1] - read["input_ids"].shape[1]] * len(made)


class Trl(Plain):
    """The same with transformers' model and PEFT's adapter."""

    def load(self) -> None:
        import torch
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from toolkit.engine.source import training_source

        source, lora = training_source(self.recipe.model), self.recipe.model.lora
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
        self.tokenizer = AutoTokenizer.from_pretrained(source)
        config = LoraConfig(
            r=lora.r, lora_alpha=lora.lora_alpha, target_modules=list(lora.target_modules), task_type="CAUSAL_LM"
        )
        self.model = get_peft_model(model.to(device), config)


class Toolkit:
    """The toolkit's own engine, as `toolkit train` runs it."""

    def __init__(self, source: str, prompts: int, *, fast_inference: bool = False) -> None:
        from toolkit.engine.load import add_adapter, load_policy

        self.recipe = workload.recipe(source, fast_inference=fast_inference, prompts=prompts, steps=ENDLESS)
        self.policy = load_policy(self.recipe)
        add_adapter(self.policy, self.recipe)
        self.rows = self.recipe.task.rows("train")

    def trainer(self, folder: Path, callback: Any) -> Any:
        from toolkit.engine.rollout import RewardRecorder
        from toolkit.engine.surroundings import surroundings
        from toolkit.engine.trainers import build_grpo_trainer

        rewards = [reward.within(surroundings(self.recipe, self.policy)) for reward in self.recipe.rewards]
        recorder = RewardRecorder(rewards, {row.id: row for row in self.rows})
        return build_grpo_trainer(self.policy, self.recipe, self.rows, recorder, folder, [callback])

    def rollouts(self, rows: int) -> Sequence[int]:
        """As in training, where the adapter is another one each time."""
        import torch

        from toolkit.engine.arguments import training_sampling
        from toolkit.engine.sampler import draw

        with torch.no_grad():
            for parameter in (p for p in self.policy.model.parameters() if p.requires_grad):
                parameter.add_(1e-6)
        questions = self.rows[: rows // workload.GROUP or 1]
        prompts = [self.policy.prompt_ids(self.recipe.task.messages(row)) for row in questions]
        sampling = training_sampling(self.recipe, self.policy.stop_token_ids)
        drawn = draw(self.policy, "default", prompts, sampling, samples=min(rows, workload.GROUP))
        return [len(completion.token_ids) for completion in drawn]


WAYS: dict[str, Callable[[str, int], Any]] = {
    "plain": Plain,
    "trl": Trl,
    "toolkit": Toolkit,
    "fast": lambda source, prompts: Toolkit(source, prompts, fast_inference=True),
}


def answering(way: Any, say: Callable[[Answer], None]) -> Any:
    """The trainer's callback that waits for requests between steps."""
    from transformers import TrainerCallback

    class Answering(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            for line in sys.stdin:
                request = json.loads(line)
                forget_gpu_peak()
                if request["do"] == "step":
                    self.begin = time.perf_counter()
                    return
                begin = time.perf_counter()
                lengths = way.rollouts(request["rows"])
                say({"seconds": time.perf_counter() - begin, "tokens": sum(lengths), **gpu_peak()})
            os._exit(0)  # the parent has what it wanted

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if logs and "loss" in logs:
                completions = workload.GROUP * way.recipe.grpo.prompts_per_step
                tokens = round(logs["completions/mean_length"] * completions)
                seconds = time.perf_counter() - self.begin
                say({"seconds": seconds, "tokens": tokens, "scored_s": clock[-1], **gpu_peak()})

    return Answering()


def forget_gpu_peak() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def gpu_peak() -> Answer:
    """The most of a GPU's memory that this process's tensors took since the request came, in GB; nothing without a GPU."""
    import torch

    return {"gpu_gb": torch.cuda.max_memory_allocated() / 1e9} if torch.cuda.is_available() else {}


clock: list[float] = [0.0]
"""Seconds of the last generation with its rewards."""


def timed(trainer: Any) -> Any:
    """The trainer, with a clock on the half of a step that generates and scores."""
    inner = trainer._generate_and_score_completions

    def outer(inputs: Any) -> Any:
        begin = time.perf_counter()
        out = inner(inputs)
        clock.append(time.perf_counter() - begin)
        return out

    trainer._generate_and_score_completions = outer
    return trainer


def main() -> None:
    name, source, prompts = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def say(answer: Answer) -> None:
        answers.write(json.dumps(answer) + "\n")

    way = WAYS[name](source, int(prompts))
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        trainer = timed(way.trainer(Path(folder) / "grpo", answering(way, say)))
        say({"ready": True})
        trainer.train()


if __name__ == "__main__":
    main()
