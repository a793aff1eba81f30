"""The per-file table, as cells: for the terminal and for the certificate. It prints nothing."""

from __future__ import annotations

from toolkit.verify.record import FileResult, VerifyRecord

COLUMNS = (
    "file", "MB", "bits", "mean KL", "top-1", "perplexity", "training", "right", "difference, points", "speed", "memory, MB",
    "verdict",
)  # fmt: skip
NONE = "–"


def rows(record: VerifyRecord) -> list[tuple[str, ...]]:
    """The merged folder first. Speeds stand as multiples of the widest file's: the same machine, the same moment."""
    widest = max(record.files, key=lambda file: file.bits_per_weight or 0.0, default=None)
    unit = widest.tokens_per_second.get("decode") if widest else None
    return [_row(record, result, unit) for result in [record.merged, *record.files]]


def _row(record: VerifyRecord, result: FileResult, unit: float | None) -> tuple[str, ...]:
    kl = _first(result, "mean KL", "KL to the trained model")
    share = _first(result, "training in the weights", "share of the training", "adapter in the factors")
    decode = result.tokens_per_second.get("decode")
    return (
        _shortened(record, result),
        f"{result.size_bytes / 1e6:.0f}",
        _number(result.bits_per_weight, ".1f"),
        _number(kl, ".1e"),
        _number(result.value("top-1 agreement"), ".3f"),
        _number(result.perplexity, ".4g"),
        _number(share, ".2f"),
        f"{result.task['strict']}/{result.task['n']}" if "strict" in result.task else NONE,
        _difference(result),
        f"{decode / unit:.2f}×" if decode and unit else NONE,
        _number(result.memory_bytes and result.memory_bytes / 1e6, ".0f"),
        ("passed" if result.passed else "FAILED") + (", recommended" if result.file == record.recommended else ""),
    )


def _first(result: FileResult, *names: str) -> float | None:
    return next((result.value(name) for name in names if result.value(name) is not None), None)


def _shortened(record: VerifyRecord, result: FileResult) -> str:
    """All GGUF files of an export begin with the run's name, which the title says."""
    return result.file.replace(f"{record.run}-", "…-") if record.run else result.file


def _difference(result: FileResult) -> str:
    if "difference" not in result.task:
        return NONE
    low, high = (100 * end for end in result.task["ci95"])
    return f"{100 * result.task['difference']:+.1f} ({low:+.1f} to {high:+.1f})"


def _number(value: float | None, digits: str) -> str:
    return NONE if value is None else f"{value:{digits}}"
