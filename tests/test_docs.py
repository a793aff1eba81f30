"""The documents are held to the code: their examples load, their lists are written from it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from toolkit.recipe import load_recipe
from toolkit.recipe.pages import LISTS, rewrite
from toolkit.rewards import REWARDS
from toolkit.tasks import TASKS

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


@pytest.mark.parametrize("page", LISTS)
def test_the_lists_of_a_page_are_those_of_the_code(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert rewrite(page, text) == text, "python -m toolkit.recipe.docs"
    for name in LISTS[page]:
        assert text.count(f"<!-- {name}: begin -->") == text.count(f"<!-- {name}: end -->") == 1


@pytest.mark.parametrize(("page", "names"), [("data.md", TASKS), ("rewards.md", REWARDS)])
def test_everything_that_can_be_named_has_an_example(page: str, names: dict[str, object]) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    examples = "".join(re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    assert set(re.findall(r"\bname: (\w+)", examples)) >= set(names)
