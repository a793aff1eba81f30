"""Constructed runs for the run doctor: one that is well, and one for each fault, which is well but for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from models import small_recipe
from toolkit.health import Records
from toolkit.recipe import Recipe

STEPS = 24
FORMAT = {"name": "soft_format"}

Series = float | None | Callable[[int], float | None]


def recipe_of(**sections: Any) -> Recipe:
    """A group of 4 and 2 prompts a step; rewards: correctness pays 2, soft_format 0.5."""
    base = {"rewards": [{"name": "correctness"}, FORMAT], "model": {"dtype": "auto", "max_seq_length": 512}}
    return small_recipe("org/model", **({**base, **sections}))


def group(step: int, right: Sequence[float], form: Sequence[float], texts: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The completions of one prompt."""
    texts = texts or [f"text {step} {number}" for number in range(len(right))]
    return [
        {"row_id": f"row{step}", "completion": text, "used": True, "reward/correctness": one, "reward/soft_format": two}
        for text, one, two in zip(texts, right, form, strict=True)
    ]


def well(step: int) -> list[dict[str, Any]]:
    """One of four answers right at first, three in the end; the format grows with them."""
    right, form = 1 + (step > STEPS / 3) + (step > STEPS * 2 / 3), 2 + (step > STEPS / 2)
    return group(step, [2.0] * right + [0.0] * (4 - right), [0.5] * form + [0.0] * (4 - form))


def records_of(
    recipe: Recipe | None = None,
    *,
    steps: int = STEPS,
    table: Callable[[int], list[dict[str, Any]]] = well,
    evaluations: Sequence[tuple[int, float]] = (),
    **series: Series,
) -> Records:
    """A run that is well, but for the series given: a value, or a function of the step."""
    records = Records(recipe or recipe_of())
    for step in range(1, steps + 1):
        records.add({"stage": "grpo", "step": step, **line_of(step, table(step), **series)}, table(step))
    for step, accuracy in evaluations:
        records.add({"stage": "eval", "step": step, "accuracy": accuracy, "rows": 10_000})
    return records


def line_of(step: int, table: list[dict[str, Any]], **series: Series) -> dict[str, Any]:
    names = {key for entry in table for key in entry if key.startswith("reward/")}
    means = {name.removeprefix("reward/"): sum(entry[name] for entry in table) / len(table) for name in names}
    usual: dict[str, Any] = {
        "reward": sum(means.values()), "reward_std": 0.5, "dead_groups": 0.1, "completion_length": 100.0, "cut_off": 0.05,
        "entropy": 1.0, "kl": 0.01, "clip_ratio": 0.01, "grad_norm": 0.2, "learning_rate": 1e-5, "loss": 0.5,
        "completion_tokens": 800, "tokens_per_second": 100.0, "rewards": means,
    }  # fmt: skip
    return usual | {key: value(step) if callable(value) else value for key, value in series.items()}


def late(before: float | None, after: float | None) -> Callable[[int], float | None]:
    """Another value in the second half."""
    return lambda step: before if step <= STEPS / 2 else after


def flat(step: int) -> list[dict[str, Any]]:
    """Nothing gets better."""
    return group(step, [2.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0])


def moved(by: float) -> Records:
    records = records_of()
    records.moved = by
    return records


def ended_worse() -> Records:
    records = records_of()
    records.gain = (-0.1, -0.04)
    return records


FAULTY: list[tuple[str, Callable[[], Records], str | None]] = [
    ("gradient-not-finite", lambda: records_of(grad_norm=late(0.2, None)), "model.dtype=float32"),
    ("gradient-zero", lambda: records_of(grad_norm=0.0), "warmup.max_steps=20"),
    ("learning-rate-too-small", lambda: moved(0.0), "grpo.learning_rate=5e-05"),
    ("no-spread", lambda: records_of(dead_groups=late(0.2, 0.9)), "grpo.resample_rounds=20"),
    ("cut-off", lambda: records_of(cut_off=late(0.1, 0.8)), "grpo.max_completion_length=24"),
    (
        "length-exploding",
        lambda: records_of(table=flat, completion_length=late(100, 300)),
        "grpo.loss_type=dr_grpo",
    ),
    (
        "length-collapsing",
        lambda: records_of(table=flat, completion_length=late(100, 20)),
        "grpo.loss_type=dr_grpo",
    ),
    ("entropy-collapse", lambda: records_of(entropy=late(1.0, 0.01)), "grpo.learning_rate=2.5e-06"),
    ("kl-run-away", lambda: records_of(kl=late(0.1, 3.0)), "grpo.beta=0.04"),
    ("sampled-elsewhere", lambda: records_of(logp_difference=0.6), "model.fast_inference=false"),
    ("clip-ratio", lambda: records_of(clip_ratio=0.4), "grpo.learning_rate=2.5e-06"),
    (
        "duplicates",
        lambda: records_of(table=lambda step: group(step, [2.0, 0, 0, 0], [0.5, 0, 0, 0], ["same"] * 4)),
        "grpo.temperature=1.2",
    ),
    (
        "reward-never-fired",
        lambda: records_of(table=lambda step: group(step, [0.0] * 4, [0.5, 0.5, 0.0, 0.0])),
        "warmup.max_steps=20",
    ),
    (
        "reward-always-fires",
        lambda: records_of(table=lambda step: [entry | {"reward/soft_format": 0.5} for entry in well(step)]),
        "rewards.soft_format.weight=0",
    ),
    (
        "one-reward-dominates",
        lambda: records_of(recipe_of(rewards=[{"name": "correctness", "weight": 20}, FORMAT]), table=flat),
        "rewards.correctness.weight=0.29",
    ),
    (
        "format-only",
        lambda: records_of(
            table=lambda step: group(step, [2.0, 0, 0, 0], [0.5, 0.5, 0.5, 0.5 if step > 3 else 0.0])
        ),
        "grpo.num_generations=8",
    ),
    ("reward-hacking", lambda: records_of(evaluations=[(0, 0.3), (10, 0.6), (24, 0.4)]), "grpo.max_steps=10"),
    ("reward-hacking", ended_worse, "grpo.beta=0.04"),
    ("slowing-down", lambda: records_of(tokens_per_second=late(100, 30)), None),
]  # fmt: skip
