"""The language side of the merged folder: how transformers writes chats and splits texts, and what ends an answer. It runs
no model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.atomic import read_json
from toolkit.engine.tokenizer import ChatTemplate
from toolkit.fixed_chats import CHATS, TEXTS
from toolkit.verify.reference import tokenizer_of

if TYPE_CHECKING:
    from toolkit.recipe import Recipe
    from toolkit.tasks import Row

TASK_CHAT = "a question of the task"
TEMPLATE = "chat_template.jinja"


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """A chat as transformers writes and splits it with the merged folder's tokenizer."""

    name: str
    messages: list[dict[str, str]]
    """As the template takes them: without a system role the first user turn holds the system text."""
    text: str
    ids: list[int]


@dataclass(frozen=True, slots=True)
class Spoken:
    """What a file is held to."""

    chats: list[RenderedChat]
    refused: list[str]
    """Chats that the template has no form for."""
    texts: list[tuple[str, list[int], list[int]]]
    """Text, ids without and with the tokenizer's own special tokens."""
    unlike_base: list[str]
    """Chats and texts that the base's tokenizer, with which training was done, writes or splits in another way."""
    template: str
    same_template: bool
    """Whether tokenizer_config.json has the same one, for tools that read no .jinja file."""
    bos: int | None
    eos: int
    stops: list[int]
    turn_end: int | None
    """The special token that the template writes right after an answer, if it writes one."""
    stop_strings: list[str]
    """Texts of the stop tokens, and strings that generation_config.json names besides."""
    special: dict[int, str]
    n_merges: int | None


def spoken(tokenizer: Any, merged: Path, base: Path, adapter: Path, recipe: Recipe, row: Row) -> Spoken:
    """`tokenizer` is the merged folder's. `row` is one of the recipe's own: its question is asked as in training, with the
    system prompt."""
    trained = tokenizer_of(base)
    if (adapter / TEMPLATE).is_file():
        trained.chat_template = (adapter / TEMPLATE).read_bytes().decode("utf-8")
    wanted = CHATS | {TASK_CHAT: recipe.task.messages(row)}
    chats = list(_rendered(ChatTemplate(tokenizer), wanted))
    texts = [(text, tokenizer(text, add_special_tokens=False).input_ids, tokenizer(text).input_ids) for text in TEXTS]
    generation = read_json(merged / "generation_config.json")
    stops = _as_list(generation["eos_token_id"])
    return Spoken(
        chats=chats,
        refused=sorted(set(wanted) - {chat.name for chat in chats}),
        texts=texts,
        unlike_base=list(_unlike(trained, wanted, chats, texts)),
        template=tokenizer.chat_template,
        same_template=read_json(merged / "tokenizer_config.json").get("chat_template") == tokenizer.chat_template,
        bos=tokenizer.bos_token_id,
        eos=tokenizer.eos_token_id,
        stops=stops,
        turn_end=_turn_end(tokenizer),
        stop_strings=[tokenizer.decode([stop]) for stop in stops] + _as_list(generation.get("stop_strings")),
        special={number: token.content for number, token in tokenizer.added_tokens_decoder.items() if token.special},
        n_merges=_n_merges(merged),
    )


def _rendered(template: ChatTemplate, chats: Mapping[str, list[dict[str, str]]]) -> Iterator[RenderedChat]:
    for name, messages in chats.items():
        try:
            text = template.text(messages)
        except Exception:  # a template refuses a role in its own words; then no chat of this form exists
            continue
        yield RenderedChat(name, template.chat(messages), text, template.token_ids([text])[0])


def leading(ids: list[int], bos: int | None) -> int:
    """How many BOS tokens stand at the beginning."""
    return next((at for at, token in enumerate(ids) if token != bos), len(ids))


def _unlike(
    trained: Any,
    wanted: Mapping[str, list[dict[str, str]]],
    chats: list[RenderedChat],
    texts: list[tuple[str, list[int], list[int]]],
) -> Iterator[str]:
    theirs = {chat.name: (chat.text, chat.ids) for chat in _rendered(ChatTemplate(trained), wanted)}
    ours = {chat.name: (chat.text, chat.ids) for chat in chats}
    yield from (name for name in wanted if theirs.get(name) != ours.get(name))
    yield from (text for text, ids, _ in texts if trained(text, add_special_tokens=False).input_ids != ids)


def _turn_end(tokenizer: Any) -> int | None:
    mark = "turnendprobe"
    chat = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": mark}]
    rest = tokenizer.apply_chat_template(chat, tokenize=False).rpartition(mark)[2]
    ids = tokenizer(rest.lstrip(), add_special_tokens=False).input_ids
    known = tokenizer.added_tokens_decoder
    return ids[0] if ids and ids[0] in known and known[ids[0]].special else None


def _n_merges(merged: Path) -> int | None:
    path = merged / "tokenizer.json"
    if not path.is_file():
        return None
    model = read_json(path).get("model", {})
    return len(model.get("merges", [])) if model.get("type") == "BPE" else None


def _as_list(given: Any) -> list[Any]:
    return [] if given is None else given if isinstance(given, list) else [given]
