"""A slice of PyTorch's operator database: what its own tests feed the CPU gives the same on the device.

OPERATORS are run forward in float32, whether they are native or fall back; NATIVE also in every dtype and backward.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils import _pytree as pytree

NATIVE = ("add", "sub", "mul", "nn.functional.relu")
OPERATORS = (
    *("abs", "acos", "addbmm", "addcdiv", "addmm", "amax", "argsort", "as_strided", "atan2", "baddbmm", "bucketize"),
    *("cat", "cdist", "clamp", "clone", "constant_pad_nd", "count_nonzero", "cross", "cumprod", "diff", "digamma"),
    *("dist", "div", "erf", "expand", "fft.fft2", "fill", "flip", "floor_divide", "fmod", "gather", "heaviside"),
    *("index_copy", "index_put", "isclose", "kron", "lerp", "linalg.matrix_norm", "linalg.lstsq", "linalg.pinv"),
    *("logcumsumexp", "masked_scatter", "median", "nan_to_num", "nn.functional.avg_pool2d", "nn.functional.conv3d"),
    *("nn.functional.cross_entropy", "nn.functional.gelu", "nn.functional.interpolate", "nn.functional.unfold"),
    *("norm", "pow", "put", "quantile", "remainder", "renorm", "roll", "scatter_reduce", "searchsorted", "sinc"),
    *("slice_scatter", "split", "take_along_dim", "tensordot", "to", "tril", "unbind", "view_as_complex", "where"),
)
MOST_SAMPLES = 24

BY_NAME: dict[str, OpInfo] = {}
for info in op_db:
    BY_NAME.setdefault(info.name, info)


def moved(value: Any, device: torch.device) -> Any:
    def move(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device).copy_(x.detach())
        return y.requires_grad_(x.requires_grad)

    def moved_leaf(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return move(x)
        return device if x in ("cpu", torch.device("cpu")) else x

    return pytree.tree_map(moved_leaf, value)


def compare(info: OpInfo, device: torch.device, dtype: torch.dtype, requires_grad: bool) -> None:
    samples = info.sample_inputs("cpu", dtype, requires_grad=requires_grad)
    for sample in islice(samples, MOST_SAMPLES):
        arguments = (sample.input, sample.args, sample.kwargs)
        there = moved(arguments, device)
        expected = info.op(arguments[0], *arguments[1], **arguments[2])
        actual = info.op(there[0], *there[1], **there[2])
        torch.testing.assert_close(actual, expected, check_device=False, check_stride=True, equal_nan=True)
        if requires_grad and isinstance(expected, torch.Tensor) and expected.requires_grad:
            expected.backward(torch.ones_like(expected))
            actual.backward(torch.ones_like(actual))
            leaves = zip(pytree.tree_leaves(there), pytree.tree_leaves(arguments), strict=True)
            for leaf, reference in leaves:
                if isinstance(reference, torch.Tensor) and reference.requires_grad:
                    torch.testing.assert_close(leaf.grad, reference.grad, check_device=False)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OPERATORS)
def test_forward(device: torch.device, name: str) -> None:
    compare(BY_NAME[name], device, torch.float32, False)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, dtype) for name in NATIVE for dtype in sorted(BY_NAME[name].supported_dtypes("cpu"), key=str)],
    ids=str,
)
def test_native_operators(device: torch.device, name: str, dtype: torch.dtype) -> None:
    # The CPU cannot sum ComplexHalf, which the gradient of a broadcast operand takes.
    differentiable = BY_NAME[name].supported_backward_dtypes("cpu") - {torch.complex32}
    compare(BY_NAME[name], device, dtype, dtype in differentiable)
