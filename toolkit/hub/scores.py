"""The numbers of a model card: evaluation, files and certificate, from their records. It computes no statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toolkit.hub.files import Proof
from toolkit.hub.markdown import inline, table

MODELS = {"base": "base model", "warmup": "after warm-up", "tuned": "this model"}
NONE = "–"


def section(evaluation: Mapping[str, Any] | None) -> str:
    """What base and tuned model score on held-out rows, how that was measured, and what the difference is worth."""
    if evaluation is None:
        return "## Evaluation\n\nNot evaluated, or the record of it is not at hand."
    graded = evaluation.get("graded", True)
    heads, line = (_GRADED, _graded_line) if graded else (_GOLDLESS, _goldless_line)
    rows = [(MODELS.get(name, inline(name)), *line(model)) for name, model in evaluation["models"].items()]
    changes = [
        f"- {_change(pair, change, graded)}"
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


def _change(pair: str, change: Mapping[str, Any], graded: bool) -> str:
    after, _, before = pair.partition("-")
    what = f"{MODELS.get(after, inline(after))} against {MODELS.get(before, inline(before))}, the same rows compared"
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
    return (
        f"n = {evaluation['n']} held-out rows that were not trained on, {evaluation['samples']} samples each "
        f"({inline(decoding)}); greedy: the likeliest answer. In brackets: intervals of {inline(evaluation['intervals'])}. "
        f"Base and tuned model got the same prompts (SHA-256 of their tokens: `{evaluation['prompts_sha256']}`)."
    )


COLUMNS = ("file", "type", "MB", "mean KL", "p99 KL", "same top token", "adapter found", "right", "tokens/s", "verdict")


def quant_table(files: Sequence[Mapping[str, Any]], proof: Proof) -> str:
    """Each GGUF file with what verification measured of it."""
    results = {result["file"]: result for result in (proof.certificate or {}).get("files", [])}
    rows = [_quant_line(file, results.get(file["file"])) for file in files if file["file"] in proof.files]
    kinds = [f"{inline(file['type'])}: {_tensors(file)}" for file in files]
    said = (
        "KL: how far the file's predictions are from the merged model's in 32 bits, in nats a token; adapter found: how much "
        "of the training is in its weights, 0 is the base model; right: of held-out problems, answered greedily.\n\n"
        "Tensors that are really in the files: "
    )
    used = [place for place in range(len(COLUMNS)) if any(row[place] != NONE for row in rows)]
    shown = table([COLUMNS[place] for place in used], [[row[place] for place in used] for row in rows])
    return f"{shown}\n\n{said}{'; '.join(kinds)}."


def _quant_line(file: Mapping[str, Any], result: Mapping[str, Any] | None) -> tuple[str, ...]:
    values = {check["name"]: check["value"] for check in (result or {}).get("checks", [])}
    task = (result or {}).get("task", {})
    speed = (result or {}).get("tokens_per_second", {}).get("decode")
    return (
        inline(file["file"]),
        inline(file["type"]),
        f"{file['size_bytes'] / 1e6:.0f}",
        _number(values.get("mean KL"), ".1e"),
        _number(values.get("p99 KL"), ".1e"),
        _number(values.get("top-1 agreement"), ".3f"),
        _number(values.get("adapter in the weights"), ".2f"),
        f"{task['strict']} of {task['n']}" if "strict" in task else NONE,
        _number(speed, ".0f"),
        "not verified" if result is None else "passed" if result["passed"] is True else "**failed**",
    )


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
    said = (
        f"Verification {verdict} (`verify.json`): each file was opened and compared with the merged model in 32 bits on "
        f"{reference['tokens']} tokens of {reference['texts']} texts, and that one with base model and adapter unmerged."
    )
    return "\n\n".join(
        [said, table(("file", "checks passed", "verdict"), rows), *(["\n".join(failed)] if failed else [])]
    )
