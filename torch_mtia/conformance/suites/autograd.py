"""Gradients of every operator of PyTorch's database: against the CPU's, and against finite differences."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
import torch
from torch.autograd.gradcheck import gradcheck
from torch.testing._internal.opinfo.core import SampleInput

from torch_mtia.conformance.database import (
    CPU,
    ROUNDED_IN_BETWEEN_BACKWARD,
    SHORT,
    Case,
    Refused,
    arguments_of,
    assert_same_or_random,
    cases,
    channels_last,
    each_sample,
    gradient_of,
    has_images,
    moved,
    naming,
    on_cpu,
    preferred_cases,
    rounded_from,
    seed_all,
    tensors_of,
)

pytestmark = pytest.mark.filterwarnings("ignore")

GRADCHECK_SAMPLES = 3
GRADCHECK_NUMEL = 200  # of all arguments: a larger sample takes too long


def gradients(function: Callable[..., Any], arguments: Any) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
    """The results that have gradients, and those of all arguments that require them. Raises Refused if there are
    none."""
    seed_all(0)
    roots = [
        result
        for result in tensors_of(function(arguments[0], *arguments[1], **arguments[2]))
        if result.requires_grad and result.layout == torch.strided
    ]
    leaves = [leaf for leaf in tensors_of(arguments) if leaf.requires_grad]
    if not roots or not leaves:
        raise Refused("it has no gradient")
    found = torch.autograd.grad(roots, leaves, [gradient_of(root) for root in roots], allow_unused=True)
    return [root.detach() for root in roots], list(found)


def check_gradients(device: torch.device, case: Case, arguments: Any) -> None:
    here, there = (moved(arguments, where) for where in (CPU, device))
    expected = on_cpu(lambda: gradients(case.info.op, here))
    actual = gradients(case.info.op, there)

    def again() -> Any:
        return gradients(case.info.op, moved(arguments, CPU))

    if case.dtype in SHORT and device != CPU and case.name not in ROUNDED_IN_BETWEEN_BACKWARD:
        exact = rounded_from(torch.float64, lambda wide: gradients(case.info.op, wide), arguments, expected)
        expected = expected if exact is None else exact
    assert_same_or_random(actual, expected, device, case.gradient_tolerance(), again)


@cases(lambda case: case.differentiable)
def test_backward(device: torch.device, case: Case) -> None:
    each_sample(case.samples(requires_grad=True), lambda sample: check_gradients(device, case, arguments_of(sample)))


@preferred_cases(lambda case: case.differentiable)
def test_channels_last(device: torch.device, case: Case) -> None:
    def check(sample: SampleInput) -> None:
        if not has_images(sample):
            raise Refused("no images or volumes are among the arguments")
        check_gradients(device, case, channels_last(arguments_of(sample)))

    each_sample(case.samples(requires_grad=True), check)


@cases(lambda case: case.differentiable and case.dtype in (torch.float64, torch.complex128))
def test_gradcheck(device: torch.device, case: Case) -> None:
    """The numbers are those of finite differences, if they are on the CPU."""
    checked = 0
    for number, sample in enumerate(islice(case.samples(requires_grad=True), GRADCHECK_SAMPLES)):
        if sum(tensor.numel() for tensor in tensors_of(arguments_of(sample))) > GRADCHECK_NUMEL:
            continue
        with naming(number, sample):
            if passes_gradcheck(case, sample, CPU, raises=False):
                assert passes_gradcheck(case, sample, device, raises=True)
                checked += 1
    if not checked:
        pytest.skip("the CPU's gradients are not those of finite differences in any small sample")


def passes_gradcheck(case: Case, sample: SampleInput, device: torch.device, *, raises: bool) -> bool:
    arguments = moved(arguments_of(sample), device)
    leaves = [leaf for leaf in tensors_of(arguments) if leaf.requires_grad]

    def function(*_leaves: torch.Tensor) -> Any:
        seed_all(0)
        result = case.info.gradcheck_wrapper(case.info.op, arguments[0], *arguments[1], **arguments[2])
        return sample.output_process_fn_grad(result)

    try:
        return bool(leaves) and gradcheck(
            function,
            leaves,
            fast_mode=True,
            raise_exception=raises,
            check_undefined_grad=False,
            nondet_tol=case.info.gradcheck_nondet_tol,
        )
    except Exception:
        if raises:
            raise
        return False
