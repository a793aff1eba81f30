"""Held-out rows during training: what the policy answers to a few, which step was best, when to stop. It updates no weight.

The rows are the last ones of the held-out half, always the same, answered greedily through the generation of the rollouts. Greedy
answers draw no random number, so that a run with evaluations is the run without them.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from toolkit import console
from toolkit.atomic import replacing
from toolkit.rundir import RunDir

if TYPE_CHECKING:
    from toolkit.engine.load import Policy
    from toolkit.recipe import Recipe
    from toolkit.tasks import Row
    from toolkit.train.display import Display
    from toolkit.train.record import Recorder

Line = dict[str, Any]


@dataclass(frozen=True)
class Score:
    """What an evaluation during training comes to: the share of right answers, or the mean reward without golds."""

    step: int
    value: float


class HeldOut:
    """The evaluations of one training. Every decision follows from what is recorded, so that a resumed run decides the same."""

    def __init__(self, run: RunDir, recipe: Recipe, policy: Policy, recorder: Recorder, display: Display) -> None:
        self._run, self._recipe, self._policy = run, recipe, policy
        self._recorder, self._display = recorder, display
        self._rows: list[Row] = []
        if recipe.eval.every:
            self._rows = recipe.task.rows("heldout")[-recipe.eval.every_rows :]

    def start(self) -> None:
        """What the model can before the first step."""
        if self._rows and not self._recorder.evaluations():
            self._record(0)

    def after(self, step: int) -> bool:
        """Evaluate where this step is due; whether training should stop."""
        every = self._recipe.eval.every
        if not self._rows or not every or (step % every and step != self._recipe.grpo.max_steps):
            return False
        self._record(step)
        return self.ended()

    def ended(self) -> bool:
        """Whether what is recorded says that training should stop."""
        patience, every = self._recipe.eval.stop_after, self._recipe.eval.every
        if not patience or not every:
            return False
        return falls(scores(self._recorder.evaluations()), self._recorder.earned(), patience, every)

    def say_why(self) -> None:
        """That training was stopped, and by what."""
        found = best(scores(self._recorder.evaluations()))
        assert found is not None
        console.warn(
            f"stopped early: held out, the last {self._recipe.eval.stop_after} evaluations are below step {found.step}'s "
            f"{found.value:.3g}, while the reward rose: it pays for something else than it should"
        )

    def best_step(self) -> int | None:
        """The step whose adapter is to be kept; None: the last one's, as the recipe does not ask for the best."""
        found = best(trained(self._recorder.evaluations()))
        return found.step if found and self._recipe.eval.keep_best else None

    def adopt(self, step: int) -> None:
        """Put the weights of that step on the model."""
        from toolkit.engine.load import read_adapter_weights

        read_adapter_weights(self._policy, self._run.best / f"step-{step}")
        values = {score.step: score.value for score in scores(self._recorder.evaluations())}
        console.say(f"kept: the weights of step {step}, the best held out ({values[step]:.3g})")
        if 0 in values and values[0] >= values[step]:
            console.warn(f"no step was better, held out, than the model before the first one ({values[0]:.3g})")

    def forget(self) -> None:
        """The adapter is saved: the candidates are not needed."""
        shutil.rmtree(self._run.best, ignore_errors=True)

    def _record(self, step: int) -> None:
        line = measure(self._policy, self._recipe, self._rows)
        if self._recipe.eval.keep_best:
            self._keep_if_best({"step": step, **line})
        self._display.heldout(self._recorder.heldout_step(step, line), self._recorder.evaluations())

    def _keep_if_best(self, line: Line) -> None:
        """Save the adapter before its line is written: a line must never speak of an adapter that is not there.

        The best one up to the last checkpoint stays, too: an interrupted run goes on from there.
        """
        from toolkit.engine.load import save_adapter

        lines = [*self._recorder.evaluations(), line]
        found = best(trained(lines))
        if found is None or found.step != line["step"]:
            return
        self._run.best.mkdir(exist_ok=True)
        with replacing(self._run.best / f"step-{found.step}") as folder:
            save_adapter(self._policy, self._recipe, folder)
        reached = max(self._run.checkpoint_folders(), default=0)
        safe = best(trained([line for line in lines if line["step"] <= reached]))
        wanted = {f"step-{score.step}" for score in (found, safe) if score}
        for folder in self._run.best.iterdir():
            if folder.name not in wanted:
                shutil.rmtree(folder)


def measure(policy: Policy, recipe: Recipe, rows: Sequence[Row]) -> Line:
    """Greedy answers to these rows: accuracy, or the mean reward where the task has no golds; lengths, and how many rows."""
    from toolkit.engine.arguments import training_sampling
    from toolkit.engine.sampler import draw

    sampling = replace(training_sampling(recipe, policy.stop_token_ids), temperature=0.0, repetition_penalty=1.0)
    prompts = [policy.prompt_ids(recipe.task.messages(row)) for row in rows]
    drawn = draw(policy, "default", prompts, sampling, batch_rows=recipe.eval.batch_size)
    ids = [completion.token_ids for completion in drawn]
    texts = [policy.text(tokens) for tokens in ids]
    found = _accuracy(recipe, rows, texts) if recipe.task.graded else _reward(policy, recipe, rows, texts, ids)
    return found | {
        "completion_length": statistics.fmean(map(len, ids)),
        "cut_off": statistics.fmean(completion.truncated for completion in drawn),
        "rows": len(rows),
    }


def _accuracy(recipe: Recipe, rows: Sequence[Row], texts: Sequence[str]) -> Line:
    grades = [recipe.task.grade(text, row) for text, row in zip(texts, rows, strict=True)]
    return {
        "accuracy": statistics.fmean(grade.strict for grade in grades),
        "lenient_accuracy": statistics.fmean(grade.lenient for grade in grades),
        "format_rate": statistics.fmean(grade.well_formed for grade in grades),
    }


def _reward(
    policy: Policy, recipe: Recipe, rows: Sequence[Row], texts: Sequence[str], ids: Sequence[Sequence[int]]
) -> Line:
    from toolkit.engine.rollout import added, judged
    from toolkit.engine.surroundings import surroundings

    around = surroundings(recipe, policy)
    totals: list[float | None] = [None] * len(rows)
    for reward in recipe.rewards:
        said = judged(reward.within(around), texts, rows, ids)
        totals = [added(total, reward.weight, value) for total, value in zip(totals, said, strict=True)]
    known = [total for total in totals if total is not None]
    return {"reward": statistics.fmean(known) if known else None}


def scores(lines: Sequence[Line]) -> list[Score]:
    """What the evaluations came to, in the order of the steps; those in which nothing could be judged left out."""
    values = [(line["step"], line.get("accuracy", line.get("reward"))) for line in lines]
    return [Score(step, value) for step, value in values if value is not None]


def trained(lines: Sequence[Line]) -> list[Score]:
    """Without the evaluation before the first step: there is no GRPO in that adapter."""
    return [score for score in scores(lines) if score.step > 0]


def best(found: Sequence[Score]) -> Score | None:
    """The highest; of equal ones the earliest, which has moved least from the base model."""
    return max(found, key=lambda score: (score.value, -score.step), default=None)


def falls(found: Sequence[Score], earned: Sequence[tuple[int, float]], patience: int, every: int) -> bool:
    """Whether the last `patience` evaluations are all below the best one before them while the reward rose.

    `earned`: step and mean reward of every training step. It rose where its mean over the `every` steps before the last evaluation
    is above that over the `every` steps before the best one (over the first ones, where that is step 0).
    """
    top = best(found[:-patience])
    if top is None or any(score.value >= top.value for score in found[-patience:]):
        return False
    then, now = max(top.step, every), found[-1].step
    before = [reward for step, reward in earned if then - every < step <= then]
    after = [reward for step, reward in earned if now - every < step <= now]
    return bool(before and after) and statistics.fmean(after) > statistics.fmean(before)


def warn_of_selection(recipe: Recipe, heldout: Sequence[Row]) -> None:
    """Rows that choose the checkpoint should not be the ones that measure it."""
    chosen = recipe.eval.keep_best or recipe.eval.stop_after
    both = min(recipe.eval.rows, len(heldout)) + recipe.eval.every_rows - len(heldout)
    if chosen and both > 0:
        console.warn(
            f"{both} held-out rows choose the checkpoint and are asked by the evaluation, too, which flatters it: "
            f"lower eval.rows to {max(1, recipe.eval.rows - both)}, or set more rows aside"
        )
