"""The rules during a training: after each step the findings that are new. It shows nothing and stops nothing."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.health.finding import Finding
from toolkit.health.records import Line, read
from toolkit.health.table import examine
from toolkit.rundir import RunDir


class Watch:
    """Begins with what an interrupted run has recorded; what was a finding then is not said again."""

    def __init__(self, run: RunDir) -> None:
        self._records = read(run, weights=False)
        self._records.gain = None  # of an earlier ending, if any
        self._said = {_key(finding) for finding in examine(self._records)}

    def step(self, line: Line, entries: Sequence[Line], evaluations: Sequence[Line] = ()) -> list[Finding]:
        """The alarms that appear with this line of metrics and its completions, each once in a training.

        `evaluations`: all lines about held-out rows so far.
        """
        self._records.add(line, entries)
        self._records.evaluations = [found for found in evaluations if found.get("accuracy") is not None]
        new = [finding for finding in examine(self._records) if finding.is_alarm and _key(finding) not in self._said]
        self._said.update(map(_key, new))
        return new


def _key(finding: Finding) -> tuple[str, str]:
    return finding.rule, finding.signal
