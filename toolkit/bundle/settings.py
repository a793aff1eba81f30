"""How a model was asked in training, in the words of each program that can ask it now. It reads no file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolkit.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Settings:
    """System prompt, sampling and limits. All are passed on explicitly: every program has other defaults."""

    system: str
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    max_tokens: int
    context: int

    @classmethod
    def of(cls, recipe: Recipe) -> Settings:
        grpo = recipe.grpo
        return cls(
            system=recipe.task.system_text,
            temperature=grpo.temperature,
            top_p=grpo.top_p,
            top_k=grpo.top_k,
            min_p=grpo.min_p or 0.0,
            repetition_penalty=grpo.repetition_penalty,
            max_tokens=grpo.max_completion_length,
            context=recipe.model.max_seq_length,
        )

    def _sampling(self) -> dict[str, float]:
        """By llama.cpp's names, which the programs around it took over."""
        return {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "repeat_penalty": self.repetition_penalty,
        }

    def ollama(self) -> dict[str, float]:
        """PARAMETERs of a Modelfile. llama.cpp penalises the last 64 tokens only; training penalised all."""
        return {
            **self._sampling(),
            **({} if self.repetition_penalty == 1 else {"repeat_last_n": -1}),
            "num_predict": self.max_tokens,
            "num_ctx": self.context,
        }

    def openai(self) -> dict[str, float]:
        """What a request in OpenAI's protocol says, with llama.cpp's additions to it."""
        return {**self._sampling(), "max_tokens": self.max_tokens}

    def open_webui(self, stops: Sequence[str]) -> dict[str, Any]:
        """`params` of a model in Open WebUI, which hands them on to an OpenAI-compatible server.

        It decodes stop strings as Python's unicode_escape does, which would spoil other letters than ASCII's. Reasoning tags off:
        it would take what stands in them out of the answers that it sends back with the next question.
        """
        return {
            **({"system": self.system} if self.system else {}),
            **self.openai(),
            "stop": [stop.encode("unicode_escape").decode("ascii") for stop in stops],
            "reasoning_tags": False,
        }

    def llama_cpp(self) -> list[str]:
        """Options of llama-server and llama-cli."""
        values = {
            "-c": self.context,
            "-n": self.max_tokens,
            "--temp": self.temperature,
            "--top-p": self.top_p,
            "--top-k": self.top_k,
            "--min-p": self.min_p,
            "--repeat-penalty": self.repetition_penalty,
            **({} if self.repetition_penalty == 1 else {"--repeat-last-n": self.context}),
        }
        return [word for option, value in values.items() for word in (option, f"{value:.10g}")]

    def transformers(self) -> dict[str, Any]:
        """Keywords of `generate`."""
        return {
            "max_new_tokens": self.max_tokens,
            "do_sample": True,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            **({"min_p": self.min_p} if self.min_p else {}),
            "repetition_penalty": self.repetition_penalty,
        }
