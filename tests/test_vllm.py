"""vLLM beside the training model draws what transformers would: the same weights, formulas, stops and seeds.

Skipped where vLLM is not installed, failing there with REQUIRE_VLLM=1.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import chisquare

import unsloth_side
import vllm_side
from models import byte_tokenizer, small_recipe, tiny_gemma, tiny_llama, tiny_qwen
from run_files import lines
from toolkit.atomic import read_json
from toolkit.engine.completions import Completion, Sampling
from toolkit.engine.vllm_engine import Room
from toolkit.recipe import Recipe
from toolkit.rundir import RunDir

pytest_plugins = ("shared",)
if importlib.util.find_spec("vllm") is None and os.environ.get("REQUIRE_VLLM") != "1":
    pytest.skip("vLLM is not installed", allow_module_level=True)

Call = Callable[..., Any]
EXACT = 1e-3
"""Nats, in float32: what two ways of adding up the same products differ by."""
ROUGH = 0.15
"""Nats on average, in bfloat16: see docs/fast-inference.md for what was measured."""
STALE = 0.5
"""Logits: with the weights of one optimiser step before, the likeliest tokens differ by more."""
GREEDY = Sampling(max_new_tokens=24, temperature=0.0)


@pytest.fixture
def vllm(unsloth_process: Call) -> Call:
    """`unsloth_process`, with keywords."""
    return lambda function, *arguments, **named: unsloth_process(partial(function, **named), *arguments)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Llama with heads as wide as vLLM's kernel needs them."""
    folder = tmp_path_factory.mktemp("wide") / "checkpoint"
    tiny_llama(num_attention_heads=2, num_key_value_heads=1).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def recipe_of(checkpoint: Path, steps: int = 2, **model: Any) -> Recipe:
    model = {"fast_inference": True, "max_seq_length": 256} | model
    return small_recipe(str(checkpoint), model=model, eval={"batch_size": 8}, grpo={"max_steps": steps})


@pytest.fixture(scope="session")
def tiny(checkpoint: Path) -> Recipe:
    return recipe_of(checkpoint)


def ids_of(rows: list[Completion]) -> list[list[int]]:
    return [row.token_ids for row in rows]


# --- the weights are those that are trained


def test_greedy_text_is_transformers_after_every_change_of_the_adapter(vllm: Call, tiny: Recipe) -> None:
    found = vllm(vllm_side.followed, tiny, 3)
    assert max(each["gap"] for each in found) < EXACT
    assert len({str(each["texts"]) for each in found}) == 5, "the adapter should change the text"
    assert min(len({token for text in each["texts"] for token in text}) for each in found) > 10


def test_weights_that_are_not_handed_over_are_noticed(vllm: Call, tiny: Recipe) -> None:
    """The sabotage of the test above."""
    *kept, stale = vllm(vllm_side.followed, tiny, 1, handed_over=False)
    assert max(each["gap"] for each in kept) < EXACT
    assert stale["gap"] > STALE and stale["different"] > 2


def test_adapters_by_name_and_the_bare_base(vllm: Call, tiny: Recipe) -> None:
    found = vllm(vllm_side.two_adapters, tiny)
    assert max(each["gap"] for each in found.values()) < EXACT
    assert len({str(each["texts"]) for each in found.values()}) == 3


def test_a_4_bit_base_is_sampled_with_the_weights_that_are_trained_on(vllm: Call, checkpoint: Path) -> None:
    found = vllm(vllm_side.followed, recipe_of(checkpoint, load_in_4bit=True), 2)
    assert max(each["gap"] for each in found) < EXACT
    assert len({str(each["texts"]) for each in found}) == 4


def test_a_long_training_is_worth_compiling_and_the_compiled_model_follows(vllm: Call, checkpoint: Path) -> None:
    long = recipe_of(checkpoint, steps=20_000)
    assert Room.of(long).compiled and not Room.of(recipe_of(checkpoint)).compiled
    found = vllm(vllm_side.followed, long, 2)
    assert max(each["gap"] for each in found) < EXACT
    assert len({str(each["texts"]) for each in found}) == 4


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_log_probabilities_are_the_trainers(dtype: str, vllm: Call, checkpoint: Path) -> None:
    recipe = recipe_of(checkpoint, dtype=dtype)
    sampling = Sampling(max_new_tokens=20, temperature=0.8, stop_token_ids=tuple(range(0, 256, 9)))
    found = vllm(vllm_side.logprob_differences, recipe, sampling, 4)
    assert len(found) > 100
    if dtype == "float32":
        assert max(found) < EXACT
    else:
        assert sum(found) / len(found) < ROUGH


# --- other models


WIDE = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
"""Heads as vLLM's kernel needs them."""
FAMILIES: dict[str, Callable[[], Any]] = {
    "gemma3": lambda: tiny_gemma(**WIDE, query_pre_attn_scalar=32, tie_word_embeddings=True, initializer_range=0.1),
    "qwen2": lambda: tiny_qwen(2, num_attention_heads=2, num_key_value_heads=1),
    "qwen3": lambda: tiny_qwen(3, **WIDE),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_other_families_are_drawn_as_transformers_draws_them(family: str, vllm: Call, tmp_path: Path) -> None:
    FAMILIES[family]().save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    recipe = recipe_of(tmp_path)
    found = vllm(vllm_side.followed, recipe, 2)
    assert max(each["gap"] for each in found) < EXACT
    assert len({str(each["texts"]) for each in found}) == 4
    sampling = Sampling(max_new_tokens=20, stop_token_ids=tuple(range(0, 256, 9)))
    assert max(vllm(vllm_side.logprob_differences, recipe, sampling, 4)) < EXACT


QUESTIONS = ("What is 17 + 25? Answer with the number.", "Name three rivers.", "Write one sentence about a lighthouse.")
NEAR_TIE = 0.02
"""Nats, in float32 through thirty layers: two likeliest tokens as close as this may change places."""


def questions_of(checkpoint: Path) -> list[list[int]]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
    return [tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False) for chat in chats]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_real_smollm2_is_drawn_as_transformers_draws_it(dtype: str, vllm: Call, smollm2: Path) -> None:
    """A few short answers: greedy ones in float32, and the log-probabilities of sampled ones against the trainer's."""
    recipe = recipe_of(smollm2, dtype=dtype, lora={"r": 4, "lora_alpha": 1})
    prompts, sampling = questions_of(smollm2), Sampling(max_new_tokens=16)
    apart = vllm(vllm_side.logprob_differences, recipe, sampling, 2, prompts)
    assert len(apart) > 60
    assert max(apart) < NEAR_TIE if dtype == "float32" else sum(apart) / len(apart) < ROUGH
    if dtype == "float32":
        found = vllm(vllm_side.followed, recipe, 1, prompts=prompts)
        assert max(each["gap"] for each in found) < NEAR_TIE
        assert len({str(each["texts"]) for each in found}) == 3, "the adapter should change the text"


# --- how it is drawn


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(1),
        Sampling(1, temperature=0.7, top_p=0.8),
        Sampling(1, top_k=12),
        Sampling(1, temperature=1.3, min_p=0.05),
    ],
)
def test_first_tokens_have_the_models_distribution(sampling: Sampling, vllm: Call, tiny: Recipe) -> None:
    count = 1500
    found = vllm(vllm_side.first_tokens, tiny, sampling, count)
    counts = [found["tokens"].count(token) for token in range(len(found["probabilities"]))]
    expected = [count * share for share in found["probabilities"]]
    assert all(seen == 0 for seen, share in zip(counts, expected, strict=True) if share == 0)
    often = [at for at, share in enumerate(expected) if share >= 5]
    rest = [
        (sum(c for a, c in enumerate(counts) if a not in often)),
        sum(e for a, e in enumerate(expected) if a not in often),
    ]
    pairs = [(counts[at], expected[at]) for at in often] + ([(rest[0], rest[1])] if rest[1] > 5 else [])
    total = sum(seen for seen, _ in pairs) / sum(share for _, share in pairs)
    assert chisquare([seen for seen, _ in pairs], [share * total for _, share in pairs]).pvalue > 1e-3


def test_stop_tokens_end_a_text_and_belong_to_it(vllm: Call, tiny: Recipe) -> None:
    free = vllm(vllm_side.drawn, tiny, GREEDY)
    stops = tuple(range(0, 256, 7))
    ends = [next((at + 1 for at, token in enumerate(row.token_ids) if token in stops), 24) for row in free]
    assert min(ends) < 24, "some text should stop"
    rows = vllm(vllm_side.drawn, tiny, replace(GREEDY, stop_token_ids=stops))
    assert ids_of(rows) == [row.token_ids[:end] for row, end in zip(free, ends, strict=True)]
    assert [row.truncated for row in rows] == [row.token_ids[-1] not in stops for row in rows]
    assert [len(row.logprobs) for row in rows] == [len(row.token_ids) for row in rows]


def test_a_text_that_stops_at_the_last_token_is_not_truncated(vllm: Call, tiny: Recipe) -> None:
    (text,) = ids_of(vllm(vllm_side.drawn, tiny, GREEDY, [[5, 6, 7]]))
    last = next(at for at in range(5, 0, -1) if text[at] not in text[:at])
    sampling = replace(GREEDY, max_new_tokens=last + 1, stop_token_ids=(text[last],))
    (row,) = vllm(vllm_side.drawn, tiny, sampling, [[5, 6, 7]])
    assert (row.token_ids, row.truncated) == (text[: last + 1], False)
    (cut,) = vllm(vllm_side.drawn, tiny, replace(sampling, max_new_tokens=last), [[5, 6, 7]])
    assert (cut.token_ids, cut.truncated) == (text[:last], True)


def test_equal_seeds_give_equal_text_whatever_is_drawn_beside_it(vllm: Call, tiny: Recipe) -> None:
    sampling = Sampling(max_new_tokens=16)
    one = ids_of(vllm(vllm_side.drawn, tiny, sampling, samples=3, seed=1))
    again = ids_of(vllm(vllm_side.drawn, tiny, sampling, samples=3, seed=1, batch_rows=3))
    other = ids_of(vllm(vllm_side.drawn, tiny, sampling, samples=3, seed=2))
    alone = ids_of(vllm(vllm_side.drawn, tiny, sampling, vllm_side.PROMPTS[:1], samples=1, seed=1))
    assert one == again != other and alone == one[:1]
    assert len({tuple(ids) for ids in one}) == 18


def test_a_greedy_answer_before_the_samples(vllm: Call, tiny: Recipe) -> None:
    sampling = Sampling(max_new_tokens=20, top_p=0.9, repetition_penalty=1.3)
    both = vllm(vllm_side.drawn, tiny, sampling, samples=2, seed=5, greedy_too=True)
    assert [row.prompt_index for row in both] == [index for index in range(6) for _ in range(3)]
    assert ids_of(both[::3]) == ids_of(vllm(vllm_side.drawn, tiny, replace(GREEDY, max_new_tokens=20)))
    samples = vllm(vllm_side.drawn, tiny, sampling, samples=2, seed=5)
    assert ids_of([row for at, row in enumerate(both) if at % 3]) == ids_of(samples)


def test_a_repetition_penalty_is_transformers(vllm: Call, tiny: Recipe) -> None:
    found = vllm(vllm_side.penalised, tiny, replace(GREEDY, repetition_penalty=1.5))
    assert found["ours"] == found["theirs"]
    assert found["ours"] != ids_of(vllm(vllm_side.drawn, tiny, GREEDY))


def test_a_killed_draw_goes_on_where_it_was(vllm: Call, tiny: Recipe) -> None:
    sampling = Sampling(max_new_tokens=12)
    whole = vllm(vllm_side.drawn, tiny, sampling, samples=2, seed=4, batch_rows=4)
    assert vllm(vllm_side.resumed, tiny, sampling, 1, samples=2, seed=4, batch_rows=4) == whole


# --- the process, the choice, the run


def test_the_process_is_left_as_it_was(vllm: Call, tiny: Recipe) -> None:
    assert vllm(vllm_side.left_as_it_was, tiny) == []


@pytest.mark.parametrize("model", [tiny_llama, tiny_gemma])
def test_a_model_that_vllm_refuses_is_sampled_by_transformers_and_the_reason_recorded(
    model: Callable[[], Any], vllm: Call, tmp_path: Path
) -> None:
    """The usual tiny models have heads of 16 numbers, which no kernel of vLLM's for processors takes."""
    model().save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    found = vllm(vllm_side.refused, recipe_of(tmp_path))
    assert (found["generator"], found["rows"]) == ("transformers", 6)
    key, asked, used, why = found["changes"][-1]
    assert (key, asked, used) == ("model.fast_inference", True, False)
    assert "vLLM did not start" in why and "head_dim=16" in why


def test_a_handful_is_not_worth_the_start(vllm: Call, checkpoint: Path) -> None:
    recipe = small_recipe(str(checkpoint), model={"fast_inference": "auto"}, grpo={"max_steps": 100})
    sizes = (("default", 2, 8), (None, 600, 8), ("default", 2, 8), (None, 2, 8))
    ways = vllm(vllm_side.counted_draws, recipe, *sizes)
    assert ways == ["transformers", "vllm", "vllm", "transformers"]


def test_a_training_says_what_generated_and_how_far_it_was_from_the_trainer(vllm: Call, tiny: Recipe) -> None:
    runs = [RunDir(Path(vllm(unsloth_side.train_tiny, tiny)["run"])) for _ in range(2)]
    assert read_json(runs[0].manifest)["setting"]["generator"] == "vllm"
    steps = [[line for line in lines(run) if line["stage"] == "grpo"] for run in runs]
    assert steps[0][0]["logp_difference_max"] < EXACT
    assert abs(steps[0][0]["importance_ratio_max"] - 1) < 10 * EXACT
    timed = ("seconds", "energy_j", "tokens_per_second")
    plain = [[{key: line[key] for key in line if key not in timed} for line in run] for run in steps]
    assert plain[0] == plain[1], "equal recipes give equal runs"
