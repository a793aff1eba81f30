"""What a recipe's export section makes the export do, for the table of key effects. Nothing is written."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from effects import Read
from toolkit.recipe import Recipe
from toolkit.rundir import ExportDir, RunDir

COPY = {"model.source": "org/model-bnb-4bit"}
"""A base whose name says that it is a 4-bit copy."""


def merged_into(recipe: Recipe) -> tuple[str, bool]:
    """The 16-bit weights that an adapter goes into, and whether they are lossy."""
    from toolkit.engine import sixteen_bit

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sixteen_bit, "_config", lambda *_: {"quantization_config": {}})
        patch.setattr(sixteen_bit, "checkpoint_of", lambda *_: Path())
        patch.setattr(sixteen_bit, "dequantized", lambda folder: folder)
        patch.setattr(sixteen_bit, "read_json", lambda _: {})
        base = sixteen_bit.merge_base(recipe.model, recipe.export)
    return base.name, base.lossy


class _Seen(Exception):
    """What was looked for has been asked; nothing is written."""


def merged_wide(recipe: Recipe) -> bool:
    """Whether the export step merges into float32."""
    from toolkit import export

    def write_merged(*_: Any, wide: bool) -> None:
        raise _Seen(wide)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("toolkit.engine.sixteen_bit.merge_base", lambda *_: SimpleNamespace(folder=Path(), lossy=False))
        patch.setattr(export, "_check_wishes", lambda *_: {})
        patch.setattr(export, "_prepare", lambda *_: None)
        patch.setattr(export, "_write_merged", write_merged)
        patch.setattr(RunDir, "adapter", Path())
        with pytest.raises(_Seen) as seen:
            export.export_run(Path(), recipe=recipe, quants=["q8_0"])
    return seen.value.args[0]


def written(name: str) -> Read:
    """What the writer of GGUF files is asked for."""

    def run(recipe: Recipe) -> Any:
        from toolkit import export

        asked: dict[str, Any] = {}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(export, "write_ggufs", lambda *_, **given: asked.update(given) or SimpleNamespace())
            export._write_ggufs(ExportDir(Path()), "name", ["q8_0"], "bfloat16", recipe)
        return asked[name]

    return run


def weighed(recipe: Recipe) -> bool:
    return written("importance_of")(recipe) is not None


def looks_at_the_adapter(recipe: Recipe) -> bool:
    """Whether the export makes sure that the adapter can be a GGUF LoRA, before it writes one."""
    from toolkit import export

    looked: list[Path] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "fitting_adapter", looked.append)
        patch.setattr(export, "versions", dict)
        export._check_wishes([], recipe.export, Path("adapter"))
    return bool(looked)
