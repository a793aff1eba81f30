"""Another family: Gemma 3 with its sliding windows, a SentencePiece vocabulary, BOS before every prompt and no system role."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from damage import Damage, double_bos, lose_stop
from families import write_gemma
from tiny import edit_gguf, exported, need_llama_cpp, write_run
from toolkit.atomic import read_json
from toolkit.prompts import SYSTEM_PROMPT
from toolkit.recipe import load_resolved
from toolkit.verify import verify_export
from toolkit.verify.record import FileResult
from toolkit.verify.reference import tokenizer_of
from toolkit.verify.spoken import TASK_CHAT, spoken
from verdicts import F16, failed_checks, verdicts_of, with_files

pytest_plugins = ("exports", "certified")
pytest.importorskip("peft")

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)


def write_windowed_gemma(folder: Path) -> Path:
    """Five layers with a sliding window, far shorter than the texts, for one with full attention, as llama.cpp has it."""
    import torch
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    torch.manual_seed(9)
    config = Gemma3TextConfig(
        vocab_size=480, hidden_size=256, intermediate_size=256, num_hidden_layers=6, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, query_pre_attn_scalar=64, sliding_window=16, max_position_embeddings=1024,
        layer_types=["sliding_attention"] * 5 + ["full_attention"], initializer_range=0.02, bos_token_id=2, eos_token_id=1,
        pad_token_id=0,
    )  # fmt: skip
    model: Any = Gemma3ForCausalLM(config)
    # Layers and the token itself weigh about the same: some tokens are likely, and an adapter changes which.
    model.get_input_embeddings().weight.data.normal_(std=0.06)
    model.to(torch.bfloat16).save_pretrained(folder)
    write_gemma(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return folder


DAMAGES: dict[str, tuple[Damage, set[str]]] = {
    "bos": (double_bos, {"template", "chats rendered", "chat tokens", "one BOS"}),
    "no-bos": (
        lambda path: edit_gguf(path, tokenizer__ggml__add_bos_token=False), {"special tokens added"}
    ),
    "stop": (lambda path: lose_stop(path, "<end_of_turn>", "<eos>"), {"stop set", "chat tokens"}),
    "window": (lambda path: edit_gguf(path, gemma3__attention__sliding_window=512), {"mean KL"}),
    "prefix": (
        lambda path: edit_gguf(path, tokenizer__ggml__add_space_prefix=True), {"chat tokens", "text tokens"}
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def gemma_export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need_llama_cpp()
    folder = tmp_path_factory.mktemp("gemma")
    run = write_run(folder / "runs" / "tiny", write_windowed_gemma(folder / "base"))
    return exported(run, folder / "exports" / "tiny").folder


@pytest.fixture(scope="module")
def verdicts(gemma_export: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, FileResult]:
    export = tmp_path_factory.mktemp("broken") / "export"
    shutil.copytree(gemma_export, export)
    with_files(export, export / F16, {name: damage for name, (damage, _) in DAMAGES.items()})
    return verdicts_of(export, problems=2)


def test_a_true_export_passes(gemma_export: Path) -> None:
    record = verify_export(gemma_export, problems=2)
    assert [failed_checks(result) for result in [record.merged, *record.files]] == [set()] * 3
    assert record.merged.value("KL to base") > 1e-3, "the adapter must be there to be seen"


def test_the_stop_set_holds_the_end_of_the_turn(gemma_export: Path) -> None:
    assert read_json(gemma_export / "merged" / "generation_config.json")["eos_token_id"] == [1, 106]


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_fails_where_it_was_damaged(verdicts: dict[str, FileResult], name: str) -> None:
    assert DAMAGES[name][1] <= failed_checks(verdicts[name])


def test_the_task_is_asked_as_in_training_with_its_system_prompt_in_the_users_turn(gemma_export: Path) -> None:
    merged, base = gemma_export / "merged", gemma_export.parents[1] / "base"
    recipe = load_resolved(gemma_export / "recipe.json").recipe
    row = recipe.task.rows("heldout")[0]
    said = spoken(tokenizer_of(merged), merged, base, gemma_export / "adapter", recipe, row)
    chat = next(chat for chat in said.chats if chat.name == TASK_CHAT)
    assert chat.text.startswith(f"<bos><start_of_turn>user\n{SYSTEM_PROMPT}\n\n{row.question}<end_of_turn>\n")
    assert chat.ids.count(2) == 1 and not said.refused and not said.unlike_base
