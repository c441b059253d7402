"""Whole models, with random weights: compiled on mtia, forward and backward, they compute what eager PyTorch computes
on the CPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

from compile_models import MODELS, Model, Shape

SMALL = Shape(batch=2, tokens=16, vocabulary=100, width=32, heads=4, layers=1, image=16)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_a_model_trains_as_on_the_cpu(model: Model) -> None:
    torch._dynamo.reset()
    network = model.make(SMALL)
    compiled_network = model.make(SMALL).to("mtia")
    compiled_network.load_state_dict(network.state_dict())
    expected = model.loss(network, SMALL, "cpu")
    result = model.loss(torch.compile(compiled_network), SMALL, "mtia")
    torch.testing.assert_close(result.cpu(), expected)
    expected.backward()
    result.backward()
    for (name, weight), expected_weight in zip(compiled_network.named_parameters(), network.parameters(), strict=True):
        gradient = None if weight.grad is None else weight.grad.cpu()
        torch.testing.assert_close(gradient, expected_weight.grad, rtol=1e-3, atol=1e-4, msg=name)
