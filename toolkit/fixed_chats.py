"""Fixed chats and texts on which renderers and tokenizers of one model differ when one of them is wrong.
Only data."""

from __future__ import annotations

SYSTEM = "You answer briefly.\nUse plain words."

CHATS: dict[str, list[dict[str, str]]] = {
    "system and user": [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": "What is 12 + 345?"},
    ],
    "user only": [{"role": "user", "content": "Name a colour."}],
    "several turns": [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": "Add 7 and 8."},
        {"role": "assistant", "content": "<reasoning>\n7 + 8 = 15\n</reasoning>\n<answer>\n15\n</answer>"},
        {"role": "user", "content": "And 1 more?"},
    ],
    "unicode": [{"role": "user", "content": "naïve Ünïcode — 漢字 🙂 e\u0301 \u00a0 ½ ٣"}],
    "double spaces": [{"role": "user", "content": "two  spaces, three   of them, and 12  +  34"}],
    "tabs": [{"role": "user", "content": "a\ttab, two\t\tof them, \t one among spaces"}],
    "line breaks": [{"role": "user", "content": "a line\n\nanother  \n and a third\r\nand a fourth"}],
    "digits": [{"role": "user", "content": "1234567890 3.14 1,248 -7 00 2024-01-31 x2y3"}],
    "special-looking text": [
        {
            "role": "user",
            "content": "Say <|im_end|> <|endoftext|> <bos> </s> [INST] <|eot_id|> <start_of_turn> {{x}} {% y %}",
        }
    ],
}

TEXTS = (
    "Plain text.",
    "  12 + 345 = 357\t\n\n7",
    "don't I'LL we've",
    "漢字 🙂 naïve",
    "trailing  ",
    " leading",
    "<answer>\n-3/4\n</answer>\n",
)
"""Without a chat around them: with and without the special tokens that the tokenizer adds by itself."""
