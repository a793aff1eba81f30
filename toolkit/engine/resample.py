"""DAPO's dynamic sampling (arXiv 2503.14476, section 3.2) with a limit: groups without spread give way to other prompts' groups.

The paper draws until the batch is full of groups that teach something; here it is at most `grpo.resample_rounds` times a
step. What still has no spread after the last round stays, and adds nothing to the gradient. TRL's trainer (or Unsloth's, or
the lean one) generates and scores every draw; this puts batches together, and records nothing but what was not used.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from toolkit.engine.rollout import ROW_COLUMN, Entry, RewardRecorder, has_spread
from toolkit.errors import EngineError

if TYPE_CHECKING:
    import torch

    from toolkit.recipe import Recipe

Batch = dict[str, Any]

# Tensors of a batch that have one row a completion and one column a token: the side on which they are padded, and with what
# (None: the tokenizer's pad token). `window` is `right`, but in Unsloth's GPU trainer.
_PADDING: dict[str, tuple[str, float | None]] = {
    "prompt_ids": ("left", None),
    "prompt_mask": ("left", 0),
    "completion_ids": ("right", None),
    "completion_mask": ("right", 0),
    "sampling_per_token_logps": ("right", 0.0),
    "old_per_token_logps": ("window", 0.0),
    "ref_per_token_logps": ("window", 0.0),
}


def resampling_trainer(base: Any, recorder: RewardRecorder, recipe: Recipe, row_ids: Sequence[str]) -> Any:
    """A subclass of the trainer class `base` whose training set holds these rows in this order."""

    class ResamplingGRPOTrainer(base):
        resample_round = 0
        """Which draw of the step it is: 0 is the first."""

        def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> Batch:
            batch = super()._generate_and_score_completions(inputs)
            if not self.model.training:
                return batch
            entries, tried = list(recorder.batch), {row[ROW_COLUMN] for row in inputs}
            for number in range(1, recipe.grpo.resample_rounds + 1):
                dead = dead_groups(entries, self.num_generations)
                others = self._others(len(dead), tried, number)
                if not others:
                    break
                tried |= {row[ROW_COLUMN] for row in others}
                fresh = self._drawn_again(others, number)
                places = [at * self.num_generations + i for at in dead for i in range(self.num_generations)]
                places = places[: len(others) * self.num_generations]
                batch = merged(batch, fresh, places, pad_token_id=self._tokenizer.pad_token_id)
                for place, entry in zip(places, recorder.batch, strict=True):
                    entries[place]["used"], entries[place] = False, entry
            return batch

        def _others(self, count: int, tried: Collection[str], number: int) -> list[dict[str, Any]]:
            step, seed = self.state.global_step, recipe.seed
            drawn = other_rows(row_ids, count, tried, seed=f"{seed}/{step}/{number}")
            return [self.train_dataset[place] for place in drawn]

        def _drawn_again(self, rows: list[dict[str, Any]], number: int) -> Batch:
            self.resample_round = number
            try:
                repeated = [dict(row) for row in rows for _ in range(self.num_generations)]
                return super()._generate_and_score_completions(repeated)
            finally:
                self.resample_round = 0

    return ResamplingGRPOTrainer


def dead_groups(entries: Sequence[Entry], size: int) -> list[int]:
    """The numbers of the groups (of `size` entries in a row) whose completions all earned the same."""
    totals = [entry["reward"] for entry in entries]
    return [at // size for at in range(0, len(totals), size) if not has_spread(totals[at : at + size])]


def other_rows(row_ids: Sequence[str], count: int, tried: Collection[str], *, seed: str) -> list[int]:
    """Places of at most `count` rows that were not tried in this step. The same seed and rows give the same draw."""
    free = [place for place, row_id in enumerate(row_ids) if row_id not in tried]
    return random.Random(seed).sample(free, min(count, len(free)))


def merged(batch: Batch, fresh: Batch, places: Sequence[int], *, pad_token_id: int) -> Batch:
    """`batch` with its rows at `places` replaced by the rows of `fresh`, in that order.

    Raises EngineError where the trainer put something into a batch that this does not know how to put together.
    """
    frames = _Frame(batch), _Frame(fresh)
    index = frames[0].rows_tensor(places)
    result: Batch = {}
    for name, value in batch.items():
        if value is None or name in ("num_items_in_batch", "max_left_pad"):
            result[name] = value
        elif name == "advantages":
            result[name] = value.index_copy(0, index, fresh[name])
        elif name in _PADDING:
            old, new = (_widened(frame, name, frames, pad_token_id) for frame in frames)
            result[name] = old.index_copy(0, index, new)
        else:
            raise EngineError(f"batches with {name} cannot be put together", hint="grpo.resample_rounds: 0")
    result["num_items_in_batch"] = result["completion_mask"].sum()  # as TRL counts them, in one process
    if batch.get("max_left_pad") is not None:
        result["max_left_pad"] = batch["max_left_pad"].new_full(batch["max_left_pad"].shape, _window(frames))
    return result


class _Frame:
    """A batch with the widths of its prompts, completions and, in Unsloth's GPU trainer, left padding."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.prompt, self.completion = batch["prompt_ids"].shape[1], batch["completion_ids"].shape[1]
        left = batch.get("max_left_pad")
        self.left: int | None = None if left is None else int(left.max())

    def rows_tensor(self, places: Sequence[int]) -> torch.Tensor:
        import torch

        return torch.tensor(list(places), device=self.batch["prompt_ids"].device)


def _window(frames: tuple[_Frame, _Frame]) -> int:
    """Unsloth's GPU trainer packs rows to the left and looks at the last `completion + max_left_pad` columns, in which an
    answer begins `max_left_pad - its own padding` columns in. A longer prompt beside it adds to its padding."""
    prompt = max(frame.prompt for frame in frames)
    return max((frame.left or 0) + prompt - frame.prompt for frame in frames)


def _widened(frame: _Frame, name: str, frames: tuple[_Frame, _Frame], pad_token_id: int) -> torch.Tensor:
    """One tensor of one batch, padded to the width that it has in both together."""
    import torch

    value, (side, fill) = frame.batch[name], _PADDING[name]
    longer = max(other.completion for other in frames) - frame.completion
    before = max(other.prompt for other in frames) - frame.prompt
    if side == "left":
        left, right = before, 0
    elif side == "window" and frame.left is not None:
        left = _window(frames) - frame.left - before
        right = longer + before
    else:
        left, right = 0, longer
    return torch.nn.functional.pad(value, (left, right), value=pad_token_id if fill is None else fill)
