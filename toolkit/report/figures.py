"""The report's plots as plain data: what is on the axes, which lines, what a reader should see in them. It draws nothing."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from toolkit.report.completions import RIGHT
from toolkit.report.records import Record, Records

Figure = dict[str, Any]
Table = Mapping[str, Any]

MODELS = {"base": "base model", "few_shot": "base model, few-shot", "warmup": "after warm-up", "tuned": "after GRPO"}
BINS = 24


def model_name(name: str) -> str:
    """What a model of the evaluation is called for readers."""
    return MODELS.get(name, f"after step {name.removeprefix('step')}" if name.startswith("step") else name)


def training_figures(records: Records, table: Table | None) -> list[Figure]:
    """The curves over GRPO's steps. A quantity that was never recorded has no figure."""
    steps = records.steps
    grpo = records.recipe.get("grpo", {})
    spread = _spreads(table) if table else {}
    figures = [
        _curve(
            "reward", "Total reward", steps, "reward", "Mean over a step's completions; the band is one standard deviation.",
            band=[line.get("reward_std") for line in steps],
        ),
        _heldout(records),
        *_reward_figures(records, steps, spread),
        _curve(
            "dead_groups", "Groups without spread", steps, "dead_groups",
            "Share of groups whose completions all earned the same: they teach nothing. Near 1 nothing is left to learn.",
            unit="share",
        ),
        _curve(
            "length", "Completion length", steps, "completion_length",
            "Tokens; the band is one standard deviation, the dashed line the limit.",
            band=_at(steps, spread.get("tokens", {})), floor=0, limit=grpo.get("max_completion_length"),
        ),
        _curve("cut_off", "Cut off", steps, "cut_off", "Share of completions that ran into the limit.", unit="share"),
        _curve(
            "entropy", "Entropy", steps, "entropy",
            "Nats per token. It falls as the model becomes sure; close to 0 a group's completions are all alike.",
        ),
        _curve("kl", "KL to the base model", steps, "kl", "Nats per token, estimated; recorded where grpo.beta is above 0."),
        _curve(
            "grad_norm", "Gradient norm", steps, "grad_norm",
            "Before clipping; above the dashed line it is scaled down to it.", limit=grpo.get("max_grad_norm"),
        ),
        _curve("clip_ratio", "Clipped", steps, "clip_ratio", "Share of tokens whose ratio was clipped.", unit="share", minor=True),
        _curve("learning_rate", "Learning rate", steps, "learning_rate", "As scheduled.", minor=True),
        _curve("loss", "Loss", steps, "loss", "Near zero by construction; no sign of progress.", minor=True),
        _curve(
            "tokens_per_second", "Speed", steps, "tokens_per_second", "Completion tokens a second, all of a step counted.",
            minor=True,
        ),
    ]  # fmt: skip
    return [figure for figure in figures if figure]


def evaluation_figures(records: Records, table: Table | None) -> list[Figure]:
    """What the evaluation's answers show: accuracy by difficulty, lengths before and after."""
    if table is None:
        return []
    return [figure for figure in (_difficulty(records, table), _lengths(table)) if figure]


def overlaid(runs: Sequence[Records]) -> list[Figure]:
    """One quantity a figure, one line a run."""
    wanted = (
        ("reward", "Total reward", "number"),
        ("dead_groups", "Groups without spread", "share"),
        ("completion_length", "Completion length", "number"),
        ("cut_off", "Cut off", "share"),
        ("entropy", "Entropy", "number"),
        ("kl", "KL to the base model", "number"),
        ("grad_norm", "Gradient norm", "number"),
    )
    figures = [_overlay(runs, key, title, unit) for key, title, unit in wanted]
    return [figure for figure in [*figures[:1], _overlaid_accuracy(runs), *figures[1:]] if figure]


def _curve(
    key: str,
    title: str,
    lines: Sequence[Record],
    field: str,
    note: str,
    *,
    unit: str = "number",
    band: Sequence[float | None] | None = None,
    floor: float = -math.inf,
    limit: float | None = None,
    minor: bool = False,
) -> Figure | None:
    values = [line.get(field) for line in lines]
    if all(value is None for value in values):
        return None
    return {
        "id": key, "title": title, "note": note, "unit": unit, "kind": "lines", "minor": minor, "limit": limit,
        "x": [line["step"] for line in lines],
        "series": [{"name": title, "y": values, "band": _band(values, band, floor) if band else None}],
    }  # fmt: skip


def _band(values: Sequence[float | None], spread: Sequence[float | None], floor: float) -> list[list[float | None]]:
    pairs = list(zip(values, spread, strict=True))
    return [
        [None if value is None or width is None else max(floor, value + sign * width) for value, width in pairs]
        for sign in (-1, 1)
    ]


def _reward_figures(records: Records, steps: Sequence[Record], spread: Mapping[str, Any]) -> Iterator[Figure | None]:
    names = dict.fromkeys(name for line in steps for name in line.get("rewards") or {})
    for name in names:
        lines = [{"step": line["step"], "value": (line.get("rewards") or {}).get(name)} for line in steps]
        weight = records.weights.get(name, 1.0)
        note = "Mean over what it could judge; the band is one standard deviation."
        title = f"{name} × {weight:g}" if weight != 1 else name
        band = _at(steps, spread.get(name, {}))
        figure = _curve(f"reward-{name}", title, lines, "value", note, band=band)
        if figure:
            yield figure | {"small": True}


def _spreads(table: Table) -> dict[str, dict[int, float]]:
    """Of each reward, and of the lengths: the standard deviation in every step."""
    return {name: _deviations(table["when"], values) for name, values in table["rewards"].items()} | {
        "tokens": _deviations(table["when"], table["tokens"])
    }


def _deviations(steps: Sequence[int], values: Sequence[float | None]) -> dict[int, float]:
    found: dict[int, list[float]] = {}
    for step, value in zip(steps, values, strict=True):
        if value is not None:
            found.setdefault(step, []).append(value)
    return {step: statistics.stdev(known) for step, known in found.items() if len(known) > 1}


def _at(steps: Sequence[Record], found: Mapping[int, float]) -> list[float | None]:
    return [found.get(line["step"]) for line in steps]


def heldout_lines(records: Records) -> list[Record]:
    """The lines of evaluations during the training."""
    return [line for line in records.metrics if line.get("stage") == "eval"]


def _heldout(records: Records) -> Figure | None:
    lines = heldout_lines(records)
    wanted = {"accuracy": "right", "format_rate": "in the format", "lenient_accuracy": "right, tags ignored"}
    if all(line.get("accuracy") is None for line in lines):
        wanted = {"reward": "mean reward"}
    found = [{"name": name, "y": [line.get(key) for line in lines], "band": None} for key, name in wanted.items()]
    series = [line for line in found if any(value is not None for value in line["y"])]
    if not series:
        return None
    return {
        "id": "heldout", "title": "Held-out rows during training", "unit": "number" if "reward" in wanted else "share",
        "note": "A small fixed set, answered greedily between the steps.", "x": [line["step"] for line in lines],
        "series": series, "kind": "lines", "minor": False, "limit": None,
    }  # fmt: skip


def _overlay(runs: Sequence[Records], key: str, title: str, unit: str) -> Figure | None:
    return _merged(key, title, unit, [(run.name, {line["step"]: line.get(key) for line in run.steps}) for run in runs])


def _overlaid_accuracy(runs: Sequence[Records]) -> Figure | None:
    found = [(run.name, {line["step"]: line.get("accuracy") for line in heldout_lines(run)}) for run in runs]
    return _merged("heldout", "Held-out accuracy during training", "share", found)


def _merged(key: str, title: str, unit: str, found: Sequence[tuple[str, Mapping[int, Any]]]) -> Figure | None:
    if all(value is None for _, points in found for value in points.values()):
        return None
    steps = sorted({step for _, points in found for step in points})
    return {
        "id": key, "title": title, "note": "", "unit": unit, "kind": "lines", "minor": False, "limit": None, "x": steps,
        "series": [{"name": name, "y": [points.get(step) for step in steps], "band": None} for name, points in found],
    }  # fmt: skip


def _difficulty(records: Records, table: Table) -> Figure | None:
    """Accuracy by the level that the task gave its problems; without levels, by how often they were solved before GRPO."""
    if not records.graded:
        return None
    levels = [prompt[3] for prompt in table["prompts"]]
    if len({level for level in levels if level is not None}) > 1:
        return _by_level(table, [str(level) if level is not None else None for level in levels])
    return _by_earlier_success(table)


def _by_level(table: Table, levels: Sequence[str | None]) -> Figure:
    names = sorted({level for level in levels if level is not None}, key=_natural)
    series = []
    for model, label in enumerate(table["groups"]):
        shares = _right_by_problem(table, model)
        groups = [
            [shares[row] for row, level in enumerate(levels) if level == name and row in shares] for name in names
        ]
        series.append({"name": model_name(label)} | _means(groups))
    count = [levels.count(name) for name in names]
    return _categories(
        "Accuracy by difficulty", "Right sampled answers by the task's level; 95 % intervals.", names, count, series
    )


def _by_earlier_success(table: Table) -> Figure | None:
    before_grpo = "warmup" if "warmup" in table["groups"] else "base"
    if not {before_grpo, "tuned"} <= set(table["groups"]):
        return None
    before, after = (_right_by_problem(table, table["groups"].index(name)) for name in (before_grpo, "tuned"))
    shares = sorted(set(before.values()))
    if not 2 <= len(shares) <= 12:
        return None
    rows = [[row for row in before if before[row] == share and row in after] for share in shares]
    series = [{"name": model_name("tuned")} | _means([[after[row] for row in group] for group in rows])]
    note = (
        f"Problems by the share of sampled answers that was right {_before_words(before_grpo)}, and how often they are right now; "
        "95 % intervals."
    )
    return _categories(
        "Accuracy by difficulty", note, [f"{share:.0%}" for share in shares], list(map(len, rows)), series
    )


def _before_words(model: str) -> str:
    return "in the base model" if model == "base" else model_name(model)


def _categories(title: str, note: str, names: list[str], count: list[int], series: list[Any]) -> Figure:
    return {
        "id": "difficulty", "title": title, "note": note, "unit": "share", "kind": "points", "minor": False,
        "limit": None, "categories": names, "counts": count, "x": list(range(len(names))), "series": series,
    }  # fmt: skip


def _right_by_problem(table: Table, model: int) -> dict[int, float]:
    """The share of a problem's sampled answers that are right; of its greedy one where none was sampled."""
    found: dict[int, dict[bool, list[bool]]] = {}
    for number, group in enumerate(table["when"]):
        if group == model:
            kinds = found.setdefault(table["prompt"][number], {})
            kinds.setdefault(table["sample"][number] >= 0, []).append(bool(table["flags"][number] & RIGHT))
    return {row: statistics.fmean(kinds.get(True) or kinds[False]) for row, kinds in found.items()}


def _means(groups: Sequence[Sequence[float]]) -> dict[str, list[Any]]:
    """Means with 95 % intervals by Student's t over problems, kept between 0 and 1; none for fewer than two."""
    means = [statistics.fmean(group) if group else None for group in groups]
    bands = [_t_interval(group) for group in groups]
    return {"y": means, "band": [[band[side] for band in bands] for side in (0, 1)]}


def _t_interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    from scipy.stats import t

    if len(values) < 2:
        return None, None
    mean, error = statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))
    half = float(t.ppf(0.975, len(values) - 1)) * error
    return max(0.0, mean - half), min(1.0, mean + half)


def _lengths(table: Table) -> Figure | None:
    """Shares of answers by length, a stepped line a model."""
    of = [
        [tokens for tokens, group in zip(table["tokens"], table["when"], strict=True) if group == model and tokens is not None]
        for model in range(len(table["groups"]))
    ]  # fmt: skip
    longest = max((max(lengths) for lengths in of if lengths), default=0)
    if not longest:
        return None
    width = max(1, math.ceil((longest + 1) / BINS))
    bins = longest // width + 1
    series = []
    for name, lengths in zip(table["groups"], of, strict=True):
        counts = [0] * bins
        for tokens in lengths:
            counts[tokens // width] += 1
        series.append({"name": model_name(name), "y": [count / max(1, len(lengths)) for count in counts], "band": None})
    return {
        "id": "lengths", "title": "Answer length, before and after", "unit": "share", "kind": "steps", "minor": False,
        "limit": None, "note": f"Share of a model's answers by their tokens, in steps of {width}.",
        "x": [number * width for number in range(bins)], "series": series,
    }  # fmt: skip


def _natural(level: str) -> tuple[int, float, str]:
    """Numbers by their size before words by their letters."""
    try:
        return 0, float(level), level
    except ValueError:
        return 1, 0.0, level
