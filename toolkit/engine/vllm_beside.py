"""Whether vLLM draws beside the training model on a CPU, and its start. What draws is `vllm_engine`.

Starting it costs some seconds, so `auto` takes it where there is enough to draw. What cannot be done with it, a model that
vLLM does not know for one, goes on with transformers, and the reason is recorded.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from toolkit.engine import vllm_weights
from toolkit.engine.completions import Prompts, Sampling

if TYPE_CHECKING:
    from toolkit.engine.load import Policy
    from toolkit.engine.vllm_engine import VllmEngine
    from toolkit.recipe import Recipe

HANDFUL = 4096
"""Tokens below which `auto` does not start vLLM: transformers has drawn them before it is up (docs/fast-inference.md)."""

_log = logging.getLogger(__name__)


def too_few(recipe: Recipe) -> str | None:
    """Why a whole training draws too little for vLLM to pay; None where it does not."""
    grpo = recipe.grpo
    tokens = grpo.max_steps * grpo.completions_per_step * grpo.max_completion_length
    return f"{tokens} tokens at most are not worth its start" if tokens < HANDFUL else None


class Beside:
    """vLLM beside one policy: not started yet, running, or given up."""

    def __init__(self, recipe: Recipe) -> None:
        from toolkit.engine.vllm_engine import Room

        self._asked = recipe.model.fast_inference
        self._room = Room.of(recipe)
        self._engine: VllmEngine | None = None
        self._given_up = False

    def start(self, policy: Policy) -> VllmEngine | None:
        """The running engine; None, with a change in the policy's setting, where vLLM refuses this model or machine."""
        from toolkit.engine.vllm_engine import VllmEngine

        if self._given_up or (self._engine and self._engine is VllmEngine.running):
            return self._engine
        try:
            self._engine = VllmEngine(policy, self._room)
        except Exception as error:  # whatever a foreign engine makes of a model that it does not know
            self._give_up(policy, error)
        return self._engine

    def engine_for(
        self, policy: Policy, adapter: str | None, prompts: Prompts, sampling: Sampling, completions: int
    ) -> VllmEngine | None:
        """The engine, where it should and can draw that many completions of each prompt."""
        if not prompts or max(map(len, prompts)) + sampling.max_new_tokens > self._room.context:
            return None
        few = len(prompts) * completions * sampling.max_new_tokens < HANDFUL
        if few and self._asked == "auto" and (adapter is None or not self._engine):
            return None
        if why := vllm_weights.refusal(policy.model, adapter):
            _log.warning("drawn by transformers instead of vLLM: %s", why)
            return None
        return self.start(policy)

    def close(self) -> None:
        """Give the engine's memory back; the next draw starts it anew."""
        if self._engine:
            self._engine.close()
        self._engine = None

    def _give_up(self, policy: Policy, error: Exception) -> None:
        from toolkit.engine.machine import Change

        self._given_up = True
        said = next(iter(str(error).strip().splitlines()), "")
        change = Change(
            "model.fast_inference", self._asked, False, f"vLLM did not start: {type(error).__name__}: {said}"
        )
        changes = (*policy.setting.changes, change)
        policy.setting = replace(policy.setting, generator="transformers", changes=changes)
        _log.warning("transformers generates: %s", change.why)
        _log.debug("vLLM's error", exc_info=error)
