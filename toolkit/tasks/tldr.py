"""Posts to summarise: SmolTLDR, from the Hub or from local files. No gold: rewards judge the summaries."""

from __future__ import annotations

from typing import Literal

from toolkit.tasks.base import Row, Split
from toolkit.tasks.hub import FileSource, FileTask, HubSource
from toolkit.tasks.table_rows import Built, Columns, build

HUB_NAME = "mlabonne/smoltldr"
_HUB_SPLITS = {"train": "train", "heldout": "test"}
_WAY_OUT = "name local files with the columns prompt and completion in task.train_file and task.heldout_file"


class TLDR(FileTask):
    """Posts to summarise (mlabonne/smoltldr, after the TL;DR corpus of Völske et al. 2017), with a reference summary each."""

    name: Literal["tldr"] = "tldr"
    system_prompt: str = ""
    """Text of the system message; empty for none: each post's prompt asks by itself."""

    @property
    def graded(self) -> bool:
        return False

    def rows(self, split: Split) -> list[Row]:
        return list(self._built(split).rows[: self._limit(split)])

    def notices(self, split: Split) -> list[str]:
        return list(self._built(split).notices)

    def _built(self, split: Split) -> Built:
        file = self._file(split)
        source = FileSource(file) if file else HubSource(HUB_NAME, _HUB_SPLITS[split], way_out=_WAY_OUT)
        columns = Columns("prompt", solution="completion", by_recipe=False)
        return build(source, columns, prefix=f"tldr/{split}")

    def worked(self, row: Row) -> str | None:
        """The reference summary, as it stands."""
        return row.solution
