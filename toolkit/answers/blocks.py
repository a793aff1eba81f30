"""Finds the reasoning and answer tags of a completion, in one pass whose time grows with its length only.

Tags are the exact lower-case ones that the system prompt asks for, without attributes. Where a text has no reasoning
tags, think tags mark its reasoning; the format rewards do not know them. It reads no numbers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

_TAG = re.compile(r"<(/?)(reasoning|answer|think)>")
_ORDER = ("<reasoning>", "</reasoning>", "<answer>", "</answer>")


@dataclass(frozen=True, slots=True)
class Blocks:
    """What a completion is made of, as far as rewards need it."""

    answer: str | None
    """Content of the block that counts."""
    soft: bool = False
    """The text begins with the two blocks: each tag once, in order, nothing between them, neither empty."""
    own_line: int = 0
    """How many of the four tags stand alone on their line (0 unless `soft`)."""
    after: int = 0
    """Characters after the answer, without surrounding white space (0 unless `soft`)."""

    @property
    def strict(self) -> bool:
        """The two blocks, every tag alone on its line, and nothing else."""
        return self.soft and not self.after and self.own_line == len(_ORDER)


@lru_cache(maxsize=1024)
def find_blocks(text: str) -> Blocks:
    """Parse once per completion: all rewards of a completion ask in turn."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    found = list(_TAG.finditer(text))
    tags = [tag for tag in found if tag[2] != "think"]
    has_reasoning = any(tag[2] == "reasoning" for tag in tags)
    answer = _Scan(text).run(tags if has_reasoning else found)
    if not _begins_with_both(text, tags):
        return Blocks(answer)
    own_line = sum(_alone_on_line(text, tag) for tag in tags)
    return Blocks(answer, soft=True, own_line=own_line, after=len(text[tags[-1].end() :].strip()))


class _Scan:
    """Walks over the tags and keeps the answer block that counts so far."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.answer: str | None = None
        self.kept: str | None = None  # what counted before the open reasoning began
        self.opened: int | None = None  # where the content of the open answer block starts
        self.in_reasoning = False
        self.seen_reasoning = False

    def run(self, tags: list[re.Match[str]]) -> str | None:
        for tag in tags:
            step = self._answer_tag if tag[2] == "answer" else self._reasoning_tag
            step(tag, closing=bool(tag[1]))
        # Without reasoning tags, plain text ahead is the reasoning. A bare answer block comes after none.
        if not self.seen_reasoning and tags and not self.text[: tags[0].start()].strip():
            return None
        return self.answer

    def _answer_tag(self, tag: re.Match[str], *, closing: bool) -> None:
        if not closing:
            self.opened = tag.end()
        elif self.opened is not None:
            self.answer = self.text[self.opened : tag.start()]
            self.opened = None

    def _reasoning_tag(self, tag: re.Match[str], *, closing: bool) -> None:
        """What lies inside the reasoning does not count; a reasoning tag inside an answer block breaks it."""
        self.opened = None
        if closing and self.in_reasoning:
            self.answer, self.in_reasoning = self.kept, False
        elif not self.seen_reasoning:
            # The first reasoning tag: blocks ahead come before the reasoning, or inside it where the prompt
            # held the opening tag.
            self.answer = self.kept = None
            self.in_reasoning = not closing
        elif not closing and not self.in_reasoning:
            self.kept, self.in_reasoning = self.answer, True
        self.seen_reasoning = True


def _begins_with_both(text: str, tags: list[re.Match[str]]) -> bool:
    if tuple(tag[0] for tag in tags) != _ORDER or text[: tags[0].start()].strip():
        return False
    reasoning, between, answer = (text[left.end() : right.start()] for left, right in pairwise(tags))
    return bool(reasoning.strip()) and not between.strip() and bool(answer.strip())


def _alone_on_line(text: str, tag: re.Match[str]) -> bool:
    start = text.rfind("\n", 0, tag.start()) + 1
    end = text.find("\n", tag.end())
    return text[start : end if end >= 0 else len(text)].strip() == tag[0]
