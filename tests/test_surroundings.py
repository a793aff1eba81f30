"""What rewards get from a recipe's model: its token counts and its base's answers, and nothing loaded before they ask."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import surroundings_side
from models import byte_tokenizer, child_environment, small_recipe
from toolkit.engine.surroundings import surroundings
from toolkit.errors import EngineError

pytest_plugins = ("shared",)


def test_the_base_answers_as_without_an_adapter(tiny_checkpoint: Path, unsloth_process: Callable[..., Any]) -> None:
    recipe = small_recipe(str(tiny_checkpoint))
    found = unsloth_process(surroundings_side.asked, recipe)
    assert found["with a policy"] == found["without one"] == found["straight"]
    assert found["adapted"] != found["straight"], "else this test would show nothing"
    assert found["straight"][0].startswith(found["shorter"][0]) and len(found["shorter"][0]) < len(found["straight"][0])
    assert found["still training"] and found["weights kept"] and found["same tokenizer"]
    assert "model.max_seq_length is 128" in found["too long"]


def test_tokens_are_counted_without_special_ones(tiny_checkpoint: Path) -> None:
    around = surroundings(small_recipe(str(tiny_checkpoint)))
    assert around.count_tokens("Äh, 12") == len("Äh, 12".encode())
    assert around.token_ids is not None
    assert byte_tokenizer().decode(around.token_ids("Äh, 12")) == "Äh, 12"
    assert around.count_tokens("") == 0


def test_lengths_are_the_recipes() -> None:
    around = surroundings(small_recipe("org/base", grpo={"max_prompt_length": 64, "max_completion_length": 24}))
    assert (around.max_completion_length, around.spare_length) == (24, 128 - 64 - 24)


def test_replies_are_kept_in_the_toolkits_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path))
    assert surroundings(small_recipe("org/base")).cache_folder == tmp_path


def test_a_tokenizer_that_is_not_here_is_an_error_when_it_is_asked(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    around = surroundings(small_recipe(str(tmp_path)))
    with pytest.raises(EngineError, match="tokenizer cannot be loaded"):
        around.count_tokens("x")


def test_nothing_is_loaded_before_the_first_question(tiny_checkpoint: Path) -> None:
    program = (
        "import sys; from models import small_recipe; from toolkit.engine.surroundings import surroundings\n"
        f"around = surroundings(small_recipe({str(tiny_checkpoint)!r}))\n"
        "heavy = ('torch', 'transformers', 'unsloth', 'trl', 'datasets')\n"
        "assert not [name for name in heavy if name in sys.modules]\n"
        "assert around.count_tokens('abc') == 3\n"
        "assert 'unsloth' not in sys.modules\n"
    )
    environment = child_environment() | {"PYTHONDONTWRITEBYTECODE": "1"}
    environment["PYTHONPATH"] += f":{Path(__file__).parent}"
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert child.returncode == 0, child.stderr
