"""Generation through the model's own `generate`, the plain way on a GPU: the toolkit's draws, whoever computes the logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from models import tiny_gemma, tiny_llama
from toolkit.engine import generate, model_generate
from toolkit.engine.completions import Completion, Sampling, in_order

PROMPTS = [list(range(10, 10 + length)) for length in (12, 5, 9, 12)]
GREEDY = Sampling(10, temperature=0.0, stop_token_ids=(256,))
MODELS: dict[str, Callable[[], Any]] = {"llama": tiny_llama, "gemma": tiny_gemma}


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> Any:
    return MODELS[request.param]()


def drawn(model: Any, sampling: Sampling, **draws: Any) -> list[Completion]:
    return in_order(model_generate.batches(model, PROMPTS, sampling, **draws))


@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_greedy_text_is_that_of_the_toolkits_decoder(model: Any, penalty: float) -> None:
    sampling = Sampling(10, temperature=0.0, repetition_penalty=penalty, stop_token_ids=(256,))
    ours, theirs = drawn(model, sampling), generate.generate(model, PROMPTS, sampling)
    assert [said.token_ids for said in ours] == [said.token_ids for said in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4) and one.truncated == other.truncated


def test_log_probabilities_are_those_that_were_drawn_from(model: Any) -> None:
    sampling = Sampling(6, temperature=0.8, top_k=20, stop_token_ids=(256,))
    for said in drawn(model, sampling, samples=3, seed=5):
        prompt = PROMPTS[said.prompt_index]
        ids = torch.tensor([[*prompt, *said.token_ids]])
        with torch.no_grad():
            logits = model(ids).logits[0, len(prompt) - 1 : -1].float() / 0.8
        kept = logits.masked_fill(logits < logits.topk(20).values[:, -1:], -float("inf"))
        found = torch.log_softmax(kept, dim=-1).gather(1, ids[0, len(prompt) :, None])[:, 0]
        assert said.logprobs == pytest.approx(found.tolist(), abs=1e-4)


def test_the_seed_decides_and_a_resumed_call_goes_on(model: Any) -> None:
    sampling = Sampling(6, temperature=1.0, stop_token_ids=(256,))
    asked: dict[str, Any] = {"samples": 2, "seed": 3, "batch_rows": 4, "greedy_too": False}
    whole = list(model_generate.batches(model, PROMPTS, sampling, **asked))
    again = list(model_generate.batches(model, PROMPTS, sampling, **asked))
    rest = list(model_generate.batches(model, PROMPTS, sampling, **asked, done=whole[:1]))
    assert whole == again and rest == whole[1:] and len(whole) == 2
    assert drawn(model, sampling, **(asked | {"seed": 4})) != in_order(whole)


def test_the_greedy_answer_comes_before_the_samples(model: Any) -> None:
    sampling = Sampling(10, temperature=1.0, stop_token_ids=(256,))
    both = drawn(model, sampling, samples=2, seed=1, greedy_too=True)
    assert [said.prompt_index for said in both] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert [said.token_ids for said in both[::3]] == [said.token_ids for said in drawn(model, GREEDY)]


def test_a_row_ends_with_its_stop_token(model: Any) -> None:
    token = drawn(model, GREEDY)[0].token_ids[2]
    for said in drawn(model, Sampling(10, temperature=0.0, stop_token_ids=(token,))):
        assert token not in said.token_ids[:-1]
        assert said.truncated == (said.token_ids[-1] != token) and len(said.token_ids) == len(said.logprobs)


def test_a_checkpoints_generation_config_adds_nothing(model: Any) -> None:
    plain = [said.token_ids for said in drawn(model, GREEDY)]
    config = model.generation_config
    kept = config.to_dict()
    config.update(
        repetition_penalty=1.5, no_repeat_ngram_size=2, min_length=40, do_sample=True, temperature=0.1, top_k=1
    )
    try:
        assert [said.token_ids for said in drawn(model, GREEDY)] == plain
    finally:
        config.update(**{name: kept[name] for name in ("repetition_penalty", "no_repeat_ngram_size", "min_length")})
        config.update(**{name: kept[name] for name in ("do_sample", "temperature", "top_k")})
