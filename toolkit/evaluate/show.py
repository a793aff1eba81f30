"""The record of an evaluation on the terminal: three small tables and a sentence. It computes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toolkit import console

LABELS = {"few_shot": "base, few-shot"}


def show(record: dict[str, Any]) -> None:
    """Each model, each pair, and what the gain is made of."""
    title = f"{record['n']} held-out rows, {record['samples']} samples each"
    heads = _MODEL_HEADS if record["graded"] else _GOLDLESS_HEADS
    line = _model_line if record["graded"] else _goldless_line
    console.table(title, heads, [(label(name), *line(model)) for name, model in record["models"].items()])
    _show_several(record["models"])
    _show_differences(record)
    if record.get("gain"):
        console.say(record["gain"]["sentence"])


def label(name: str) -> str:
    """A model's name for readers."""
    return LABELS.get(name, name)


def _show_several(models: Mapping[str, Mapping[str, Any]]) -> None:
    known = {name: model for name, model in models.items() if "pass_at_k" in model}
    if not known:
        return
    sizes = list(next(iter(known.values()))["pass_at_k"])
    heads = ("model", *(f"pass@{k}" for k in sizes), *(f"maj@{k}" for k in sizes[1:]))
    rows = [
        (
            label(name),
            *(f"{model['pass_at_k'][k]['value']:.1%}" for k in sizes),
            *(f"{model['maj_at_k'][k]['value']:.1%}" for k in sizes[1:]),
        )
        for name, model in known.items()
    ]
    console.table("Of several samples one is right (pass), or the most frequent answer is (maj)", heads, rows)


def _show_differences(record: dict[str, Any]) -> None:
    graded = record["graded"]
    unit = "Difference in points and in reward" if graded else "Difference in mean reward"
    heads = ("", "right", "right, greedy", "p, greedy", "mean reward") if graded else ("", "sampled", "greedy")
    rows = [
        (" - ".join(label(name) for name in pair.split("-")), *_change_line(change, graded))
        for pair, change in record["differences"].items()
    ]
    if rows:
        console.table(f"{unit}, paired by row", heads, rows)


_MODEL_HEADS = (
    "model", "right", "right, greedy", "tags ignored", "in format", "mean reward", "tokens", "cut off",
)  # fmt: skip
_GOLDLESS_HEADS = ("model", "mean reward", "mean reward, greedy", "tokens", "cut off")


def _model_line(model: dict[str, Any]) -> tuple[str, ...]:
    return (
        _percent(model["accuracy"], model["ci95"]),
        _percent(model["greedy"]["accuracy"], model["greedy"]["ci95"]) if "greedy" in model else "–",
        f"{model['lenient_accuracy']:.1%}",
        f"{model['format_rate']:.1%}",
        f"{model['reward']['mean']:.3g}" if model["reward"] else "–",
        *_length_cells(model),
    )


def _goldless_line(model: dict[str, Any]) -> tuple[str, ...]:
    return _amount(model["reward"]), _amount(model.get("greedy", {}).get("reward")), *_length_cells(model)


def _length_cells(model: dict[str, Any]) -> tuple[str, str]:
    return f"{model['mean_tokens']:.0f}", f"{model['truncated']:.0%}"


def _change_line(change: dict[str, Any], graded: bool) -> tuple[str, ...]:
    greedy = change.get("greedy", {})
    if not graded:
        return _moved(change["reward"]), _moved(greedy.get("reward"))
    chance = f"{greedy['mcnemar']['p']:.2g}" if greedy else "–"
    return _points(change), _points(greedy) if greedy else "–", chance, _moved(change["reward"])


def _percent(value: float, interval: Sequence[float]) -> str:
    return f"{value:.1%} [dim]({interval[0]:.1%} to {interval[1]:.1%})[/]"


def _points(change: dict[str, Any]) -> str:
    low, high = (100 * bound for bound in change["ci95"])
    return f"{100 * change['delta']:+.1f} [dim]({low:+.1f} to {high:+.1f})[/]"


def _amount(reward: dict[str, Any] | None) -> str:
    if reward is None:
        return "–"
    low, high = reward["ci95"]
    return f"{reward['mean']:.3g} [dim]({low:.3g} to {high:.3g})[/]"


def _moved(change: dict[str, Any] | None) -> str:
    if change is None:
        return "–"
    low, high = change["ci95"]
    return f"{change['delta']:+.3g} [dim]({low:+.3g} to {high:+.3g})[/]"
