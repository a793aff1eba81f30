"""Conversations in the forms in which data sets write them, and system texts in templates that have no role for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from models import byte_tokenizer
from tables import write
from toolkit.engine.load import Policy
from toolkit.engine.tokenizer import ChatTemplate
from toolkit.errors import DataError, EngineError
from toolkit.prompts import fold_system, suited, takes_system
from toolkit.tasks import Table
from toolkit.tasks.cells import RowFault
from toolkit.tasks.chats import conversation, is_conversation

USER = {"role": "user", "content": "Hi"}
BOT = {"role": "assistant", "content": "Hello"}
SYSTEM = {"role": "system", "content": "Be brief."}


def messages(value: Any) -> list[dict[str, str]]:
    return list(conversation(value).messages)


# One form for all ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        [SYSTEM, USER],
        [{**SYSTEM, "name": None, "tool_calls": None}, {**USER, "images": None}],
        [{"role": "developer", "content": "Be brief."}, USER],
        [SYSTEM, {"role": "user", "content": [{"type": "text", "text": "H", "image": None}, {"type": "text", "text": "i"}]}],
        [SYSTEM, {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}],
        [SYSTEM, {"role": "user", "content": ["H", "i"]}],
        [USER, SYSTEM],
        {"role": ["system", "user"], "content": ["Be brief.", "Hi"]},
        json.dumps([SYSTEM, USER]),
        " " + json.dumps([SYSTEM, USER], indent=1),
    ],
)  # fmt: skip
def test_every_form_becomes_role_and_content(value: Any) -> None:
    assert is_conversation(value)
    assert messages(value) == [SYSTEM, USER] and conversation(value).question == "Hi"


def test_several_system_messages_are_one_at_the_front() -> None:
    value = [SYSTEM, USER, {"role": "system", "content": "Be kind."}, BOT, {"role": "system", "content": " "}, USER]
    assert messages(value) == [{"role": "system", "content": "Be brief.\n\nBe kind."}, USER, BOT, USER]


def test_the_answer_that_ends_a_conversation_is_no_part_of_the_prompt() -> None:
    found = conversation([USER, BOT])
    assert (list(found.messages), found.answer) == ([USER], "Hello")
    assert conversation([USER, BOT, USER]).answer is None


def test_keys_that_no_template_sees_are_remembered() -> None:
    assert conversation([{**USER, "name": "Ann", "id": 5, "date": None}]).ignored == {"name", "id"}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "the conversation is empty"),
        ([BOT], "no user message"),
        ([SYSTEM], "no user message"),
        (["Hi"], "message 1 is no object"),
        ([USER, 5], "message 2 is no object"),
        ([{"content": "Hi"}], "message 1 needs role and content; keys found: content"),
        ([{"role": "user"}], r"message 1 \(user\) is empty"),
        ([{"role": "user", "content": " "}], r"message 1 \(user\) is empty"),
        ([USER, {"role": "assistant", "content": None}, USER], r"message 2 \(assistant\) is empty"),
        ([{"role": "usr", "content": "Hi"}], "the role 'usr'; did you mean user?"),
        ([{"role": "User", "content": "Hi"}], "did you mean user?"),
        ([{"role": "human", "content": "Hi"}], "did you mean user?"),
        ([{"role": "xyz", "content": "Hi"}], "known are system, user, assistant, tool"),
        ([{"from": "human", "value": "Hi"}], "human is user"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}], "part of the type 'image_url'"),
        ([USER, {"role": "user", "content": [{"type": "audio"}]}], "message 2 has a part of the type 'audio'"),
        ([{"role": "user", "content": [5]}], "a part that is no text"),
        ([{"role": "user", "content": {"text": "Hi"}}], "message 1 holds a mapping"),
        ([{"role": "user", "content": "\ud800"}], "half of a surrogate pair"),
        ([USER, {"role": "assistant", "content": "", "tool_calls": [{"name": "f"}]}, USER], "calls a tool"),
        ({"role": ["user"], "content": ["a", "b"]}, "a list of messages"),
        ({"text": "Hi"}, "a list of messages; keys found: text"),
        (str([USER]), "not JSON"),
        ('[{"role": "user", "content": "Hi"', "not JSON"),
    ],
)
def test_what_cannot_be_asked_is_said(value: Any, message: str) -> None:
    assert is_conversation(value)
    with pytest.raises(RowFault, match=message):
        conversation(value)


@pytest.mark.parametrize("text", ["Hi", "[1, 2]", '[{"a": 1}]', "", '{"role": "user"}', "[user] says: {'role': 'x'}"])
def test_a_text_is_no_conversation(text: str) -> None:
    assert not is_conversation(text)


# In a table ---------------------------------------------------------------------------------------


def test_a_conversation_is_asked_whole(tmp_path: Path) -> None:
    talks = [{"talk": [USER, BOT, {"role": "user", "content": f"And {n}?"}]} for n in range(3)]
    task = Table(train_file=str(write(tmp_path / "a.jsonl", talks)), prompt="talk", system_prompt="Be brief.")
    row = task.rows("train")[0]
    assert row.question.startswith("And ") and row.text.startswith("user: Hi\nassistant: Hello\nuser: And ")
    assert task.messages(row) == [SYSTEM, USER, BOT, {"role": "user", "content": row.question}]


def test_a_single_question_is_no_chat_and_a_system_message_of_its_own_is_kept(tmp_path: Path) -> None:
    talks = [{"prompt": [USER]}, {"prompt": [{"role": "system", "content": "Own."}, USER]}, {"prompt": "Plain"}]
    path = write(tmp_path / "a.json", talks)
    task = Table(train_file=str(path), heldout_file=str(path), system_prompt="Be brief.")
    one, own, plain = task.rows("train")
    assert one.chat == () and task.messages(one) == [SYSTEM, USER]
    assert task.messages(own) == [{"role": "system", "content": "Own."}, USER]
    assert task.messages(plain) == [SYSTEM, {"role": "user", "content": "Plain"}]


def test_the_answer_that_ends_a_conversation_is_a_solution_where_it_is_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"talk": [USER, BOT]}, {"talk": [SYSTEM, USER, BOT]}])
    with pytest.raises(DataError, match=r"2 of 2 rows .* ends with the assistant's answer") as error:
        Table(train_file=str(path), prompt="talk").rows("train")
    assert "task.solution: talk" in error.value.message
    task = Table(train_file=str(path), heldout_file=str(path), prompt="talk", solution="talk")
    assert [task.worked(row) for row in task.rows("train")] == ["Hello", "Hello"]
    assert [len(task.messages(row)) for row in task.rows("train")] == [1, 2]


def test_a_bad_message_names_the_row_and_left_out_keys_are_told(tmp_path: Path) -> None:
    rows = [{"prompt": [{**USER, "name": "Ann"}]}, {"prompt": [{"role": "user", "content": [{"type": "image"}]}]}]
    with pytest.raises(DataError, match="line 2: message 1 has a part of the type 'image'"):
        Table(train_file=str(write(tmp_path / "a.jsonl", rows))).rows("train")
    path = write(tmp_path / "b.jsonl", rows[:1])
    assert "'name' in the messages of 1 rows" in Table(train_file=str(path), heldout_file=str(path)).notices("train")[0]


# Templates ----------------------------------------------------------------------------------------

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
GEMMA2 = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "<start_of_turn>{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n{{ m['content'] | trim }}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
FORGETS = (
    "{% for m in messages if m.role != 'system' %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)
LLAMA2 = (
    "{% set start = 0 %}{% if messages[0].role == 'system' %}{% set start = 1 %}{% endif %}"
    "{% for m in messages[start:] %}{% if m.role == 'user' %}[INST] "
    "{% if loop.first and start %}<<SYS>>\n{{ messages[0].content }}\n<</SYS>>\n\n{% endif %}"
    "{{ m.content }} [/INST]{% else %} {{ m.content }} {% endif %}{% endfor %}"
)


def tokenizer_with(template: str) -> Any:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


@pytest.mark.parametrize(
    ("template", "takes", "text"),
    [
        (CHATML, True, "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"),
        (GEMMA2, False, "<start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\n"),
        (FORGETS, False, "[user] Be brief.\n\nHi\n[assistant] "),
        (LLAMA2, True, "[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST]"),
    ],
    ids=["chatml", "gemma-2", "forgets", "llama-2"],
)  # fmt: skip
def test_a_system_text_reaches_the_model_through_every_template(template: str, takes: bool, text: str) -> None:
    tokenizer = tokenizer_with(template)
    chat = ChatTemplate(tokenizer)
    assert chat.takes_system is takes
    assert chat.text([SYSTEM, USER]) == text
    machine: Any = None
    policy = Policy(model=None, tokenizer=tokenizer, machine=machine, setting=machine)
    ids = policy.prompt_ids([SYSTEM, USER])
    assert chat.token_ids([text]) == [ids] and tokenizer.decode(ids) == text
    assert policy.prompt_ids(policy.template.chat([SYSTEM, USER])) == ids  # what TRL is given is folded already
    assert chat.text([USER]) == chat.text(fold_system([USER]))


def test_thousands_of_prompts_are_the_same_together_and_alone() -> None:
    chat = ChatTemplate(tokenizer_with(GEMMA2))
    texts = [chat.text([SYSTEM, {"role": "user", "content": "a" * n}]) for n in range(1, 9)]
    assert chat.token_ids(texts) == [chat.token_ids([text])[0] for text in texts]
    assert chat.token_ids([]) == []


def test_a_conversation_that_the_template_refuses_is_an_error_in_its_words() -> None:
    machine: Any = None
    policy = Policy(model=None, tokenizer=tokenizer_with(GEMMA2), machine=machine, setting=machine)
    with pytest.raises(EngineError, match="roles must alternate"):
        policy.prompt_ids([USER, USER])


def test_folding_puts_the_text_into_the_first_user_turn_and_changes_nothing_else() -> None:
    folded = fold_system([SYSTEM, BOT, USER, {"role": "user", "content": "2"}])
    assert folded == [BOT, {"role": "user", "content": "Be brief.\n\nHi"}, {"role": "user", "content": "2"}]
    assert fold_system([USER, BOT]) == [USER, BOT]
    assert fold_system([SYSTEM, BOT]) == [{"role": "user", "content": "Be brief."}, BOT]
    assert fold_system(folded) == folded and SYSTEM["content"] == "Be brief."


def test_llama_cpps_renderer_is_asked_in_the_same_way() -> None:
    pytest.importorskip("llama_cpp")
    from toolkit.llamacpp import render_chat

    for template, takes in ((CHATML, True), (GEMMA2, False), (FORGETS, False)):

        def render(chat: list[dict[str, str]], template: str = template) -> str:
            return render_chat(template, chat, bos="", eos="")

        assert takes_system(render) is takes
        assert render(suited([SYSTEM, USER], render)) == ChatTemplate(tokenizer_with(template)).text([SYSTEM, USER])
