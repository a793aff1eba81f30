"""The report's head: what was trained on what, the verdict, the models with their intervals, cost, findings and certificate.

From records alone. A sentence says no more than its interval does.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from typing import Any

from toolkit.errors import ToolkitError
from toolkit.report.figures import model_name
from toolkit.report.records import Record, Records, flat

EDGE = 0.1
"""The share of the steps that counts as a training's beginning, and as its end."""


def head(records: Records) -> dict[str, Any]:
    """Title and facts."""
    manifest = records.manifest or {}
    return {
        "title": records.recipe_name,
        "run": records.name,
        "description": records.recipe.get("description", ""),
        "state": (records.state or {}).get("state"),
        "facts": [[name, value] for name, value in _facts(records, manifest) if value],
    }


def _facts(records: Records, manifest: Record) -> list[tuple[str, str]]:
    recipe, task, grpo = records.recipe, records.recipe.get("task", {}), records.recipe.get("grpo", {})
    rows = manifest.get("data", {}).get("train", {}).get("rows")
    data = task.get("dataset") or task.get("train_file")
    learned = f"{task.get('name', '?')}{f', {data}' if data else ''}{f' ({rows:,} rows)' if rows else ''}"
    size = f"{grpo.get('prompts_per_step', '?')} prompts × {grpo.get('num_generations', '?')} completions a step"
    weights = ", ".join(name if weight == 1 else f"{name} × {weight:g}" for name, weight in records.weights.items())
    machine = manifest.get("machine", {})
    place = [machine.get("name"), f"{machine['threads']} threads" if machine.get("threads") else None]
    return [
        ("base model", str(recipe.get("model", {}).get("source", "?"))),
        ("trained on", learned),
        ("rewards", weights),
        ("steps", f"{_last_step(records)} of {grpo.get('max_steps', '?')}, {size}"),
        ("machine", ", ".join(str(part) for part in place if part)),
        ("begun", str(manifest.get("created", ""))),
    ]


def _last_step(records: Records) -> int:
    return max((line["step"] for line in records.steps), default=0)


def verdict(records: Records) -> dict[str, Any]:
    """At most two sentences, and whether they are good news (`good`, `bad`, `open`)."""
    if records.evaluation and "tuned" in records.evaluation["models"]:
        return _measured(records.evaluation)
    return {"tone": "open", "sentences": [_unmeasured(records), _reward_moved(records)]}


def _measured(evaluation: Record) -> dict[str, Any]:
    before = "warmup" if "warmup" in evaluation["models"] else "base"
    change = evaluation["differences"].get(f"tuned-{before}") or {}
    graded = evaluation.get("graded", True)
    moved = change if graded else change.get("reward")
    if not moved or moved.get("ci95") is None:
        return {"tone": "open", "sentences": ["No answer could be judged both before and after GRPO."]}
    low, high = moved["ci95"]
    tone = "good" if low > 0 else "bad" if high < 0 else "open"
    sentences = [_change_sentence(evaluation, before, moved, graded)]
    second = _split_sentence(evaluation) if graded else _length_sentence(evaluation, before)
    return {"tone": tone, "sentences": [*sentences, *([second] if second else [])]}


def _change_sentence(evaluation: Record, before: str, moved: Record, graded: bool) -> str:
    models = evaluation["models"]
    what = "the share of right sampled answers" if graded else "the mean reward of sampled answers"
    values = [_level(models[name], graded) for name in (before, "tuned")]
    low, high = moved["ci95"]
    verb = "raised" if low > 0 else "lowered" if high < 0 else None
    scale, digits, unit = (100, "+.1f", " points") if graded else (1, "+.3g", "")
    by = f"{moved['delta'] * scale:{digits}}{unit}, 95 % interval {low * scale:{digits}} to {high * scale:{digits}}"
    where = f"on {evaluation['n']} {'problems' if graded else 'prompts'} that were not in the training"
    against = "the base model's" if before == "base" else "the warm-up's"
    if verb:
        return f"GRPO {verb} {what} from {against} {values[0]} to {values[1]} ({by}) {where}."
    return f"GRPO made no difference that can be shown in {what}: {values[0]} before, {values[1]} after ({by}) {where}."


def _level(model: Record, graded: bool) -> str:
    if graded:
        return f"{100 * model['accuracy']:.1f} %"
    return f"{model['reward']['mean']:.3g}" if model.get("reward") else "–"


def _split_sentence(evaluation: Record) -> str | None:
    """How much of the gain is format, as the evaluation said it."""
    return (evaluation.get("gain") or {}).get("sentence")


def _length_sentence(evaluation: Record, before: str) -> str:
    old, new = (evaluation["models"][name]["mean_tokens"] for name in (before, "tuned"))
    return (
        f"Answers went from {old:.0f} tokens to {new:.0f}; whether they are better is for a reader, or a judge, to say."
    )


def _unmeasured(records: Records) -> str:
    state, step = (records.state or {}).get("state"), _last_step(records)
    total = records.recipe.get("grpo", {}).get("max_steps", "?")
    if state == "done":
        return f"The training went to its end and has not been evaluated: toolkit eval {records.name}."
    return f"The training {'is' if state == 'running' else 'ended'} at step {step} of {total}."


def _reward_moved(records: Records) -> str:
    known = [line["reward"] for line in records.steps if line.get("reward") is not None]
    if len(known) < 2:
        return "There are too few steps to see where the reward goes."
    edge = max(1, round(EDGE * len(known)))
    first, last = statistics.fmean(known[:edge]), statistics.fmean(known[-edge:])
    return (
        f"The mean reward went from {first:.3g} in its first {_steps(edge)} to {last:.3g} in its last {_steps(edge)}."
    )


def _steps(number: int) -> str:
    return "step" if number == 1 else f"{number} steps"


def stages(records: Records) -> dict[str, Any] | None:
    """The models of the evaluation in the order of training, with their intervals."""
    evaluation = records.evaluation
    if evaluation is None:
        return None
    graded = evaluation.get("graded", True)
    return {
        "graded": graded,
        "unit": "share" if graded else "number",
        "n": evaluation["n"],
        "samples": evaluation["samples"],
        "models": [_stage(name, model, graded) for name, model in evaluation["models"].items()],
        "others": [_other(name, record) for name, record in records.other_evaluations.items()],
        "intervals": evaluation.get("intervals", ""),
    }


def _stage(name: str, model: Record, graded: bool) -> dict[str, Any]:
    value, interval = _value(model, graded)
    greedy, greedy_interval = _value(model.get("greedy") or {}, graded)
    return {
        "name": model_name(name), "key": name, "value": value, "interval": interval,
        "greedy": greedy, "greedy_interval": greedy_interval,
        "lenient": model.get("lenient_accuracy"), "format": model.get("format_rate"),
        "tokens": model.get("mean_tokens"), "truncated": model.get("truncated"),
    }  # fmt: skip


def _value(model: Record, graded: bool) -> tuple[float | None, list[float] | None]:
    found = model if graded else model.get("reward") or {}
    return found.get("accuracy" if graded else "mean"), found.get("ci95")


def _other(name: str, record: Record) -> dict[str, Any]:
    graded = record.get("graded", True)
    models = record.get("models", {})
    return {"name": name, "n": record.get("n"), "models": [_stage(key, models[key], graded) for key in models]}


def cost(records: Records) -> list[list[str]]:
    """What the training took: name, value, a word of explanation. Energy where the machine could say it."""
    seconds = sum(line.get("seconds") or 0 for line in records.metrics)
    tokens = sum(line.get("completion_tokens") or 0 for line in records.steps)
    spent = sum(line.get("seconds") or 0 for line in records.steps)
    energy = [line["energy_j"] for line in records.metrics if line.get("energy_j") is not None]
    rows = [
        ["time", _duration(seconds), "warm-up and GRPO; evaluation and export not counted"],
        [
            "tokens",
            f"{tokens:,}",
            f"generated in training, {tokens / spent:.0f} a second" if spent else "generated in training",
        ],
    ]
    if energy:
        rows.append(
            [
                "energy",
                f"{sum(energy) / 3600:.3g} Wh",
                "by the counters of processor and graphics card, where they have some",
            ]
        )
    return rows if records.metrics else []


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def findings(records: Records) -> list[dict[str, Any]]:
    """What the run doctor's rules say of the records as they are now; none where they cannot be applied."""
    from toolkit.health import diagnose

    try:
        found = diagnose(records.run)
    except ToolkitError as error:  # a recipe of another version: the rest of the report does not need it
        return [
            {"level": "warning", "title": "not examined", "text": error.message, "advice": None, "more": error.hint}
        ]
    return [
        {
            "level": finding.severity,
            "title": finding.rule,
            "text": finding.message,
            "advice": f"try {finding.knob}" if finding.knob else None,
            "more": f"{finding.signal}: {finding.value:.3g}; a finding is: {finding.means}. More: {finding.read_more}",
        }
        for finding in found
    ]


def certificate(records: Records) -> dict[str, Any] | None:
    """The export's files with what verification measured; None without an export."""
    if records.export is None:
        return None
    found = records.certificate
    if found is None:
        return {"passed": None, "export": records.export.path.name, "files": []}
    results = [found["merged"], *found["files"]]
    return {"passed": found["passed"], "export": records.export.path.name, "files": list(map(_file, results))}


def _file(result: Record) -> dict[str, Any]:
    values = {check["name"]: check["value"] for check in result["checks"]}
    return {
        "file": result["file"], "type": result["type"], "megabytes": result["size_bytes"] / 1e6, "passed": result["passed"],
        "kl": values.get("mean KL", values.get("KL to the trained model")), "top1": values.get("top-1 agreement"),
        "failed": [check["name"] for check in result["checks"] if not check["passed"]],
    }  # fmt: skip


def recipe_table(records: Sequence[Records]) -> list[list[Any]]:
    """Every key of the recipes with each run's value, as text."""
    values = [flat(record.recipe) for record in records]
    keys = dict.fromkeys(key for found in values for key in found)
    return [[key, *(_word(found.get(key, "–")) for found in values)] for key in keys]


def _word(value: Any) -> str:
    """As in a recipe."""
    if isinstance(value, list):
        return ", ".join(map(_word, value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
