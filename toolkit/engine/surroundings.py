"""What rewards may need besides text and row, from a recipe: token counts, and answers of the base model.

Nothing is loaded before the first question. With a policy its model and tokenizer answer, as they are in training; without one
a tokenizer or the whole model is loaded for it. transformers comes with either, and in a process that trains
Unsloth must have been imported before it: there, give the policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from toolkit.errors import EngineError
from toolkit.rewards.base import Chat, Surroundings
from toolkit.rundir import cache_folder

if TYPE_CHECKING:
    from toolkit.engine.load import Policy
    from toolkit.recipe import Recipe


def surroundings(recipe: Recipe, policy: Policy | None = None) -> Surroundings:
    """For `RewardBase.within`."""
    model, grpo = _RecipesModel(recipe, policy), recipe.grpo
    return Surroundings(
        count_tokens=lambda text: len(model.token_ids(text)),
        ask_base=model.answers,
        max_completion_length=grpo.max_completion_length,
        token_ids=model.token_ids,
        cache_folder=cache_folder(),
        spare_length=recipe.model.max_seq_length - grpo.max_prompt_length - grpo.max_completion_length,
    )


class _RecipesModel:
    """The base model and its tokenizer, each loaded when first needed, if nobody has done so."""

    def __init__(self, recipe: Recipe, policy: Policy | None) -> None:
        self._recipe = recipe
        self._policy = policy

    def token_ids(self, text: str) -> list[int]:
        tokenizer = self._policy.tokenizer if self._policy else self._tokenizer
        return tokenizer.encode(text, add_special_tokens=False, verbose=False)

    def answers(self, chats: Sequence[Chat], max_tokens: int) -> list[str]:
        """Greedy, with the adapter switched off, whatever generates in training: vLLM holds the adapter's weights."""
        from toolkit.engine.completions import Sampling
        from toolkit.engine.load import load_policy
        from toolkit.engine.sampler import draw

        if self._policy is None:
            self._policy = load_policy(self._recipe)
        policy = self._policy
        sampling = Sampling(max_tokens, temperature=0.0, stop_token_ids=policy.stop_token_ids)
        prompts = [policy.prompt_ids(chat) for chat in chats]
        self._require_room(max(map(len, prompts), default=0) + max_tokens)
        drawn = draw(policy, None, prompts, sampling, batch_rows=self._recipe.eval.batch_size)
        return [policy.text(completion.token_ids) for completion in drawn]

    def _require_room(self, tokens: int) -> None:
        """Unsloth cuts off, with a warning, what is longer than max_seq_length: the end of a question, and so its point."""
        limit = self._recipe.model.max_seq_length
        if tokens > limit:
            raise EngineError(
                f"a question to the base model and its answer take {tokens} tokens, model.max_seq_length is {limit}",
                hint=f"model.max_seq_length: {tokens}",
            )

    @cached_property
    def _tokenizer(self) -> Any:
        from toolkit.engine.tokenizer import load_tokenizer

        return load_tokenizer(self._recipe.model)
