"""Every operator of PyTorch's database, forward and backward, in a graph: captured, which allows no wait, and
replayed on other data."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
import torch
from torch.testing._internal.opinfo.core import SampleInput
from torch.utils import _pytree as pytree

from torch_mtia.conformance.database import (
    CPU,
    Case,
    Refused,
    arguments_of,
    assert_alike,
    assert_same_or_random,
    each_sample,
    gradient_of,
    is_undefined,
    moved,
    on_cpu,
    preferred_cases,
    seed_all,
    tensors_of,
    unseeded,
)

pytestmark = pytest.mark.filterwarnings("ignore")

MOST_SAMPLES = 3


def forward_and_backward(case: Case, arguments: Any, *, seed: bool = True) -> Any:
    """The result, and the gradients of the arguments that require them."""
    if seed:
        seed_all(0)
    result = case.info.op(arguments[0], *arguments[1], **arguments[2])
    roots = [root for root in tensors_of(result) if root.requires_grad and root.layout == torch.strided]
    leaves = [leaf for leaf in tensors_of(arguments) if leaf.requires_grad]
    if not roots or not leaves:
        return result, []
    return result, list(torch.autograd.grad(roots, leaves, [*map(gradient_of, roots)], allow_unused=True))


def with_tensors_of(sample: SampleInput, other: SampleInput) -> Any:
    """The sample's arguments with the other's tensors, if these are of the same form, else with its own."""
    leaves, structure = pytree.tree_flatten(arguments_of(sample))
    data = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    others = tensors_of(arguments_of(other))
    if [(t.shape, t.stride(), t.dtype) for t in data] != [(t.shape, t.stride(), t.dtype) for t in others]:
        others = data
    replacements = iter(others)
    return structure.unflatten([next(replacements) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves])


@preferred_cases()
def test_replay(device: torch.device, case: Case) -> None:
    if device.type == "cpu":
        pytest.skip("the CPU has no graphs")
    draws = case.samples(requires_grad=case.differentiable, seed=1)

    def check(sample: SampleInput) -> None:
        if any(tensor.layout != torch.strided for tensor in tensors_of(arguments_of(sample))):
            raise Refused("it has a sparse argument")
        other = with_tensors_of(sample, next(draws, sample))
        here, there = moved(other, CPU), moved(arguments_of(sample), device)
        expected = on_cpu(lambda: forward_and_backward(case, here))
        forward_and_backward(case, moved(other, device))  # what is made once for each process is made
        graph = torch.accelerator.Graph()
        torch.accelerator.synchronize()
        with unseeded(), torch.Stream(device), graph:
            actual = forward_and_backward(case, there, seed=False)
        for argument, data in zip(tensors_of(there), tensors_of(other), strict=True):
            argument.detach().copy_(data.detach())
        graph.replay()
        torch.accelerator.synchronize()
        if is_undefined(case):
            assert_alike(actual, expected, device)
            return
        again = lambda: forward_and_backward(case, moved(other, CPU))  # noqa: E731
        assert_same_or_random(actual, expected, device, case.gradient_tolerance(), again)

    each_sample(islice(case.samples(requires_grad=case.differentiable), MOST_SAMPLES), check)
