"""make_graphed_callables: functions and modules that replay graphs, forward and backward."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

from torch_mtia import make_graphed_callables


def sample() -> torch.Tensor:
    return torch.zeros(4, 8, device="mtia", requires_grad=True)


def perceptron() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).to("mtia")


def test_a_module_gives_the_same_results_and_gradients() -> None:
    eager, graphed = perceptron(), perceptron()
    assert make_graphed_callables(graphed, (sample(),)) is graphed
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(4, 8)
        inputs = [x.to("mtia").requires_grad_() for _ in range(2)]
        outputs = [model(one) for model, one in zip((eager, graphed), inputs, strict=True)]
        assert torch.equal(outputs[0].cpu(), outputs[1].cpu())
        for model, output in zip((eager, graphed), outputs, strict=True):
            model.zero_grad()
            (output * 3).sum().backward()
        assert torch.equal(inputs[0].grad.cpu(), inputs[1].grad.cpu())  # type: ignore[union-attr]
        for expected, parameter in zip(eager.parameters(), graphed.parameters(), strict=True):
            assert torch.equal(expected.grad.cpu(), parameter.grad.cpu())  # type: ignore[union-attr]


def test_a_module_trains() -> None:
    def final_loss(model: nn.Module) -> float:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        generator = torch.Generator().manual_seed(4)
        for _ in range(10):
            optimizer.zero_grad()
            x = torch.randn(4, 8, generator=generator).to("mtia")
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
        return float(loss.item())

    graphed = perceptron()
    make_graphed_callables(graphed, (sample(),))
    assert final_loss(graphed) == final_loss(perceptron())


def test_the_module_replays_only_in_the_mode_of_the_capture() -> None:
    module = nn.Sequential(nn.Dropout(0.5)).to("mtia")
    make_graphed_callables(module, (sample(),))
    module.eval()
    x = torch.ones(2, 8, device="mtia")  # another shape: not a replay
    assert torch.equal(module(x).cpu(), torch.ones(2, 8))


def test_functions_take_and_return_nested_tensors() -> None:
    def function(pair: tuple[torch.Tensor, torch.Tensor], named: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"sum": pair[0] + pair[1], "product": pair[0] * named["factor"]}

    def argument(value: float) -> torch.Tensor:
        return torch.full((3,), value, device="mtia")

    graphed = make_graphed_callables(function, ((argument(0), argument(0)), {"factor": argument(0)}))
    result = graphed((argument(2), argument(3)), {"factor": argument(4)})
    assert {name: tensor.tolist() for name, tensor in result.items()} == {"sum": [5.0] * 3, "product": [8.0] * 3}


def test_several_callables_share_a_pool() -> None:
    first, second = perceptron(), nn.Linear(2, 2).to("mtia")
    with torch.no_grad():
        expected = second(first(torch.ones(4, 8, device="mtia"))).cpu()
    make_graphed_callables((first, second), ((sample(),), (torch.zeros(4, 2, device="mtia", requires_grad=True),)))
    x = torch.ones(4, 8, device="mtia")
    y = second(first(x))
    assert torch.equal(y.cpu(), expected)
    y.sum().backward()
    assert all(parameter.grad is not None for parameter in [*first.parameters(), *second.parameters()])


def test_unused_arguments_have_to_be_allowed() -> None:
    def function(x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return x * 2

    with pytest.raises(RuntimeError, match="not have been used"):
        make_graphed_callables(function, (sample(), sample()))
    graphed = make_graphed_callables(function, (sample(), sample()), allow_unused_input=True)
    x, y = (torch.ones(4, 8, device="mtia", requires_grad=True) for _ in range(2))
    graphed(x, y).sum().backward()
    assert x.grad is not None
    assert y.grad is None


def test_what_does_not_fit_is_named() -> None:
    graphed = make_graphed_callables(perceptron(), (sample(),))
    with pytest.raises(ValueError, match=r"captured with \(4, 8\) torch.float32, and called with \(5, 8\)"):
        graphed(torch.ones(5, 8, device="mtia"))
    with pytest.raises(TypeError, match="not arranged like sample_args"):
        graphed(torch.ones(4, 8, device="mtia"), 1)
    with pytest.raises(TypeError, match="mtia tensors only"):
        make_graphed_callables(perceptron(), (torch.ones(4, 8),))
    with pytest.raises(ValueError, match="2 callables need as many sample_args, got 1"):
        make_graphed_callables((perceptron(), perceptron()), ((sample(),),))
    hooked = perceptron()
    hooked.register_forward_hook(lambda *_: None)
    with pytest.raises(RuntimeError, match="no hooks"):
        make_graphed_callables(hooked, (sample(),))
    with torch.autocast("mtia"), pytest.raises(RuntimeError, match="cache_enabled=False"):
        make_graphed_callables(perceptron(), (sample(),))


def test_memory_comes_back_with_the_last_reference() -> None:
    gc.collect()
    torch.accelerator.empty_cache()
    before = torch.accelerator.memory_reserved()
    graphed = make_graphed_callables(perceptron(), (sample(),))
    graphed(torch.ones(4, 8, device="mtia", requires_grad=True)).sum().backward()
    del graphed
    gc.collect()
    torch.accelerator.empty_cache()
    assert torch.accelerator.memory_reserved() == before


def test_arguments_that_start_where_the_sample_does_are_copied_if_they_are_another_view() -> None:
    def copied(x: torch.Tensor) -> torch.Tensor:
        return x + 0

    x = torch.zeros(4, 4, device="mtia")
    call = make_graphed_callables(copied, (x,))
    x.copy_(torch.arange(16.0).view(4, 4))
    assert call(x.t()).tolist() == torch.arange(16.0).view(4, 4).t().tolist()
    flat = torch.zeros(8, device="mtia")
    shifted = make_graphed_callables(copied, (flat[:6],))
    flat.copy_(torch.arange(8.0))
    assert shifted(flat[2:]).tolist() == [2.0, 3.0, 4.0, 5.0, 6.0, 7.0]


def test_arguments_may_be_the_samples_in_another_order() -> None:
    def difference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x - y

    x, y = torch.zeros(3, device="mtia"), torch.zeros(3, device="mtia")
    call = make_graphed_callables(difference, (x, y))
    x.fill_(5)
    y.fill_(2)
    assert call(y, x).tolist() == [-3.0] * 3


def test_gradients_of_several_calls_are_added_up() -> None:
    eager, graphed = perceptron(), perceptron()
    make_graphed_callables(graphed, (sample(),))
    for model in (eager, graphed):
        torch.manual_seed(1)
        for _ in range(3):
            model(torch.randn(4, 8).to("mtia")).square().sum().backward()
    for expected, parameter in zip(eager.parameters(), graphed.parameters(), strict=True):
        assert torch.equal(expected.grad.cpu(), parameter.grad.cpu())  # type: ignore[union-attr]


def test_the_backward_of_a_call_that_another_has_followed_raises() -> None:
    graphed = make_graphed_callables(perceptron(), (sample(),))
    x = torch.randn(4, 8).to("mtia")
    early, late = graphed(x).sum(), graphed(x).sum()
    with pytest.raises(RuntimeError, match="called again before the backward pass"):
        early.backward()
    late.backward()
