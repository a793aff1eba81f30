"""Every YAML example of the documents is a recipe, or the part of one, that loads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from toolkit.recipe import load_recipe

ROOT = Path(__file__).parent.parent
EXAMPLES = [
    pytest.param(block, id=f"{path.name}:{text[: text.index(block)].count(chr(10)) + 1}")
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    for text in [path.read_text(encoding="utf-8")]
    for block in re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
]


REST = {
    "model": "model: {source: org/base}",
    "task": "task: {name: gsm8k}",
    "rewards": "rewards: [{name: correctness}]",
}  # fmt: skip
"""What a recipe cannot do without: where an example leaves it out, it shows another part."""


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_loads(example: str, tmp_path: Path) -> None:
    written = set(re.findall(r"^(\w+):", example, re.MULTILINE))
    rest = [] if "extends" in written else [line for key, line in REST.items() if key not in written]
    path = tmp_path / "example.yaml"
    path.write_text("\n".join([*rest, example]), encoding="utf-8")
    load_recipe(str(path))
