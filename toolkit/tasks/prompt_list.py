"""A plain list of prompts, in the recipe or in a file. No gold: rewards of form, or a judge, say what is good."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from toolkit.errors import KeyFault
from toolkit.tasks.base import Row, Split, TaskBase
from toolkit.tasks.halves import Halves, set_aside
from toolkit.tasks.hub import FileSource
from toolkit.tasks.table_rows import Built, Columns, build


class PromptList(TaskBase):
    """Prompts without golds, written in the recipe or one a line in a text file."""

    name: Literal["prompts"] = "prompts"
    system_prompt: str = ""
    """Text of the system message; empty for none."""
    prompts: tuple[str, ...] | None = None
    """The prompts themselves."""
    file: str | None = None
    """Instead of them: a text file with one prompt a line, or a table with a column `prompt`."""
    heldout_rows: int | None = Field(default=None, ge=1)
    """Prompts that are set aside for the evaluation; null: a tenth, at most 300."""
    split_seed: int = Field(default=0, ge=0)
    """Which ones are set aside."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.prompts is None) == (self.file is None):
            raise KeyFault(f"one of prompts and file is needed, got {'both' if self.file else 'neither'}")
        if self.prompts is not None and not self.prompts:
            raise KeyFault("must not be empty", at=("prompts",))
        for place, prompt in enumerate(self.prompts or ()):
            if not prompt.strip():
                raise KeyFault("the prompt is empty", at=("prompts", place))
        return self

    @property
    def graded(self) -> bool:
        return False

    def rows(self, split: Split) -> list[Row]:
        halves = self._halves()
        return list(halves.train if split == "train" else halves.heldout)

    def notices(self, split: Split) -> list[str]:
        twice = self._halves().left_out
        left_out = [f"{twice} prompts say what one that was set aside says, and are left out"] if twice else []
        return [*self._all().notices, *left_out]

    def worked(self, row: Row) -> str | None:
        return None

    def _halves(self) -> Halves:
        where = self.file or "task.prompts"
        return set_aside(self._all().rows, self.heldout_rows, seed=self.split_seed, where=where)

    def _all(self) -> Built:
        if self.file:
            columns = Columns("prompt", by_recipe=False)
            return build(FileSource(Path(self.file).expanduser()), columns, prefix="prompts")
        return Built(tuple(Row(f"prompts/{number}", prompt, "") for number, prompt in enumerate(self.prompts or (), 1)))
