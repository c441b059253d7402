"""Every operator of PyTorch's database through torch.compile, forward and backward, against eager ones on the CPU: with
contiguous arguments, and with images whose channels are last."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
import torch._dynamo.testing
import torch.compiler.config

from torch_mtia.conformance.database import (
    CPU,
    Case,
    arguments_of,
    assert_alike,
    assert_same,
    assert_same_or_random,
    channels_last,
    each_sample,
    has_images,
    is_undefined,
    moved,
    on_cpu,
    preferred_cases,
)
from torch_mtia.conformance.suites.graphs import forward_and_backward

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.time_limit(300)]

MOST_SAMPLES = 2
TOLERANCE = {"atol": 1e-4, "rtol": 1e-4}  # a decomposition rounds otherwise than the operator that it stands for
# The gradient is of exponentials of differences of numbers near 8000: the CPU's own is off by 3e-3.
ILL_CONDITIONED = {"logcumsumexp": {"atol": 2e-2, "rtol": 1e-4}}


@pytest.fixture(autouse=True)
def _compiled_anew() -> Iterator[None]:
    """The key of PyTorch's cache has no decompositions of the device's: what an earlier backend has compiled fits."""
    with torch.compiler.config.patch(force_disable_caches=True):  # type: ignore[attr-defined] # the module is one of settings
        yield


def check_compiled(device: torch.device, case: Case, arguments: Any) -> None:
    here, there = (moved(arguments, where) for where in (CPU, device))
    expected = on_cpu(lambda: forward_and_backward(case, here))
    torch._dynamo.reset()
    compiled = torch.compile(lambda given: forward_and_backward(case, given, seed=False), dynamic=False)
    actual = compiled(there)
    if is_undefined(case):
        assert_alike(actual, expected, device)
        return
    again = lambda: forward_and_backward(case, moved(arguments, CPU))  # noqa: E731
    bitwise = case.dtype.is_floating_point and case.dtype.itemsize == 1
    tolerance = {} if bitwise else ILL_CONDITIONED.get(case.info.name, TOLERANCE)
    assert_same_or_random(actual, expected, device, tolerance, again)


@preferred_cases()
def test_operators(device: torch.device, case: Case) -> None:
    samples = islice(case.samples(requires_grad=case.differentiable), MOST_SAMPLES)
    each_sample(samples, lambda sample: check_compiled(device, case, arguments_of(sample)))


@preferred_cases()
def test_channels_last(device: torch.device, case: Case) -> None:
    images = [sample for sample in case.samples(requires_grad=case.differentiable) if has_images(sample)]
    if not images:
        pytest.skip("no sample to compare; no images or volumes are among the arguments")
    each_sample(
        iter(images[:MOST_SAMPLES]), lambda sample: check_compiled(device, case, channels_last(arguments_of(sample)))
    )


MODELS = {
    "perceptron": lambda: torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)),
    "convolutions": lambda: torch.nn.Sequential(
        torch.nn.Unflatten(1, (1, 4, 4)),
        torch.nn.Conv2d(1, 4, 3),
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
    ),
    "attention": lambda: torch.nn.Sequential(
        torch.nn.Unflatten(1, (4, 4)), torch.nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    ),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", MODELS)
def test_training(device: torch.device, name: str, dynamic: bool) -> None:
    """Three steps of a compiled model are those of the eager one on the CPU, also when the batch changes."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    here = MODELS[name]()
    there = MODELS[name]().to(device)
    there.load_state_dict(here.state_dict())
    compiled = torch.compile(there, dynamic=dynamic)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (here, there)]
    for batch in (8, 8, 5):
        data = torch.randn(batch, 16)
        losses = []
        for model, optimizer, where in ((here, optimizers[0], CPU), (compiled, optimizers[1], device)):
            optimizer.zero_grad()
            loss = model(data.to(where)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach().cpu())
        assert_same(losses[1], losses[0], CPU, TOLERANCE)
    assert_same(dict(there.state_dict()), dict(here.state_dict()), device, TOLERANCE)


def test_changed_shapes_compile_anew(device: torch.device) -> None:
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("inductor")
    doubled = torch.compile(lambda x: x * 2, backend=counter, dynamic=False)
    for size in (3, 3, 4):
        assert doubled(torch.ones(size, device=device)).tolist() == [2.0] * size
    assert counter.frame_count == 2


def test_a_graph_break_is_not_an_error(device: torch.device) -> None:
    torch._dynamo.reset()

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2

    assert torch.compile(function)(torch.ones(2, device=device)).tolist() == [4.0, 4.0]


def test_mutated_arguments(device: torch.device) -> None:
    torch._dynamo.reset()
    x = torch.zeros(4, device=device)
    torch.compile(lambda y: y.add_(1))(x)
    assert x.tolist() == [1.0] * 4
