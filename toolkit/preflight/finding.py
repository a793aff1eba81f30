"""What a check says: one thing that was looked at, and all of them together. It looks at nothing itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

SCHEMA_VERSION = 1
Status = Literal["ok", "warning", "failed"]
WORST: tuple[Status, ...] = ("ok", "warning", "failed")
"""Statuses by their exit code: 0 fine, 1 something to look at, 2 something that stops a training."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: its value, whether that is well, and, where it is not, the way out."""

    part: str
    what: str
    value: Any
    status: Status = "ok"
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """All findings about one recipe. `details`: figures behind some of them, for programs and further tables."""

    recipe: str
    findings: tuple[Finding, ...]
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether training may start. Warnings do not stop it."""
        return self.exit_code < WORST.index("failed")

    @property
    def exit_code(self) -> int:
        """The worst status: 0, 1 or 2."""
        return max((WORST.index(finding.status) for finding in self.findings), default=0)

    def as_json(self) -> dict[str, Any]:
        """The report for a program."""
        return {
            "schema_version": SCHEMA_VERSION,
            "recipe": self.recipe,
            "passed": self.passed,
            "exit_code": self.exit_code,
            "findings": [asdict(finding) for finding in self.findings],
            **self.details,
        }
