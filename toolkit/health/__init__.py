"""Is this run well? One table of rules over a run's records, for `toolkit doctor`, for training and for the report.

It changes nothing, loads no model and prints nothing. Where a threshold is published its source stands in the table; the others
were measured on this toolkit's own runs, and say so.
"""

from toolkit.health.finding import Finding, Rule, Severity
from toolkit.health.records import Records, read
from toolkit.health.table import RULES, diagnose, examine
from toolkit.health.watch import Watch

__all__ = ["RULES", "Finding", "Records", "Rule", "Severity", "Watch", "diagnose", "examine", "read"]
