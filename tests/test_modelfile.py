"""Modelfiles: templates that write what the Jinja templates of known models write, here and in Go; texts that Ollama reads
as they were; and where neither can be had, a Modelfile that says so."""

from __future__ import annotations

import datetime
import importlib.util
import json
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiny import smollm2_file
from toolkit.bundle import _modelfile
from toolkit.bundle.go_template import Turns
from toolkit.bundle.modelfile import Modelfile, quoted
from toolkit.bundle.settings import Settings
from toolkit.bundle.speech import Speech, ollama_template
from toolkit.fixed_chats import CHATS
from toolkit.llamacpp import GgufFile
from toolkit.prompts import SYSTEM_PROMPT, messages

FAMILIES = ("gemma", "gemma3", "llama3", "llama3_1", "llama3_2", "qwen2_5", "qwen3", "lfm2", "cohere2", "deepseekv3")
"""Chat templates of published models, as trl ships them."""
AWKWARD = 'Say "yes" or \'no\', {{ .System }} or {% if x %}.\n\n  \\boxed{3}\t漢字 🙂\n<answer>\n"""x""" "'

Go = Callable[[Sequence[tuple[str, list[dict[str, str]]]]], list[str]]


def published(family: str) -> str:
    found = importlib.util.find_spec("trl")
    assert found and found.origin
    return (Path(found.origin).parent / "chat_templates" / f"{family}.jinja").read_text(encoding="utf-8")


def speech(template: str | None, *, adds_bos: bool = False) -> Speech:
    return Speech(template, "<s>", "</s>", adds_bos, ("<|im_end|>",))


def how_asked(system: str) -> Settings:
    return Settings(system, 0.7, 0.95, 20, 0.0, 1.0, 64, 512)


@pytest.fixture(scope="module")
def go(tmp_path_factory: pytest.TempPathFactory) -> Go:
    """Go's own text/template: (template, chat) pairs -> texts. Debian has it as golang-go."""
    if shutil.which("go") is None:
        pytest.skip("there is no Go here")
    folder = tmp_path_factory.mktemp("go")
    source = Path(__file__).parent / "go_template" / "main.go"
    env = {"PATH": "/usr/bin:/bin:/usr/local/bin:/usr/local/go/bin", "GOCACHE": str(folder), "GO111MODULE": "off"}
    subprocess.run(["go", "build", "-o", str(folder / "render"), str(source)], check=True, env=env, cwd=folder)

    def render(jobs: Sequence[tuple[str, list[dict[str, str]]]]) -> list[str]:
        given = [
            {"Template": template, "Messages": [{"Role": m["role"], "Content": m["content"]} for m in chat]}
            for template, chat in jobs
        ]
        done = subprocess.run(
            [str(folder / "render")], input=json.dumps(given), capture_output=True, text=True, check=True
        )
        return json.loads(done.stdout)

    return render


# --- templates


@pytest.mark.parametrize("family", FAMILIES)
def test_known_templates_have_a_twin_in_go_that_writes_the_same(family: str, go: Go) -> None:
    asked = speech(published(family))
    found = ollama_template(asked, AWKWARD)
    chats = [*CHATS.values(), messages("What is 12 + 345?", AWKWARD)]
    assert found.template is not None, found.notes
    assert go([(found.template, chat) for chat in chats]) == [asked.render(chat, True) for chat in chats]


@pytest.mark.parametrize("family", FAMILIES)
def test_known_templates_have_a_twin(family: str) -> None:
    found = ollama_template(speech(published(family)), SYSTEM_PROMPT)
    assert found.template is not None and f"the same on all of {len(CHATS) + 1} chats" in found.notes[0]


def test_smollm2_gets_its_default_system_message_only_where_there_is_none(go: Go) -> None:
    asked = speech(GgufFile(smollm2_file()).field("tokenizer.chat_template"))
    template = ollama_template(asked, SYSTEM_PROMPT).template or ""
    with_system, without = go([(template, messages("Hi", SYSTEM_PROMPT)), (template, messages("Hi", ""))])
    assert (
        with_system
        == f"<|im_start|>system\n{SYSTEM_PROMPT}<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert "named SmolLM" in without and "named SmolLM" not in with_system


@pytest.mark.parametrize(("family", "bos"), [("llama3_2", "<|begin_of_text|>"), ("gemma3", "<bos>")])
def test_bos_is_left_to_llama_cpp_where_it_adds_one(family: str, bos: str) -> None:
    asked = Speech(published(family), bos, "", True, ())
    template = ollama_template(asked, SYSTEM_PROMPT).template
    assert template is not None and bos not in template
    assert (asked.render(CHATS["user only"], True) or "").startswith(bos)


def test_a_bos_that_the_training_had_not_is_no_twin() -> None:
    found = ollama_template(speech(published("qwen2_5"), adds_bos=True), SYSTEM_PROMPT)
    assert found.template is None and "<s> before every prompt" in found.notes[0]


def test_a_template_without_a_system_role_has_the_text_in_the_first_user_turn_as_in_training(go: Go) -> None:
    asked = speech(published("gemma"))
    template = ollama_template(asked, "Be brief.").template or ""
    (text,) = go(
        [(template, [*messages("One?", "Be brief."), {"role": "assistant", "content": "1"}, *messages("Two?", "")])]
    )
    assert text.count("Be brief.") == 1 and "<start_of_turn>user\nBe brief.\n\nOne?<end_of_turn>" in text


@pytest.mark.parametrize(
    ("family", "said"),
    [
        ("llama3_2", "the day's date"),
        ("gemma3", "white space at the ends"),
        ("deepseekv3", "thoughts in earlier answers"),
    ],
)
def test_what_the_twin_cannot_do_is_said(family: str, said: str) -> None:
    assert any(said in note for note in ollama_template(speech(published(family)), "").notes)


GRANITE = (
    "{% for m in messages %}{% if m.role == 'system' %}<s>Today: {{ strftime_now('%B %d, %Y') }}. {{ m.content }}</s>"
    "{% else %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
"""Writes the date in another form, in single quotes."""


@pytest.mark.parametrize(
    ("template", "date"), [(published("llama3_2"), "Today Date: 03 Feb 2026"), (GRANITE, "Today: February 03, 2026.")]
)
def test_a_template_that_writes_the_date_has_that_of_the_training(template: str, date: str) -> None:
    asked = Speech(template, "<s>", "</s>", False, (), day=datetime.date(2026, 2, 3))
    found = ollama_template(asked, "Be brief.")
    assert found.template is not None and date in found.template
    assert any("that of the training, 03 Feb 2026" in note for note in found.notes)


SHOUTS = (
    "{% for m in messages %}{{ m.role }}: {{ m.content | replace('345', 'many') }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
COUNTS = "{% for m in messages %}[{{ loop.index }} {{ m.role }}] {{ m.content }}\n{% endfor %}answer: "


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (SHOUTS, "system and user"),
        (COUNTS, "no plain turns"),
        (None, "no chat template"),
        ("{{ nonsense", "no chat template"),
    ],
)
def test_a_template_without_a_twin_leaves_a_modelfile_that_says_so(template: str | None, said: str) -> None:
    modelfile = _modelfile(speech(template), how_asked("Be brief."))
    text = modelfile.text("a.gguf")
    assert modelfile.template is None and "TEMPLATE " not in text.replace("no TEMPLATE", "")
    assert said in text.split("FROM")[0] and "use llama.cpp" in text and 'SYSTEM "Be brief."' in text


pieces = st.text(st.sampled_from('ab{}" \n`\\-漢🙂'), max_size=6)
around = st.tuples(pieces, pieces)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.builds(
            Turns,
            user=around,
            assistant=around,
            generate=pieces,
            head=pieces,
            system=st.none() | around,
            folded=st.booleans(),
        ),
        min_size=20,
        max_size=20,
    )
)
def test_whatever_stands_around_the_turns_go_writes_what_is_compared_here(go: Go, several: list[Turns]) -> None:
    several = [turns for turns in several if turns.system is not None or not turns.folded]
    chats = [*CHATS.values(), messages("{{ .System }}", AWKWARD), [*messages("a", "b"), *messages("c", "d")]]
    jobs: list[Any] = [(turns, chat) for turns in several for chat in chats]
    assert go([(turns.go(), chat) for turns, chat in jobs]) == [turns.render(chat) for turns, chat in jobs]


# --- the file


def read(text: str) -> list[tuple[str, str]]:
    """A Modelfile's commands, with values as `quoted` takes them to be read; one value spans lines."""
    commands, lines = [], text.splitlines()
    while lines:
        name, _, value = lines.pop(0).partition(" ")
        if name == "PARAMETER":
            name, _, value = value.partition(" ")
        while value.startswith('"""') and not (len(value.rstrip()) >= 6 and value.rstrip().endswith('"""')):
            value += "\n" + lines.pop(0)
        quote = next((quote for quote in ('"""', '"') if value.startswith(quote)), "")
        commands.append((name, value.removeprefix(quote).removesuffix(quote)))
    return commands


def test_a_modelfile_reads_back_as_what_it_was_made_of() -> None:
    template = ollama_template(speech(published("qwen2_5")), AWKWARD).template or ""
    made = Modelfile(template, AWKWARD, ("<|im_end|>", "a b"), {"temperature": 0.7, "top_k": 0}, ("Note.",))
    assert read(made.text("my file.gguf")) == [
        ("#", "Note."), ("FROM", "./my file.gguf"), ("TEMPLATE", template), ("SYSTEM", AWKWARD),
        ("stop", "<|im_end|>"), ("stop", "a b"), ("temperature", "0.7"), ("top_k", "0"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("plain", '"plain"'),
        ('with "quotes"', '"""with "quotes""""'),
        ("two\nlines", '"""two\nlines"""'),
        ('ends """\nearly', None),  # at the end of the first line
        ('does """ not', '"""does """ not"""'),
        ("a no-break\u00a0space", None),  # Ollama drops what Go does not print
        ("a zero-width\u200djoiner", None),
        ("e\u0301 漢字 🙂 \\n", '"e\u0301 漢字 🙂 \\n"'),
    ],
)
def test_a_text_is_quoted_so_that_ollama_reads_it_unchanged_or_not_at_all(text: str, value: str | None) -> None:
    assert quoted(text) == value


def test_a_system_prompt_that_no_modelfile_can_hold_is_left_out_and_said() -> None:
    text = _modelfile(speech(published("qwen2_5")), how_asked("a\u00a0b")).text("a.gguf")
    assert "SYSTEM " not in text and "system-prompt.txt yourself" in text and "TEMPLATE " in text
