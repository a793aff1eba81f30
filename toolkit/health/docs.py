"""The table of rules in docs/doctor.md, from the code: `python -m toolkit.health.docs` rewrites it."""

from __future__ import annotations

from pathlib import Path

from toolkit.health.table import RULES

BEGIN, END = "<!-- rules: begin -->", "<!-- rules: end -->"


def table() -> str:
    """One row a rule."""
    head = ["| rule | looks at | a finding is | severity | source |", "|---|---|---|---|---|"]
    rows = [f"| `{rule.name}` | {rule.signal} | {rule.means} | {rule.severity} | {rule.source} |" for rule in RULES]
    return "\n".join([*head, *rows])


def rewrite(text: str) -> str:
    """A document with the part between the two marks written anew."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n\n{table()}\n\n{END}{tail}"


if __name__ == "__main__":
    page = Path(__file__).resolve().parents[2] / "docs" / "doctor.md"
    page.write_text(rewrite(page.read_text(encoding="utf-8")), encoding="utf-8")
