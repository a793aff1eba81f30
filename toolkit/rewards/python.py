"""The reward `python`: a function of the user's, in TRL's signature or in ours, and what is done where it fails.

How it is found, what it is given and how it is called stand in `user_function`, `user_arguments` and `user_call`.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from toolkit.errors import DataError, KeyFault, ToolkitError
from toolkit.rewards.base import RewardBase
from toolkit.rewards.user_arguments import LISTS, Batch, Extras, as_lists, by_row, problem
from toolkit.rewards.user_call import Fault, as_reward, as_rewards, outcomes
from toolkit.rewards.user_function import UserFunction, is_spelled_right, user_function
from toolkit.tasks.base import Row

_log = logging.getLogger(__name__)
_HEAD = 120
"""Characters of a completion that an error shows."""


class Python(RewardBase):
    """What a function of yours says: a number for each completion, or None where it cannot judge one.

    Range: the function's own. It takes TRL's lists (prompts, completions, completion_ids, the data's columns), or `text` and
    `row`. Where it raises, or gives something that is no finite number, the run stops, or the completion is left out.
    After the reward functions of TRL's GRPOTrainer.
    """

    name: Literal["python"] = "python"

    function: str
    """`file.py:function`, seen from the folder you are in, or `package.module:function`."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Further arguments, the same in every call."""
    factory_arguments: dict[str, Any] | None = None
    """Where given, the function is called with these once, and returns the reward function."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Parameters that are fed from a column of another name, e.g. {solution: gold}."""
    on_error: Literal["stop", "abstain"] = "stop"
    """When the function fails on a completion: stop the run, or leave the completion out of this reward."""

    @field_validator("function")
    @classmethod
    def _spelled_right(cls, function: str) -> str:
        if not is_spelled_right(function):
            raise ValueError("a function is written file.py:function or package.module:function")
        return function

    @model_validator(mode="after")
    def _said_once(self) -> Self:
        for key, names in (("arguments", self.arguments), ("columns", self.columns)):
            for name in names:
                if name in LISTS or (name in self.arguments and name in self.columns):
                    raise KeyFault(f"{name} is given to the function already", at=(key, name), hint="leave it out here")
        return self

    @property
    def bounds(self) -> tuple[float | None, float | None]:
        return None, None

    def score(self, text: str, row: Row) -> float | None:
        return self.score_batch([text], [row])[0]

    def score_batch(
        self, texts: Sequence[str], rows: Sequence[Row], *, ids: Sequence[Sequence[int]] | None = None
    ) -> list[float | None]:
        return self._judge(Batch(texts, rows, ids))

    def ready(self, rows: Sequence[Row]) -> None:
        """Load the function, again where its file has changed, and compare what it asks for with what there is."""
        found = problem(self._function(fresh=True), self._extras, rows)
        if found:
            message, hint = found
            raise DataError(message, where=self.function, hint=hint)

    def _judge(self, batch: Batch) -> list[float | None]:
        if not len(batch):
            return []
        function = self._function()
        if function.by_row:
            judged = [as_reward(outcome) for outcome in outcomes(function.call, by_row(batch, self._extras))]
        else:
            judged = self._together(function, batch)
        self._settle(judged, batch)
        return [None if isinstance(value, Fault) else value for value in judged]

    def _together(self, function: UserFunction, batch: Batch) -> list[float | Fault | None]:
        """One call for all. Where it fails as a whole and that will stop the run, one by one, to name the first that fails."""
        if batch.ids is None and "completion_ids" in function.named:
            batch = dataclasses.replace(batch, ids=[self._token_ids(text) for text in batch.texts])
        (outcome,) = outcomes(function.call, [as_lists(function, batch, self._extras)])
        judged = as_rewards(outcome, len(batch))
        if not isinstance(judged, Fault):
            return judged
        if len(batch) > 1 and self.on_error == "stop":
            for place in range(len(batch)):
                (alone,) = self._together(function, batch.one(place))
                if isinstance(alone, Fault):
                    return [*[None] * place, alone, *[None] * (len(batch) - place - 1)]
        return [judged] * len(batch)

    def _settle(self, judged: Sequence[float | Fault | None], batch: Batch) -> None:
        """Stop at the first fault, or tell how many there were."""
        faults = [(place, value) for place, value in enumerate(judged) if isinstance(value, Fault)]
        if not faults:
            return
        place, fault = faults[0]
        text = batch.texts[place]
        message = f"{fault.message}, on {text[:_HEAD]!r}{'…' if len(text) > _HEAD else ''}"
        where = f"{self.function}, row {batch.rows[place].id}"
        if self.on_error == "stop":
            raise ToolkitError(
                message, where=where, hint="on_error: abstain leaves such completions out"
            ) from fault.cause
        _log.warning("%d of %d completions are left out; %s: %s", len(faults), len(batch), where, message)

    @property
    def _extras(self) -> Extras:
        return Extras(self.arguments, self.columns)

    def _function(self, *, fresh: bool = False) -> UserFunction:
        return user_function(self.function, self.factory_arguments, fresh=fresh)

    def _token_ids(self, text: str) -> list[int]:
        if self.around.token_ids is None:
            raise ToolkitError("asks for completion_ids, and there is no tokenizer to make them", where=self.function)
        return self.around.token_ids(text)
