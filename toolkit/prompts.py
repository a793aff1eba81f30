"""The answer format, in one place: what the model is asked for, and a perfect answer; chats as templates take them.

It grades nothing and loads no template.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

SYSTEM_PROMPT = """\
Respond in the following format:
<reasoning>
your reasoning, step by step
</reasoning>
<answer>
the final answer only
</answer>"""


def format_completion(reasoning: str, answer: str) -> str:
    """The completion a teacher would write. No newline at the end: a model stops at its end token."""
    return f"<reasoning>\n{reasoning}\n</reasoning>\n<answer>\n{answer}\n</answer>"


def messages(question: str, system: str) -> list[dict[str, str]]:
    """One chat turn. An empty system text makes no system message: some templates have no such role."""
    head = [{"role": "system", "content": system}] if system else []
    return [*head, {"role": "user", "content": question}]


def takes_system(render: Callable[[list[dict[str, str]]], str]) -> bool:
    """Whether a chat template, given as what renders with it, has a system role: it neither refuses nor forgets one."""
    probe = "systemtextprobe"
    try:
        return probe in render(messages("Hi", probe))
    except Exception:  # each template refuses a role in its own words
        return False


def suited(chat: Sequence[Mapping[str, str]], render: Callable[[list[dict[str, str]]], str]) -> list[dict[str, str]]:
    """The chat as the template behind `render` takes it: folded where there is a system text and no role for it."""
    has_system = any(message["role"] == "system" for message in chat)
    return fold_system(chat) if has_system and not takes_system(render) else [dict(message) for message in chat]


def fold_system(chat: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """The chat with its system text at the start of the first user turn, for a template without a system role."""
    texts = [message["content"] for message in chat if message["role"] == "system"]
    others = [dict(message) for message in chat if message["role"] != "system"]
    if not texts:
        return others
    first = next((place for place, message in enumerate(others) if message["role"] == "user"), None)
    if first is None:
        return [{"role": "user", "content": "\n\n".join(texts)}, *others]
    others[first]["content"] = "\n\n".join([*texts, others[first]["content"]])
    return others
