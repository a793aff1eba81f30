"""The engine's own generation is transformers' generation: the same tokens, the same filters, the same distribution."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
from scipy.stats import chisquare

import unsloth_side
from models import small_recipe, tiny_gemma, tiny_llama
from toolkit.engine import generate as module
from toolkit.engine.completions import Completion, Sampling
from toolkit.engine.generate import generate

pytest_plugins = ("shared",)
torch = pytest.importorskip("torch")

PROMPTS = ([5, 6, 7], [9, 9, 9, 9, 9, 9, 9], [250, 3], [11, 12, 13], list(range(40)), [77])
GREEDY = Sampling(max_new_tokens=24, temperature=0.0)
STOP = 256


@pytest.fixture(scope="module")
def llama() -> Any:
    return tiny_llama()


@pytest.fixture(scope="module")
def gemma() -> Any:
    return tiny_gemma()


def by_transformers(model: Any, prompt: list[int], count: int, **settings: Any) -> list[int]:
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, pad_token_id=0, **settings
    )
    return out[0, len(prompt) :].tolist()


def ids_of(completions: list[Completion]) -> list[list[int]]:
    return [completion.token_ids for completion in completions]


def test_greedy_text_is_that_of_transformers(llama: Any) -> None:
    expected = [by_transformers(llama, prompt, 24, eos_token_id=None) for prompt in PROMPTS]
    assert ids_of(generate(llama, PROMPTS, GREEDY)) == expected
    assert len({tuple(ids) for ids in expected}) == len(PROMPTS)
    assert max(len(set(ids)) for ids in expected) > 5


def test_greedy_text_is_that_of_transformers_with_sliding_windows(gemma: Any) -> None:
    expected = [by_transformers(gemma, prompt, 24, eos_token_id=None) for prompt in PROMPTS]
    assert ids_of(generate(gemma, PROMPTS, GREEDY)) == expected
    assert max(len(set(ids)) for ids in expected) > 5


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_any_number_of_key_heads_gives_the_same_text(heads: int) -> None:
    model = tiny_llama(num_key_value_heads=heads)
    expected = [by_transformers(model, prompt, 12, eos_token_id=None) for prompt in PROMPTS]
    assert ids_of(generate(model, PROMPTS, replace(GREEDY, max_new_tokens=12))) == expected


@pytest.mark.parametrize("kind", ["llama", "gemma"])
def test_the_model_is_left_as_it_was(kind: str, request: pytest.FixtureRequest) -> None:
    model = request.getfixturevalue(kind)
    ids = torch.tensor([[1, 2, 3, 4]])
    before, attention = model(ids).logits, model.config._attn_implementation
    generate(model, PROMPTS, GREEDY)
    assert model.config._attn_implementation == attention
    assert torch.equal(model(ids).logits, before)


def test_without_sdpa_the_text_is_the_same() -> None:
    model = tiny_llama()
    expected = ids_of(generate(model, PROMPTS, GREEDY))
    model.set_attn_implementation("eager")
    assert ids_of(generate(model, PROMPTS, GREEDY)) == expected


def test_equal_seeds_give_equal_samples_and_others_do_not(llama: Any) -> None:
    sampling = Sampling(max_new_tokens=16)
    one, again, other = (generate(llama, PROMPTS, sampling, samples=3, seed=seed) for seed in (1, 1, 2))
    assert ids_of(one) == ids_of(again) != ids_of(other)
    assert [c.logprobs for c in one] == [c.logprobs for c in again]
    assert len({tuple(ids) for ids in ids_of(one)}) == 18


def test_a_row_draws_the_same_whatever_is_drawn_beside_it(llama: Any) -> None:
    """In smaller batches, and in two calls that share the prompts as two processes do."""
    sampling = Sampling(max_new_tokens=16, stop_token_ids=(STOP,))
    whole = ids_of(generate(llama, PROMPTS, sampling, samples=3, seed=1))
    assert ids_of(generate(llama, PROMPTS, sampling, samples=3, seed=1, batch_rows=3)) == whole
    halves = [generate(llama, PROMPTS[at : at + 3], sampling, samples=3, seed=1, first=at) for at in (0, 3)]
    assert ids_of(halves[0]) + ids_of(halves[1]) == whole


def test_completions_come_in_the_order_of_prompts_and_samples(llama: Any) -> None:
    drawn = generate(llama, PROMPTS, Sampling(max_new_tokens=2), samples=3)
    assert [completion.prompt_index for completion in drawn] == [index for index in range(6) for _ in range(3)]


SYSTEM = [41, 42, 43, 44, 45, 46, 47, 48, 49, 50]
ALIKE = [[*SYSTEM, 5], [*SYSTEM, 5, 6, 7, 8, 9, 10], [*SYSTEM, *range(60, 80)], [*SYSTEM, 5, 6, 90]]
TOGETHER = {
    "alike": ALIKE,
    "one is the beginning of all": [*ALIKE, SYSTEM],
    "one is unlike": [*ALIKE, [7]],
    "alike and equally long": [[*SYSTEM, token, 5] for token in (1, 2, 3)],
}
"""Batches with one prefill of what all prompts share, or padding, or both."""


@pytest.mark.parametrize("kind", ["llama", "gemma"])
@pytest.mark.parametrize("batch", TOGETHER)
def test_prompts_that_begin_alike_do_not_disturb_each_other(
    kind: str, batch: str, request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(kind)
    expected = [by_transformers(model, prompt, 20, eos_token_id=None) for prompt in TOGETHER[batch]]
    assert ids_of(generate(model, TOGETHER[batch], replace(GREEDY, max_new_tokens=20))) == expected


@pytest.mark.parametrize("kind", ["llama", "gemma"])
def test_a_greedy_answer_before_the_samples_is_the_greedy_answer(kind: str, request: pytest.FixtureRequest) -> None:
    """It stands before each prompt's samples, is not drawn, and does not change what is drawn beside it."""
    model = request.getfixturevalue(kind)
    sampling = Sampling(max_new_tokens=20, stop_token_ids=tuple(range(0, 256, 9)), top_p=0.9)
    drawn = generate(model, ALIKE, sampling, samples=2, seed=5, greedy_too=True)
    assert [row.prompt_index for row in drawn] == [index for index in range(4) for _ in range(3)]
    greedy = generate(model, ALIKE, replace(sampling, temperature=0.0))
    assert ids_of(drawn[::3]) == ids_of(greedy) and [r.truncated for r in drawn[::3]] == [r.truncated for r in greedy]
    assert len({tuple(row.token_ids) for row in drawn}) > 8


def with_stops(model: Any, prompts: Any, stops: tuple[int, ...], count: int = 30) -> list[list[int]]:
    """What each prompt gives alone, without a stop, cut behind its first stop token."""
    texts = [by_transformers(model, prompt, count, eos_token_id=None) for prompt in prompts]
    ends = [next((at + 1 for at, token in enumerate(ids) if token in stops), count) for ids in texts]
    return [ids[:end] for ids, end in zip(texts, ends, strict=True)]


@pytest.mark.parametrize("kind", ["llama", "gemma"])
def test_rows_that_stop_early_do_not_disturb_the_others(kind: str, request: pytest.FixtureRequest) -> None:
    """Twenty prompts of one length in one batch that is compacted again and again, against each prompt alone."""
    model = request.getfixturevalue(kind)
    prompts = [[token, token + 1, 7 * token % 250] for token in range(20)]
    stops = tuple(range(0, 256, 11))
    expected = with_stops(model, prompts, stops)
    lengths = {len(ids) for ids in expected}
    assert len(lengths) > 8, f"rows should stop at many places: {lengths}"
    drawn = generate(model, prompts, replace(GREEDY, max_new_tokens=30, stop_token_ids=stops))
    assert ids_of(drawn) == expected
    assert [row.truncated for row in drawn] == [ids[-1] not in stops for ids in expected]


def test_a_row_that_stops_at_the_last_token_is_not_truncated(llama: Any) -> None:
    text = by_transformers(llama, PROMPTS[0], 6, eos_token_id=None)
    last = next(at for at in range(5, 0, -1) if text[at] not in text[:at])
    sampling = replace(GREEDY, max_new_tokens=last + 1, stop_token_ids=(text[last],))
    (row,) = generate(llama, PROMPTS[:1], sampling)
    assert (row.token_ids, row.truncated) == (text[: last + 1], False)
    (cut,) = generate(llama, PROMPTS[:1], replace(sampling, max_new_tokens=last))
    assert (cut.token_ids, cut.truncated) == (text[:last], True)


def test_small_batches_give_the_same_greedy_text(llama: Any) -> None:
    prompts = [[token, 3, 4] for token in range(7)]
    assert ids_of(generate(llama, prompts, GREEDY, batch_rows=2)) == ids_of(generate(llama, prompts, GREEDY))


@pytest.mark.parametrize("temperature", [0.0, 1.0, 0.6])
def test_log_probabilities_are_those_of_the_full_forward_pass(llama: Any, temperature: float) -> None:
    """At temperature 0 they are the model's own; else those of the distribution that was drawn from."""
    sampling = Sampling(max_new_tokens=20, temperature=temperature, stop_token_ids=tuple(range(0, 256, 9)))
    drawn = generate(llama, PROMPTS, sampling, samples=4, seed=3)
    assert {len(row.token_ids) for row in drawn} > {20} or temperature == 0
    for row in drawn:
        prompt = PROMPTS[row.prompt_index]
        logits = llama(torch.tensor([prompt + row.token_ids])).logits[0, len(prompt) - 1 : -1].float()
        expected = torch.log_softmax(logits / (temperature or 1.0), dim=-1)
        expected = expected.gather(1, torch.tensor(row.token_ids)[:, None])[:, 0]
        assert row.logprobs == pytest.approx(expected.tolist(), abs=2e-4)


def test_sampled_first_tokens_have_the_models_distribution(llama: Any) -> None:
    """Through the whole path: 4,000 samples of one prompt against the softmax of its logits."""
    drawn = generate(llama, PROMPTS[:1], Sampling(max_new_tokens=1), samples=4000, seed=7, batch_rows=4000)
    expected = torch.softmax(llama(torch.tensor([PROMPTS[0]])).logits[0, -1].double(), dim=-1).detach().numpy()
    counts = numpy.bincount([row.token_ids[0] for row in drawn], minlength=len(expected))
    assert fits(counts, expected)


def fits(counts: numpy.ndarray, probabilities: numpy.ndarray) -> bool:
    """Chi-square over runs of neighbours that expect 25 draws each. Seeds are fixed: it cannot fail by chance once it passed."""
    assert counts[probabilities == 0].sum() == 0, "a token of probability zero was drawn"
    expected = probabilities / probabilities.sum() * counts.sum()
    run = numpy.floor(numpy.cumsum(expected) / 25.001).astype(int)
    observed, wanted = numpy.bincount(run, weights=counts), numpy.bincount(run, weights=expected)
    keep = wanted > 0
    return chisquare(observed[keep], wanted[keep]).pvalue > 1e-3


@pytest.mark.parametrize(("size", "block"), [(8, 256), (256, 256), (257, 256), (300, 7), (49152, 256), (1000, 1000)])
def test_drawing_follows_the_distribution(size: int, block: int) -> None:
    """Vocabularies that are smaller than a block, a multiple of it, and neither."""
    source = torch.Generator().manual_seed(size)
    weights = torch.rand(size, generator=source) ** 12
    weights[torch.rand(size, generator=source) < 0.4] = 0.0
    weights[-1] = weights.max()  # the last token, next to the padding of the last block
    probabilities = weights / weights.sum()
    uniform = torch.rand(40, 250, 1, generator=torch.Generator().manual_seed(1))
    tokens = torch.cat([module.invert(probabilities.expand(250, -1), numbers, block) for numbers in uniform])
    assert int(tokens.max()) < size
    assert (probabilities[tokens] > 0).all()
    assert fits(numpy.bincount(tokens.numpy(), minlength=size), probabilities.double().numpy())


@pytest.mark.parametrize("number", [0.0, 1.0 - 2**-24, 0.5])
def test_even_extreme_draws_give_a_token_with_mass(number: float) -> None:
    """0 and the largest float below 1 are drawn, too; rounding then lands before the first or behind the last."""
    size = 777
    probabilities = torch.zeros(size, size)
    probabilities.fill_diagonal_(1.0)  # row r can only give token r
    assert module.invert(probabilities, torch.full((size, 1), number)).tolist() == list(range(size))
    spread = torch.full((1, size), 0.1)
    spread[0, ::2] = 0.0
    assert int(module.invert(spread, torch.full((1, 1), number))) % 2 == 1


def test_a_draw_behind_the_last_token_gives_the_last_token_with_mass() -> None:
    """A block's mass is summed in another order than its running sum, so that it can be larger by a rounding."""
    uniform = torch.full((500, 1), 1.0 - 2**-24)
    probabilities = torch.softmax(torch.randn(500, 200, generator=torch.Generator().manual_seed(0)), dim=-1)
    probabilities[:, -3:] = 0.0
    beyond = probabilities.sum(dim=-1) * (1.0 - 2**-24) >= probabilities.cumsum(dim=-1)[:, -1]
    assert beyond.sum() > 50, "the case must occur"
    assert module.invert(probabilities, uniform)[beyond].tolist() == [196] * int(beyond.sum())


def test_rows_are_drawn_independently() -> None:
    probabilities = torch.full((64, 300), 1 / 300)
    numbers = [module.Numbers(2, prompt, sample) for prompt in range(8) for sample in range(8)]
    tokens = module.invert(probabilities, module.column(numbers, 0, "cpu"))
    assert len(set(tokens.tolist())) > 40


@pytest.mark.parametrize(
    "sampling",
    [
        {"top_k": 5}, {"top_k": 1}, {"top_k": 10_000}, {"top_p": 0.5}, {"top_p": 0.95}, {"top_p": 0.01},
        {"min_p": 0.1}, {"min_p": 0.9}, {"min_p": 1.0}, {"min_p": 0.0}, {"temperature": 0.3},
        {"top_k": 20, "top_p": 0.7, "min_p": 0.05},
        {"temperature": 2.5, "top_p": 0.8}, {"repetition_penalty": 1.3}, {"repetition_penalty": 0.7},
        {"repetition_penalty": 1.5, "temperature": 0.7, "top_k": 30, "top_p": 0.9, "min_p": 0.02},
    ],
    ids=str,
)  # fmt: skip
def test_filters_are_those_of_transformers(sampling: dict[str, Any]) -> None:
    """The distribution that is drawn from, against transformers' own chain of logits processors."""
    torch.manual_seed(0)
    logits = torch.randn(16, 259) * 3
    seen = torch.randint(0, 259, (16, 12))
    seen[:, -3:] = seen[:, :3]  # repeated tokens are penalised once
    given = Sampling(max_new_tokens=1, **sampling)
    ours = given_penalty(logits, seen, given.repetition_penalty)
    ours = torch.softmax(module.truncate(ours / given.temperature, given), dim=-1)
    theirs = torch.softmax(processors(sampling)(seen, logits.clone()), dim=-1)
    torch.testing.assert_close(ours, theirs)


def given_penalty(logits: Any, seen: Any, penalty: float) -> Any:
    return module._penalise(logits, seen, penalty) if penalty != 1 else logits


def processors(sampling: dict[str, Any]) -> Any:
    """As `model.generate` chains them: penalty, temperature, top-k, top-p, min-p."""
    import transformers as t

    kinds = {
        "repetition_penalty": t.RepetitionPenaltyLogitsProcessor, "temperature": t.TemperatureLogitsWarper,
        "top_k": t.TopKLogitsWarper, "top_p": t.TopPLogitsWarper, "min_p": t.MinPLogitsWarper,
    }  # fmt: skip
    return t.LogitsProcessorList([kind(sampling[name]) for name, kind in kinds.items() if sampling.get(name)])


@pytest.mark.parametrize("penalty", [1.4, 0.8])
def test_the_repetition_penalty_counts_prompt_and_answer_as_transformers_does(llama: Any, penalty: float) -> None:
    expected = [by_transformers(llama, p, 16, eos_token_id=None, repetition_penalty=penalty) for p in PROMPTS]
    sampling = replace(GREEDY, max_new_tokens=16, repetition_penalty=penalty)
    assert ids_of(generate(llama, PROMPTS, sampling)) == expected
    assert ids_of(generate(llama, PROMPTS, replace(sampling, repetition_penalty=1.0))) != expected


def test_the_penalty_survives_compaction(llama: Any) -> None:
    prompts = [[token, token + 1, 7 * token % 250] for token in range(20)]
    stops = tuple(range(0, 256, 11))
    texts = [by_transformers(llama, p, 24, eos_token_id=list(stops), repetition_penalty=1.5) for p in prompts]
    drawn = generate(llama, prompts, replace(GREEDY, stop_token_ids=stops, repetition_penalty=1.5, max_new_tokens=24))
    assert ids_of(drawn) == texts


def test_log_probabilities_of_filtered_samples_are_those_of_what_is_left(llama: Any) -> None:
    (row,) = generate(llama, PROMPTS[:1], Sampling(max_new_tokens=4, top_k=1))
    assert row.logprobs == [0.0] * 4
    assert row.token_ids == by_transformers(llama, PROMPTS[0], 4, eos_token_id=None)
    assert all(math.isfinite(value) for value in row.logprobs)


# In the process that trains, where unsloth has rewritten transformers, with an adapter on the model.

Ask = Callable[..., Any]


def test_beside_unsloth_greedy_text_is_that_of_transformers(unsloth_process: Ask, tiny_checkpoint: Path) -> None:
    recipe = small_recipe(str(tiny_checkpoint), grpo={"max_completion_length": 24})
    ours, theirs = unsloth_process(unsloth_side.greedy_text, recipe, PROMPTS)
    assert ours == theirs and len(ours) == len(PROMPTS)


@pytest.mark.parametrize(("dtype", "noise"), [("float32", 1e-6), ("bfloat16", 2e-3)])
def test_merging_for_generation_changes_nothing_but_speed(
    dtype: str, noise: float, unsloth_process: Ask, tiny_checkpoint: Path
) -> None:
    """Logits as with the adapter beside the weights, those of the base with it off, and all weights back to the bit."""
    recipe = small_recipe(str(tiny_checkpoint), model={"dtype": dtype})
    found = unsloth_process(unsloth_side.generation_switches, recipe)
    assert found["adapter against base"] > 0.05
    assert found["adapter"] < noise
    assert found["base"] == 0.0
    assert found["merged layers for default"] == 14 and found["merged layers for None"] == 0
    assert found["unchanged"] and found["still trainable"] and found["training again"]
    assert found["merged layers afterwards"] == 0
    base, warmup, tuned, base_again = found["reloaded"]
    assert base == warmup == base_again == 0.0 and tuned < noise


def test_a_four_bit_base_is_never_merged_into(unsloth_process: Ask, tiny_checkpoint: Path) -> None:
    recipe = small_recipe(str(tiny_checkpoint), model={"load_in_4bit": True})
    found = unsloth_process(unsloth_side.generation_switches, recipe)
    assert found["four_bit"] and found["merged layers for default"] == 0
    assert found["adapter"] == found["base"] == 0.0 and found["adapter against base"] > 0.05
    assert found["unchanged"] and found["still trainable"]
    assert found["reloaded"] == [0.0] * 4
