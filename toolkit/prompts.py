"""The answer format, in one place: what the model is asked for, and a perfect answer. It grades nothing."""

from __future__ import annotations

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
