"""Tokenizers in the shape of Llama 3.2's and Gemma 3's, made by hand: their kinds, special tokens and true ids, few words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tiny import write_base

LLAMA_IDS = {
    "<|begin_of_text|>": 128000, "<|end_of_text|>": 128001, "<|eom_id|>": 128008, "<|start_header_id|>": 128006,
    "<|end_header_id|>": 128007, "<|eot_id|>": 128009, "<|python_tag|>": 128010,
}  # fmt: skip
LLAMA_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}"
    "<|eot_id|>{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
GEMMA_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ m.content | trim }}<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
GEMMA_SPECIAL = {"<pad>": 0, "<eos>": 1, "<bos>": 2, "<unk>": 3, "<start_of_turn>": 105, "<end_of_turn>": 106}
GEMMA_UNUSED = [*(f"<unused{number}>" for number in range(101)), "<start_of_turn>", "<end_of_turn>"]
"""Pieces 4 to 106 of Gemma's vocabulary, in this order."""
TEXT = (
    "the cat sat on the mat and the dog sat on the log while it was raining in the old town by the sea "
    "what is twelve plus thirty four please answer with the number only and think step by step before "
)


def write_llama(folder: Path, *, eos: str = "<|eot_id|>") -> Path:
    """Bytes, some thousand unused words, and Llama 3.2's special tokens where they stand there."""
    from tokenizers import pre_tokenizers

    folder.mkdir(exist_ok=True)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*letters, *(f"unused{number}" for number in range(128000 - len(letters)))]
    names = {number: name for name, number in LLAMA_IDS.items()}
    added = [names.get(number, f"<|reserved_special_token_{number}|>") for number in range(128000, 128011)]
    model = {"type": "BPE", "vocab": {word: number for number, word in enumerate(words)}, "merges": []}
    rule = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    tokenizer = {
        "version": "1.0", "pre_tokenizer": rule, "decoder": rule, "model": model,
        "added_tokens": [_added(number, token) for number, token in enumerate(added, start=128000)],
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    _write_settings(folder, LLAMA_TEMPLATE, bos_token="<|begin_of_text|>", eos_token=eos)
    return folder


def write_gemma(folder: Path, *, sentencepiece: bool = True) -> Path:
    """A SentencePiece vocabulary with byte fallback, trained on a few words, and the tokenizer.json that says the same."""
    from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]  # made at import

    folder.mkdir(exist_ok=True)
    data = _train()
    if sentencepiece:
        (folder / "tokenizer.model").write_bytes(data)
    pieces = ModelProto.FromString(data).pieces
    vocab = {piece.piece: number for number, piece in enumerate(pieces)}
    special = [piece.piece for piece in pieces if piece.type in (2, 3, 4)]
    tokenizer = {
        "version": "1.0", "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "post_processor": {
            "type": "TemplateProcessing", "single": [_BOS, _sequence("A", 0)],
            "pair": [_BOS, _sequence("A", 0), _BOS, _sequence("B", 1)],
            "special_tokens": {"<bos>": {"id": "<bos>", "ids": [2], "tokens": ["<bos>"]}}},
        "added_tokens": [_added(vocab[token], token) for token in special],
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, "vocab": vocab,
                  "merges": _merges(pieces)},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    _write_settings(folder, GEMMA_TEMPLATE, bos_token="<bos>", eos_token="<eos>", unk_token="<unk>", pad_token="<pad>")
    return folder


_BOS = {"SpecialToken": {"id": "<bos>", "type_id": 0}}


def _sequence(name: str, number: int) -> dict[str, Any]:
    return {"Sequence": {"id": name, "type_id": number}}


def _train() -> bytes:
    import io

    import sentencepiece

    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([TEXT] * 4), model_writer=out, model_type="bpe", vocab_size=480, byte_fallback=True,
        pad_id=0, eos_id=1, bos_id=2, unk_id=3, pad_piece="<pad>", eos_piece="<eos>", bos_piece="<bos>",
        user_defined_symbols=GEMMA_UNUSED, add_dummy_prefix=False, remove_extra_whitespaces=False,
        normalization_rule_name="identity", hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    return out.getvalue()


def _merges(pieces: Any) -> list[list[str]]:
    """As transformers derives them: every split of a piece into two others, best scores first."""
    scores = {piece.piece: piece.score for piece in pieces if piece.type == 1}
    splits = [
        (score, piece[:at], piece[at:])
        for piece, score in scores.items()
        for at in range(1, len(piece))
        if piece[:at] in scores and piece[at:] in scores
    ]
    return [[left, right] for _, left, right in sorted(splits, key=lambda split: -split[0])]


def _added(number: int, token: str) -> dict[str, Any]:
    return {
        "id": number, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
        "special": True,
    }  # fmt: skip


def _write_settings(folder: Path, template: str, **tokens: str) -> None:
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **tokens}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


def write_family_base(folder: Path, family: str, *, width: int = 256) -> None:
    """A small, random model of the family with its tokenizer; `width` is Gemma's."""
    import torch

    if family == "llama":
        sizes = {"vocab_size": 128011, "hidden_size": 16, "intermediate_size": 32, "tie_word_embeddings": False}
        write_base(folder, **sizes, bos_token_id=128000, eos_token_id=128009, pad_token_id=128004)
        write_llama(folder)
        return
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    torch.manual_seed(3)
    config = Gemma3TextConfig(
        vocab_size=480, hidden_size=width, intermediate_size=width, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=width // 4, sliding_window=128, max_position_embeddings=128,
        layer_types=["sliding_attention"] * 2, query_pre_attn_scalar=width // 4, eos_token_id=1, bos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    model: Any = Gemma3ForCausalLM(config)
    model.to(torch.bfloat16).save_pretrained(folder)
    write_gemma(folder)
