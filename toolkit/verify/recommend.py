"""Which of an export's GGUF files to use: one rule, over what was measured. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.verify.limits import RECOMMENDED_KL
from toolkit.verify.record import FileResult

RULE = (
    "the smallest file that passed, whose right answers are not shown to be fewer than the merged model's (95 % interval), "
    f"and whose mean KL is at most {RECOMMENDED_KL:g}"
)


def recommend(files: Sequence[FileResult]) -> tuple[str | None, str]:
    """The file's name and the reason in words. Where none keeps to the rule: the one nearest to the merged model."""
    passed = [file for file in files if file.passed and file.value("mean KL") is not None]
    if not passed:
        return None, "no GGUF file passed" if files else "there is no GGUF file"
    fitting = [file for file in passed if _keeps(file)]
    if fitting:
        best = min(fitting, key=lambda file: (file.size_bytes, file.value("mean KL")))
        return best.file, f"{RULE}: {_numbers(best)}"
    best = min(passed, key=lambda file: file.value("mean KL"))
    return best.file, f"of those that passed the nearest to the merged model ({_numbers(best)}); none is {RULE}"


def _keeps(file: FileResult) -> bool:
    interval = file.task.get("ci95")
    return file.value("mean KL") <= RECOMMENDED_KL and (interval is None or interval[1] >= 0)


def _numbers(file: FileResult) -> str:
    told = f"{file.size_bytes / 1e6:.0f} MB, mean KL {file.value('mean KL'):.2g}"
    if "ci95" not in file.task:
        return told
    low, high = (100 * end for end in file.task["ci95"])
    return f"{told}, difference {100 * file.task['difference']:+.1f} points ({low:+.1f} to {high:+.1f})"
