"""Several runs on one page: recipe keys that differ, curves over each other, evaluations paired by problem. It asks no model.

Runs are paired by the ids of their held-out problems, and only where the questions behind the ids are the same. The interval of
a difference is a bootstrap over problems (BCa, Efron 1987), the p-value McNemar's exact test (1947) on greedy answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from toolkit.errors import ToolkitError
from toolkit.report.document import write_document
from toolkit.report.figures import overlaid
from toolkit.report.records import Records, read_run
from toolkit.report.runs import LAST_STEPS, state_of
from toolkit.report.summary import cost, recipe_table
from toolkit.statistics import interval, mcnemar

SCHEMA = 1
NAME = "compare.html"
FOLDER = Path("reports")


@dataclass(frozen=True)
class Scores:
    """What a run's tuned model got on its held-out problems, by the problem's id."""

    questions: Mapping[str, str]
    sampled: Mapping[str, float]
    """The mean over the problem's sampled answers: of right answers, or of rewards where there are no golds."""
    greedy: Mapping[str, bool]
    """Whether the greedy answer was right; empty without golds, or without greedy answers."""


def write_comparison(paths: Sequence[Path], *, to: Path | None = None) -> Path:
    """Write the page about these runs, by default as `reports/compare.html`; the file's path."""
    distinct = list(dict.fromkeys(path.resolve() for path in paths))
    if len(distinct) < 2:
        raise ToolkitError("two runs or more are needed", hint="toolkit compare RUN RUN; toolkit runs lists them")
    return write_document(to or FOLDER / NAME, comparison_data([read_run(path) for path in distinct]))


def comparison_data(runs: Sequence[Records]) -> dict[str, Any]:
    """All that the page shows."""
    graded = {run.graded for run in runs if run.evaluation is not None}
    scores = {run.name: found for run in runs if (found := tuned_scores(run)) is not None} if len(graded) == 1 else {}
    pairs = [_pair(*pair, scores, graded=True in graded) for pair in combinations(scores, 2)]
    shown = [pair for pair in pairs if pair]
    return {
        "schema": SCHEMA,
        "title": "Comparison of runs",
        "graded": True in graded,
        "unit": "share" if True in graded else "number",
        "head": {"title": f"{len(runs)} runs compared", "run": None, "description": None, "state": None, "facts": []},
        "runs": [_run(run, graded=True in graded) for run in runs],
        "pairs": shown,
        "sentences": [pair["sentence"] for pair in shown],
        "notes": _notes(runs, graded, pairs),
        "figures": overlaid(runs),
        "training": None,
        "answers": None,
        "recipe": [line for line in recipe_table(runs) if len(set(line[1:])) > 1],
    }


def tuned_scores(run: Records) -> Scores | None:
    """The tuned model's score on each problem; None where the run was not evaluated."""
    from pyarrow import parquet

    file = run.run.eval_completions
    if not file.is_file():
        return None
    answers = [entry for entry in parquet.read_table(file).to_pylist() if entry["model"] == "tuned"]
    key = "strict" if run.graded else "reward"
    sampled: dict[str, list[float]] = {}
    for answer in answers:
        if answer["sample"] >= 0 and answer.get(key) is not None:
            sampled.setdefault(answer["row_id"], []).append(float(answer[key]))
    return Scores(
        questions={answer["row_id"]: answer["question"] for answer in answers},
        sampled={row: sum(values) / len(values) for row, values in sampled.items()},
        greedy={answer["row_id"]: answer["strict"] for answer in answers if run.graded and answer["sample"] < 0},
    )


def _pair(first: str, second: str, scores: Mapping[str, Scores], *, graded: bool) -> dict[str, Any] | None:
    """The second run against the first, on the problems that both were asked; None where there are fewer than two."""
    one, other = scores[first], scores[second]
    same = [row for row, question in one.questions.items() if other.questions.get(row) == question]
    rows = [row for row in same if row in one.sampled and row in other.sampled]
    if len(rows) < 2:
        return None
    changes = [other.sampled[row] - one.sampled[row] for row in rows]
    delta, (low, high) = sum(changes) / len(changes), interval(changes)
    scale, digits, unit = (100, "+.1f", " points") if graded else (1, "+.3g", "")
    change, ends = f"{delta * scale:{digits}}{unit}", f"{low * scale:{digits}} to {high * scale:{digits}}"
    greedy = [(one.greedy[row], other.greedy[row]) for row in same if row in one.greedy and row in other.greedy]
    return {
        "name": f"{second} against {first}",
        "change": change,
        "interval": ends,
        "p": f"{_chance(greedy):.2g}" if greedy else "–",
        "n": str(len(rows)),
        "sentence": _sentence(first, second, change, ends, (low, high), graded=graded),
    }


def _chance(pairs: Sequence[tuple[bool, bool]]) -> float:
    """McNemar's p-value of the problems that one run alone solves."""
    gained, lost = (sum(pair == alone for pair in pairs) for alone in ((False, True), (True, False)))
    return mcnemar(gained, lost)


def _sentence(first: str, second: str, change: str, ends: str, bounds: tuple[float, float], *, graded: bool) -> str:
    what = "sampled answers are right" if graded else "sampled answers earn"
    low, high = bounds
    if low <= 0 <= high:
        return f"Between {first} and {second} no difference can be shown ({change}, 95 % interval {ends})."
    word = "more often" if low > 0 else "less often"
    if not graded:
        word = "more" if low > 0 else "less"
    return f"The {what} {word} in {second} than in {first} ({change}, 95 % interval {ends}, the same problems)."


def _run(run: Records, *, graded: bool) -> dict[str, Any]:
    tuned = ((run.evaluation or {}).get("models") or {}).get("tuned") or {}
    found = tuned if graded else tuned.get("reward") or {}
    rewards = [line["reward"] for line in run.steps if line.get("reward") is not None][-LAST_STEPS:]
    return {
        "name": run.name,
        "recipe": run.recipe_name,
        "state": state_of(run.run),
        "steps": str(len(run.steps)),
        "reward": sum(rewards) / len(rewards) if rewards else None,
        "value": found.get("accuracy" if graded else "mean"),
        "interval": found.get("ci95"),
        "time": next((value for name, value, *_ in cost(run) if name == "time"), "–"),
    }


def _notes(runs: Sequence[Records], graded: set[bool], pairs: Sequence[Any]) -> list[str]:
    missing = [run.name for run in runs if run.evaluation is None]
    notes = [f"Not evaluated yet: {', '.join(missing)} (toolkit eval RUN)."] if missing else []
    if len(graded) > 1:
        notes.append("Some of these tasks count right answers and others do not: their evaluations are not compared.")
    if pairs and not all(pairs):
        notes.append("Runs that were asked different problems are not paired.")
    notes.append(f"Reward: the mean of the last {LAST_STEPS} steps. Rewards of different recipes are different units.")
    return notes
