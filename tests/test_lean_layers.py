"""A fused projection and a fused head are what PEFT and PyTorch compute, forwards and backwards, and only in training."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")

from toolkit.engine.lean_layers import fuse_adapters, scores  # noqa: E402


def adapted(*, fused: bool, dtype: Any = torch.float32, **lora: Any) -> Any:
    """Two projections with an adapter whose second factor is not zero."""
    torch.manual_seed(0)
    base = torch.nn.Sequential(
        torch.nn.Linear(24, 40, bias=False), torch.nn.SiLU(), torch.nn.Linear(40, 16, bias=False)
    )
    settings = {"r": 4, "lora_alpha": 16, "use_rslora": True, "target_modules": ["0", "2"], "init_lora_weights": False}
    model = peft.get_peft_model(base.to(dtype), peft.LoraConfig(**settings | lora))
    if fused:
        fuse_adapters(model)
    return model


def passed(model: Any, dtype: Any = torch.float32) -> list[Any]:
    """The result and every gradient, the input's among them."""
    torch.manual_seed(1)
    inputs = torch.randn(2, 5, 24).to(dtype).requires_grad_()
    out = model(inputs)
    (out.float() * torch.linspace(-1, 1, 16)).sum().backward()
    trained = [p.grad for name, p in model.named_parameters() if ".default." in name]
    return [out.detach(), inputs.grad, *trained]


def test_result_and_gradients_are_pefts() -> None:
    for ours, theirs in zip(passed(adapted(fused=True)), passed(adapted(fused=False)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_in_16_bits_it_is_as_near_to_the_exact_values_as_the_type_allows() -> None:
    half = torch.bfloat16
    for ours, exact in zip(passed(adapted(fused=True, dtype=half), half), passed(adapted(fused=False)), strict=True):
        assert (ours.float() - exact).norm() <= 0.02 * exact.norm()


@pytest.mark.parametrize("kind", ["off", "merged", "another adapter"])
def test_what_is_not_training_this_adapter_is_left_to_peft(kind: str) -> None:
    results = []
    for fused in (True, False):
        model = adapted(fused=fused)
        if kind == "merged":
            model.merge_adapter()
        elif kind == "another adapter":
            torch.manual_seed(3)
            model.add_adapter("other", peft.LoraConfig(r=2, target_modules=["0", "2"], init_lora_weights=False))
            model.set_adapter("other")
        torch.manual_seed(1)
        inputs = torch.randn(2, 5, 24)
        if kind == "off":
            with model.disable_adapter():
                results.append(model(inputs))
        else:
            results.append(model(inputs))
    torch.testing.assert_close(*results, rtol=0, atol=0)


@pytest.mark.parametrize("lora", [{"lora_dropout": 0.5}, {"use_dora": True}, {"lora_bias": True}])
def test_an_adapter_that_is_more_than_two_products_is_left_to_peft(lora: dict[str, Any]) -> None:
    model = adapted(fused=True, **lora)
    assert not [module for module in model.modules() if "forward" in vars(module)]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("at_once", [3, 64])
def test_the_heads_scores_are_log_softmax(temperature: float, at_once: int) -> None:
    torch.manual_seed(0)
    states, weight = torch.randn(10, 8, requires_grad=True), torch.randn(50, 8, requires_grad=True)
    ids, slope = torch.randint(50, (10,)), torch.randn(10)
    log_p = torch.log_softmax(states @ weight.T / temperature, dim=-1)
    expected = log_p.gather(1, ids[:, None])[:, 0]
    found, entropy = scores(states, weight, ids, temperature, at_once=at_once)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(entropy, -(log_p.exp() * log_p).sum(-1))
    ours = torch.autograd.grad(found, [states, weight], slope)
    torch.testing.assert_close(ours, torch.autograd.grad(expected, [states, weight], slope))
