"""What PyTorch's own tests feed its operators gives, compiled on the device, what eager PyTorch gives on the CPU,
forward and backward. Some operators by default; all of them with `-m wide`, or `make test-wide`.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
import torch
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils import _pytree as pytree

from tests.test_operator_database import CPU, DTYPES, RUN, full_name, moved, row

MOST_SAMPLES = 2
EVERY = 30  # of the operators, by default


def rows() -> list[Any]:
    chosen = []
    for number, info in enumerate(RUN):
        parameter = row(info)
        marks = [*parameter.marks, *([] if number % EVERY == 0 else [pytest.mark.wide])]
        chosen.append(pytest.param(info, marks=marks, id=full_name(info)))
    return chosen


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("info", rows())
def test_compiled_operators_compute_what_the_cpu_does(info: OpInfo) -> None:
    dtype = next(dtype for dtype in DTYPES if dtype in info.supported_dtypes("cpu"))
    differentiable = info.supports_autograd and dtype in info.supported_backward_dtypes("cpu")
    samples = info.sample_inputs("cpu", dtype, requires_grad=differentiable)
    for sample in islice(samples, MOST_SAMPLES):
        arguments, there = (
            moved((sample.input, sample.args, sample.kwargs), where) for where in (CPU, torch.device("mtia", 0))
        )
        expected = info.op(arguments[0], *arguments[1], **arguments[2])
        torch._dynamo.reset()
        compiled = torch.compile(lambda x, args, kwargs: info.op(x, *args, **kwargs), dynamic=False)
        actual = compiled(*there)
        assert_close(actual, expected)
        if isinstance(expected, torch.Tensor) and expected.requires_grad:
            expected.backward(torch.ones_like(expected))
            actual.backward(torch.ones_like(actual))
            for leaf, reference in zip(pytree.tree_leaves(there), pytree.tree_leaves(arguments), strict=True):
                if isinstance(reference, torch.Tensor) and reference.requires_grad:
                    assert_close(leaf.grad, reference.grad)


def assert_close(actual: object, expected: object) -> None:
    """Decompositions round otherwise than the operators they stand for."""
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4, check_device=False, equal_nan=True)
