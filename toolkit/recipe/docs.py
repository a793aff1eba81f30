"""The table of all recipe keys as Markdown, from the models. `python -m toolkit.recipe.docs` rewrites it and the other pages' lists.

The docstring under each field is its description, so that the docs cannot say something else than the code.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from toolkit.recipe.faults import annotated_models, bare_number
from toolkit.recipe.pages import LISTS
from toolkit.recipe.pages import rewrite as rewrite_lists
from toolkit.recipe.schema import Recipe

BEGIN = "<!-- keys: begin, written by `python -m toolkit.recipe.docs` -->"
END = "<!-- keys: end -->"
_WORDS = {int: "whole number", float: "number", bool: "true or false", str: "text", type(None): "null"}


def keys_markdown() -> str:
    """One table per section, the recipe's top level first."""
    blocks = [_block("Top level", "", Recipe, "")]
    for name, field in Recipe.model_fields.items():
        for model in annotated_models(field.annotation):
            tag = _tag(model)
            title = f"`{name}`" + (f", `name: {tag}`" if tag else "")
            blocks.append(_block(title, _first_line(model), model, f"{name}." if not tag else ""))
    return "\n\n".join(blocks)


def rewrite(text: str) -> str:
    """A document with the part between the two marks written anew."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n\n{keys_markdown()}\n\n{END}{tail}"


def _block(title: str, summary: str, model: type[BaseModel], prefix: str) -> str:
    head = f"### {title}\n\n" + (f"{summary}\n\n" if summary else "")
    rows = [f"| `{key}` | {kind} | {default} | {text} |" for key, kind, default, text in _rows(model, prefix)]
    return head + "\n".join(["| key | value | default | meaning |", "|---|---|---|---|", *rows])


def _rows(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, str, str, str]]:
    for name, field in model.model_fields.items():
        inner = list(annotated_models(field.annotation))
        if name == "name" and _tag(model):  # stands in the title
            continue
        if len(inner) == 1 and prefix:  # model.lora: a section within a section
            yield from _rows(inner[0], f"{prefix}{name}.")
        else:
            yield (
                prefix + name,
                _kind(field, bool(inner)),
                _default(field, bool(inner)),
                _cell(field.description or ""),
            )


def _kind(field: FieldInfo, section: bool) -> str:
    if section:
        return "list of sections" if _is_sequence(field.annotation) else "section"
    limits = [
        f"{sign} {bare_number(getattr(item, attribute))}"
        for item in field.metadata
        for attribute, sign in (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤"))
        if getattr(item, attribute, None) is not None
    ]
    return _cell(", ".join([_type_words(field.annotation), *limits]))


def _type_words(annotation: Any) -> str:
    if annotation in _WORDS:
        return _WORDS[annotation]
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{item}`" for item in arguments)
    if origin is typing.Annotated:
        return _type_words(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type_words(item) for item in arguments)
    if _is_sequence(annotation):
        return f"list of {_type_words(arguments[0])}" if arguments else "list"
    return "mapping" if origin is dict or annotation is dict else "any value"


def _is_sequence(annotation: Any) -> bool:
    if typing.get_origin(annotation) is typing.Annotated:
        return _is_sequence(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return any(_is_sequence(item) for item in typing.get_args(annotation))
    return annotation in (tuple, list) or typing.get_origin(annotation) in (tuple, list)


def _default(field: FieldInfo, section: bool) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if section:
        return "off" if value is None else "its defaults"
    if isinstance(value, str) and len(value) > 40:
        return "see the source"
    return _cell(f"`{json.dumps(value, default=str, ensure_ascii=False)}`")


def _tag(model: type[BaseModel]) -> str | None:
    field = model.model_fields.get("name")
    tags = typing.get_args(field.annotation) if field else ()
    return str(tags[0]) if tags else None


def _first_line(model: type[BaseModel]) -> str:
    return _cell((model.__doc__ or "").strip().split("\n\n")[0])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    folder = Path(__file__).resolve().parents[2] / "docs"
    keys = folder / "recipes.md"
    keys.write_text(rewrite(keys.read_text(encoding="utf-8")), encoding="utf-8")
    for name in LISTS:
        page = folder / name
        page.write_text(rewrite_lists(name, page.read_text(encoding="utf-8")), encoding="utf-8")
