"""Runs to report on: written by the steps' own writers, with a model that answers by heart and completions made to do harm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyarrow import parquet

from by_heart import evaluate
from models import small_recipe
from toolkit.atomic import write_json
from toolkit.engine.rollout import added
from toolkit.evaluate.record import write_answers
from toolkit.prompts import format_completion
from toolkit.recipe import Recipe
from toolkit.rundir import RunDir
from toolkit.tasks import Row
from toolkit.train.record import Recorder, write_state

HOSTILE = (
    "<script>window.hacked = 1</script>",
    "</script><script>window.hacked = 2</script>",
    "<!-- <script> <!--",
    "--> ]]> </style></title><img src=x onerror='window.hacked = 3'>",
    "<answer>\u2028one\u2029two</answer",
    "<b>bold &lt;i&gt; &amp;</b> ${window.hacked = 4} `tick` \\u003c/script> \\",
    "@DATA@ @SCRIPT@ @POLICY@ \x00 \x1b[31m \u202e desrever",
    "<a href='javascript:window.hacked = 5'>link</a> <svg onload=window.hacked=6>",
    "",
)
LOGS: dict[str, Any] = {
    "loss": 0.0, "entropy": 0.4, "kl": 0.01, "clip_ratio/region_mean": 0.0, "grad_norm": 0.2, "learning_rate": 1e-5,
}  # fmt: skip


def report_recipe(**sections: Any) -> Recipe:
    """Four held-out problems, two samples each, and the greedy answer."""
    return small_recipe("org/base", **({"eval": {"rows": 4, "samples": 2}} | sections))


def completion(recipe: Recipe, row: Row, text: str, **more: Any) -> dict[str, Any]:
    """A line of the training's table, paid by the recipe's own rewards."""
    entry: dict[str, Any] = {"row_id": row.id, "prompt": row.question, "gold": row.gold, "completion": text}
    entry |= {"tokens": len(text) + 1, "cut_off": False, "used": True, "reward": None} | more
    for reward in recipe.rewards:
        entry[f"reward/{reward.name}"] = reward.score(text, row)
        entry["reward"] = added(entry["reward"], reward.weight, entry[f"reward/{reward.name}"])
    return entry


def texts_of(row: Row, step: int) -> list[str]:
    """Four different completions of a problem: right, wrong in format, right out of format, hostile."""
    wrong = format_completion("I guess.", str(int(row.gold) + 1))
    return [format_completion("I know.", row.gold), wrong, f"It is {row.gold}", HOSTILE[step % len(HOSTILE)]]


def made_run(folder: Path, recipe: Recipe | None = None, *, steps: int = 9) -> RunDir:
    """A run that is done and evaluated; two problems a step, one of which comes in every step."""
    recipe = recipe or report_recipe()
    run = RunDir(folder)
    evaluate(recipe, run.path)
    rows = recipe.task.rows("train")
    recorder = Recorder(run, "grpo")
    recorder.rewind(None)
    for step in range(1, steps + 1):
        pair = (rows[0], rows[1 + step % (len(rows) - 1)])
        table = [completion(recipe, row, text) for row in pair for text in texts_of(row, step)]
        table[1] |= {"cut_off": True, "tokens": 900 + step}
        recorder.grpo_step(step, LOGS, table)
        recorder.heldout_step(
            step, {"accuracy": step / 20, "lenient_accuracy": step / 10, "format_rate": 0.5, "rows": 4}
        )
    write_state(run, "done")
    made_hostile(run)
    return run


def made_hostile(run: RunDir) -> None:
    """Put a hostile text in the place of every second wrong answer."""
    answers = parquet.read_table(run.eval_completions).to_pylist()
    wrong = [answer for answer in answers if not answer["strict"]]
    for number, answer in enumerate(wrong[::2]):
        answer["completion"] = HOSTILE[number % len(HOSTILE)]
    write_answers(run.eval_completions, answers)


def bare_run(folder: Path, state: str | None, **sections: Any) -> RunDir:
    """A run that has just begun: its recipe, and its state."""
    run = RunDir(folder)
    run.path.mkdir(parents=True)
    write_json(run.recipe, report_recipe(**sections).model_dump(mode="json"))
    if state:
        write_state(run, state)
    return run
