"""What a rule says of a run: a finding, with its figures and the way out. It looks at nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from toolkit.health.records import Records

Severity = Literal["error", "warning", "note"]
"""error: this run learns nothing or harm; warning: probably a mistake; note: looks odd, and is as it should be."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing about a run that somebody should know."""

    rule: str
    """The rule's name, as in docs/doctor.md."""
    severity: Severity
    signal: str
    """What was looked at, with the reward's name where it is about one."""
    value: float
    threshold: float
    means: str
    """The threshold in words."""
    message: str
    knob: str | None
    """The likely key with a concrete value, as an override on the command line: `grpo.num_generations=16`."""
    read_more: str

    @property
    def is_alarm(self) -> bool:
        """Whether it wants something done."""
        return self.severity != "note"

    def as_json(self) -> dict[str, Any]:
        """The finding for a program."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Seen:
    """A rule that applies: the value, the sentence, the knob, and the reward that it is about."""

    value: float
    message: str
    knob: str | None = None
    reward: str | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of the table: what is looked at, from which value on it is a finding, and who says so."""

    name: str
    severity: Severity
    signal: str
    threshold: float
    means: str
    """The threshold in words."""
    source: str
    """Who publishes the threshold or the effect; "measured here" where the figure is ours."""
    read_more: str
    check: Callable[[Records, float], list[Seen]]

    def apply(self, records: Records) -> list[Finding]:
        """The findings of this rule."""
        return [
            Finding(
                rule=self.name,
                severity=self.severity,
                signal=f"{self.signal}: {seen.reward}" if seen.reward else self.signal,
                value=round(seen.value, 6),
                threshold=self.threshold,
                means=self.means,
                message=seen.message,
                knob=seen.knob,
                read_more=self.read_more,
            )
            for seen in self.check(records, self.threshold)
        ]
