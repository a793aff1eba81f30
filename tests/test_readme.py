"""The README is held to the code: its tree, its verbs, its targets and its links."""

from __future__ import annotations

import re
from pathlib import Path

from toolkit.cli.verbs import VERBS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_tree_names_every_module_and_no_other() -> None:
    tree = README[README.index("```\ntoolkit/\n") :].split("```")[1]
    named = set(re.findall(r"(?<![\w/])(\w+(?:/|\.py))(?!\w)", tree)) - {"toolkit/"}
    there = {
        path.name + ("/" if path.is_dir() else "")
        for path in (ROOT / "toolkit").iterdir()
        if not path.name.startswith(("_", "."))
    }
    top = {"recipes/", "requirements/", "scripts/", "tests/", "docs/", "runs/", "exports/", "ci/"}
    assert named - top == there


def test_every_engine_module_has_its_place_in_the_tree() -> None:
    modules = {path.stem for path in (ROOT / "toolkit" / "engine").glob("*.py")} - {"__init__"}
    tree = README[README.index("```\ntoolkit/\n") :].split("```")[1]
    assert {name for name in modules if not re.search(rf"\b{name}\b", tree)} == set()


def test_every_command_it_names_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z-]+)", README)) <= targets
    assert set(re.findall(r"`toolkit ([a-z-]+)", README)) <= set(VERBS)


def test_every_link_leads_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
