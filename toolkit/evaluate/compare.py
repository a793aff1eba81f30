"""What differs between two models on the same rows: paired differences, flips, and the gain split into format and answers.

It asks no model. `strict` needs the answer in its tags; `lenient` takes the last number where no block can be read, so what is
strictly right is leniently right, too, and lenient minus strict is what a model loses to the format alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from toolkit.evaluate.totals import Answer
from toolkit.statistics import interval, mcnemar

if TYPE_CHECKING:
    import numpy

EXAMPLES = 5
"""Flips of each kind that stand in the record as examples."""
LONGEST = 300
"""Characters of a text in the record; the whole stands among the answers."""


def by_row(answers: Iterable[Answer], key: str) -> numpy.ndarray:
    """The mean of `key` over a row's answers, one number a row, in the order of the rows' ids. None is left out."""
    import numpy

    values: dict[str, list[float]] = {}
    for answer in answers:
        if answer[key] is not None:
            values.setdefault(answer["row_id"], []).append(float(answer[key]))
    return numpy.array([numpy.mean(values[row]) for row in sorted(values)])


def difference(after: Sequence[Answer], before: Sequence[Answer], graded: bool) -> dict[str, Any]:
    """Paired by row: the mean of the rows' differences, so that rows' own difficulty cancels."""

    def paired(keep: Callable[[Answer], bool], key: str) -> dict[str, Any] | None:
        values = by_row(filter(keep, after), key) - by_row(filter(keep, before), key)
        return _change(values) if len(values) else None

    def changes(keep: Callable[[Answer], bool]) -> dict[str, Any]:
        return ((paired(keep, "strict") or {}) if graded else {}) | {"reward": paired(keep, "reward")}

    record = changes(_sampled)
    if graded:
        record["lenient"] = paired(_sampled, "lenient")
    if any(not _sampled(answer) for answer in after):
        record["greedy"] = changes(lambda answer: not _sampled(answer))
        if graded:
            record["greedy"]["mcnemar"] = _changed(after, before)
    return record


def _change(values: numpy.ndarray) -> dict[str, Any]:
    return {"delta": float(values.mean()), "ci95": interval(values)}


def _sampled(answer: Answer) -> bool:
    return answer["sample"] >= 0


def _changed(after: Sequence[Answer], before: Sequence[Answer]) -> dict[str, Any]:
    """Rows whose greedy answer became right or wrong, and the p-value that this is chance."""
    gained, lost = _turned(after, before)
    return {"gained": len(gained), "lost": len(lost), "p": mcnemar(len(gained), len(lost))}


def _turned(
    after: Sequence[Answer], before: Sequence[Answer]
) -> tuple[list[tuple[Answer, Answer]], list[tuple[Answer, Answer]]]:
    """Pairs of answers to one row, before and after, that became right, and those that became wrong.

    Greedy answers; without them each row's first sample.
    """
    number = min((answer["sample"] for answer in after), default=0)
    old = {answer["row_id"]: answer for answer in before if answer["sample"] == number}
    pairs = [(old[answer["row_id"]], answer) for answer in after if answer["sample"] == number]
    gained = [pair for pair in pairs if pair[1]["strict"] and not pair[0]["strict"]]
    return gained, [pair for pair in pairs if pair[0]["strict"] and not pair[1]["strict"]]


def flips(after: Sequence[Answer], before: Sequence[Answer]) -> dict[str, Any]:
    """Rows that became right or wrong, with examples. Their texts are the model's: untrusted."""
    gained, lost = _turned(after, before)
    return {
        name: {"count": len(pairs), "examples": [_example(*pair) for pair in pairs[:EXAMPLES]]}
        for name, pairs in (("wrong_to_right", gained), ("right_to_wrong", lost))
    }


def _example(before: Answer, after: Answer) -> dict[str, str]:
    texts = {"question": after["question"], "gold": after["gold"]}
    texts |= {"before": before["completion"], "after": after["completion"]}
    return {"row_id": after["row_id"], **{name: text[:LONGEST] for name, text in texts.items()}}


def gain(of: Mapping[str, Sequence[Answer]]) -> dict[str, Any] | None:
    """How much of base to tuned (sampled answers) is format, and how much answers; None without both.

    answers = lenient(tuned) - lenient(base); format = the rest of strict(tuned) - strict(base): what the base model lost to the
    format and the tuned one does not. `few_shot` splits it another way: what worked examples alone give the base model is format.
    """
    if not {"base", "tuned"} <= set(of):
        return None
    strict = {name: by_row(filter(_sampled, of[name]), "strict") for name in of}
    lenient = {name: by_row(filter(_sampled, of[name]), "lenient") for name in of}
    total, answers = strict["tuned"] - strict["base"], lenient["tuned"] - lenient["base"]
    record = {"points": _change(total), "format": _change(total - answers), "answers": _change(answers)}
    if "few_shot" in of:
        shown = strict["few_shot"] - strict["base"]
        record["few_shot"] = {"format": _change(shown), "answers": _change(total - shown)}
    return record | {"sentence": _sentence(record)}


def _sentence(record: Mapping[str, Any]) -> str:
    total, low, high = (100 * value for value in (record["points"]["delta"], *record["points"]["ci95"]))
    if low <= 0 <= high:
        return f"Base to tuned: {total:+.1f} points, no difference that can be shown, so there is no gain to split."
    said = (
        f"Of {total:+.1f} points from base to tuned, {_points(record['format'])} are format (right numbers that the base model "
        f"gave without the tags) and {_points(record['answers'])} are answers."
    )
    if "few_shot" in record:
        parts = record["few_shot"]
        said += (
            f" Shown worked examples instead, the base model gains {_points(parts['format'])}; "
            f"{_points(parts['answers'])} are left."
        )
    return said


def _points(change: Mapping[str, Any]) -> str:
    return f"{100 * change['delta']:.1f}"
