"""The numbers of a model card: evaluation, files and certificate, from their records. It computes no statistics."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from toolkit.hub.files import Proof
from toolkit.hub.markdown import inline, table

MODELS = {"base": "base model", "warmup": "after warm-up", "tuned": "this model"}
NONE = "–"


def _model(name: str, evaluation: Mapping[str, Any]) -> str:
    """A model of the evaluation in words; a saved checkpoint is called after its step."""
    if name == "few_shot":
        examples = evaluation.get("few_shot", {}).get("examples")
        return (
            f"base model, shown {examples} worked examples"
            if isinstance(examples, int)
            else "base model, shown examples"
        )
    if step := re.fullmatch(r"step(\d+)", name):
        return f"after step {step[1]}"
    return MODELS.get(name, inline(name))


def section(evaluation: Mapping[str, Any] | None) -> str:
    """What base and tuned model score on held-out rows, how that was measured, and what the difference is worth."""
    if evaluation is None:
        return "## Evaluation\n\nNot evaluated, or the record of it is not at hand."
    graded = evaluation.get("graded", True)
    heads, line = (_GRADED, _graded_line) if graded else (_GOLDLESS, _goldless_line)
    rows = [(_model(name, evaluation), *line(model)) for name, model in evaluation["models"].items()]
    changes = [
        f"- {_change(pair, change, evaluation, graded)}"
        for pair, change in evaluation["differences"].items()
        if pair.startswith("tuned-")
    ]
    return "\n\n".join(["## Evaluation", table(("model", *heads), rows), "\n".join(changes), _protocol(evaluation)])


_GRADED = ("right, sampled", "right, greedy", "in the right format", "mean reward")
_GOLDLESS = ("mean reward, sampled", "mean reward, greedy", "tokens")


def _graded_line(model: Mapping[str, Any]) -> tuple[str, ...]:
    greedy = model.get("greedy")
    return (
        _share(model),
        _share(greedy) if greedy else NONE,
        f"{model['format_rate']:.1%}",
        _amount(model.get("reward")),
    )


def _goldless_line(model: Mapping[str, Any]) -> tuple[str, ...]:
    return _amount(model["reward"]), _amount(model.get("greedy", {}).get("reward")), f"{model['mean_tokens']:.0f}"


def _share(record: Mapping[str, Any]) -> str:
    low, high = record["ci95"]
    return f"{record['accuracy']:.1%} ({low:.1%} to {high:.1%})"


def _amount(reward: Mapping[str, Any] | None) -> str:
    if reward is None:
        return NONE
    low, high = reward["ci95"]
    return f"{reward['mean']:.3g} ({low:.3g} to {high:.3g})"


def _change(pair: str, change: Mapping[str, Any], evaluation: Mapping[str, Any], graded: bool) -> str:
    after, _, before = pair.partition("-")
    what = f"{_model(after, evaluation)} against {_model(before, evaluation)}, the same rows compared"
    if graded:
        delta, low, high = (100 * value for value in (change["delta"], *change["ci95"]))
        return f"{what}: {delta:+.1f} points right, sampled ({low:+.1f} to {high:+.1f})"
    reward = change["reward"]
    if reward is None:
        return f"{what}: nothing could be judged in both"
    low, high = reward["ci95"]
    return f"{what}: {reward['delta']:+.3g} mean reward, sampled ({low:+.3g} to {high:+.3g})"


def _protocol(evaluation: Mapping[str, Any]) -> str:
    """How it was measured, so that it can be repeated."""
    decoding = ", ".join(f"{key} {value}" for key, value in evaluation["decoding"].items() if value is not None)
    told = (
        f"n = {evaluation['n']} held-out rows, {_seen(evaluation.get('overlap'))}; {evaluation['samples']} samples each "
        f"({inline(decoding)}); greedy: the likeliest answer. In brackets: intervals of {inline(evaluation['intervals'])}. "
        f"Base and tuned model got the same prompts (SHA-256 of their tokens: `{evaluation['prompts_sha256']}`)."
    )
    chose = evaluation.get("selected_on", {}).get("asked_here")
    if chose:
        told += f" {chose} of the rows chose the checkpoint during training: on them it looks better than it is."
    return told


def _seen(overlap: Mapping[str, Any] | None) -> str:
    """What was found when they were compared with the rows to train on."""
    if overlap is None:
        return "not compared with the rows that were trained on"
    both = overlap["exact"] + overlap["folded"]
    if both:
        return f"**{both} of them trained on as well** ({overlap['exact']} letter by letter)"
    return "none of them among the rows that were trained on"


COLUMNS = (
    "file", "type", "MB", "memory, MB", "mean KL", "p99 KL", "same top token", "training found", "right",
    "against merged, points", "tokens/s", "verdict",
)  # fmt: skip
LEGEND = (
    "KL: how far the file's predictions are from the merged model's in 32 bits, in nats a token; training found: how much of the "
    "training is in its weights, 0 is the base model; right: of held-out problems, answered greedily; against merged: with a "
    "95 % interval, the same problems compared; tokens/s: per second of processor time on one thread, to compare files with; "
    "memory: weights and one chat of the longest length."
)


def quant_table(files: Sequence[Mapping[str, Any]], proof: Proof) -> str:
    """Each GGUF file with what verification measured of it, and the one that it recommends."""
    certificate = proof.certificate or {}
    results = {result["file"]: result for result in certificate.get("files", [])}
    best = certificate.get("recommended")
    rows = [_quant_line(file, results.get(file["file"]), best) for file in files if file["file"] in proof.files]
    kinds = [f"{inline(file['type'])}: {_tensors(file)}" for file in files]
    used = [place for place in range(len(COLUMNS)) if any(row[place] != NONE for row in rows)]
    shown = table([COLUMNS[place] for place in used], [[row[place] for place in used] for row in rows])
    parts = [shown, *([LEGEND] if results else [])]
    if best in proof.files:
        parts.append(f"Recommended: {inline(best)}, {inline(certificate.get('recommendation', ''))}.")
    return "\n\n".join([*parts, f"Tensors that are really in the files: {'; '.join(kinds)}."])


def _quant_line(file: Mapping[str, Any], result: Mapping[str, Any] | None, best: str | None) -> tuple[str, ...]:
    measured = result or {}
    values = {check["name"]: check["value"] for check in measured.get("checks", [])}
    task, memory = measured.get("task", {}), measured.get("memory_bytes")
    verdict = "not verified" if result is None else "passed" if result["passed"] is True else "**failed**"
    return (
        inline(file["file"]),
        inline(file["type"]),
        f"{file['size_bytes'] / 1e6:.0f}",
        _number(memory / 1e6 if isinstance(memory, int) else None, ".0f"),
        _number(values.get("mean KL"), ".1e"),
        _number(values.get("p99 KL"), ".1e"),
        _number(values.get("top-1 agreement"), ".3f"),
        _number(values.get("training in the weights"), ".2f"),
        f"{task['strict']} of {task['n']}" if "strict" in task else NONE,
        _difference(task),
        _number(measured.get("tokens_per_second", {}).get("decode"), ".0f"),
        verdict + (", recommended" if file["file"] == best else ""),
    )


def _difference(task: Mapping[str, Any]) -> str:
    if "difference" not in task:
        return NONE
    low, high = (100 * end for end in task["ci95"])
    return f"{100 * task['difference']:+.1f} ({low:+.1f} to {high:+.1f})"


def _tensors(file: Mapping[str, Any]) -> str:
    return ", ".join(f"{count} {inline(kind)}" for kind, count in file["tensor_types"].items()) or "unknown"


def _number(value: Any, digits: str) -> str:
    return f"{value:{digits}}" if isinstance(value, int | float) else NONE


def certificate_summary(certificate: Mapping[str, Any], manifest: Mapping[str, Any]) -> str:
    """How many checks of which file passed; those that failed, in full."""
    results = [certificate["merged"], *certificate["files"]]
    verdict = "passed" if certificate["passed"] is True else "**failed**"
    rows = [
        (
            inline(result["file"]),
            f"{sum(check['passed'] is True for check in result['checks'])} of {len(result['checks'])}",
            "passed" if result["passed"] is True else "**failed**",
        )
        for result in results
    ]
    failed = [
        f"- {inline(result['file'])}: {inline(check['name'])}: {inline(str(check['value'])[:200])} ({inline(check['why'])})"
        for result in results
        for check in result["checks"]
        if check["passed"] is not True
    ]
    reference = certificate["reference"]
    whole = certificate.get("full_finetuning")
    unmerged = "the weights as they were trained (full fine-tuning)" if whole else "base model and adapter unmerged"
    said = (
        f"Verification {verdict} (`verify.json`): each file was opened and compared with the merged model in 32 bits on "
        f"{reference['tokens']} tokens of {reference['texts']} texts, and that one with {unmerged}."
    )
    return "\n\n".join(
        [said, table(("file", "checks passed", "verdict"), rows), *(["\n".join(failed)] if failed else [])]
    )
