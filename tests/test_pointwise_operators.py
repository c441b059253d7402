"""Every pointwise row of yaml/native_functions.yaml gives what the CPU gives, bit for bit, without falling back.

An operator is fed what PyTorch's operator database feeds it, functional, in place and with `out=`. CALLS has the rows
that the database does not know or reaches only through autograd.
"""

# ruff: noqa: ARG005 (all of CALLS take the same tensors)

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils import _pytree as pytree

import torch_mtia

YAML = Path(__file__).parents[1] / "yaml" / "native_functions.yaml"
SECTION = YAML.read_text().partition("\n# Pointwise:")[2].partition("\n# Reductions:")[0]
ROWS: list[str] = re.findall(r"^- \{?operator: ([\w.]+)(?:,|\n ) kernel:", SECTION, re.MULTILINE)

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.complex64)
MOST_SAMPLES = 8
CPU = torch.device("cpu")
aten = torch.ops.aten

# By the CPU, which rounds numbers that are added to 16 bits first; tests/test_low_precision.py is exact.
ROUNDED_OTHERWISE = ("mvlgamma",)
SHORT = (torch.bfloat16, torch.float16)
# These call operators that are not pointwise: sum, mean, sort, cat.
MAY_FALL_BACK = ("mvlgamma", "isin", "nn.functional.mse_loss", "nn.functional.smooth_l1_loss", "glu_backward_jvp")
NO_SHORT_DTYPES = ("_add_relu", "_add_relu_", "glu_jvp")


def base_name(row: str) -> str:
    return row.partition(".")[0]


NAMES = {base_name(row).rstrip("_") for row in ROWS}


def aten_names(info: OpInfo) -> set[str]:
    """The operators that an entry of the database may be about."""
    public = info.name.removeprefix("nn.functional.").replace("special.", "special_")
    return {info.aten_name.rstrip("_"), public}


INFOS = [info for info in op_db if aten_names(info) & NAMES]

# Calls on three tensors of three rows and four columns; the third has positive numbers.
CALLS: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]] = {
    "_add_relu.Scalar": lambda x, y, p: aten._add_relu(x, 0.5, alpha=2),
    "_add_relu.Tensor": lambda x, y, p: aten._add_relu(x, y, alpha=2),
    "_add_relu.out": lambda x, y, p: aten._add_relu(x, y, alpha=2, out=torch.empty_like(x)),
    "_add_relu_.Scalar": lambda x, y, p: aten._add_relu_(x, 0.5, alpha=2),
    "_add_relu_.Tensor": lambda x, y, p: aten._add_relu_(x, y, alpha=2),
    "__ilshift__.Scalar": lambda x, y, p: p.int().__ilshift__(2),
    "__ilshift__.Tensor": lambda x, y, p: p.int().__ilshift__(p.int()),
    "__irshift__.Scalar": lambda x, y, p: (p * 9).int().__irshift__(2),
    "__irshift__.Tensor": lambda x, y, p: (p * 9).int().__irshift__(p.int()),
    "__lshift__.Scalar": lambda x, y, p: p.int() << 2,
    "__lshift__.Tensor": lambda x, y, p: p.int() << p.int(),
    "__rshift__.Scalar": lambda x, y, p: (p * 9).int() >> 2,
    "__rshift__.Tensor": lambda x, y, p: (p * 9).int() >> p.int(),
    "_prelu_kernel": lambda x, y, p: aten._prelu_kernel(x, p),
    "_prelu_kernel_backward": lambda x, y, p: aten._prelu_kernel_backward(x, y, p),
    "arange.start_out": lambda x, y, p: torch.arange(1, 9, 2, dtype=x.dtype, device=x.device),
    "elu_backward.grad_input": lambda x, y, p: aten.elu_backward(x, 1, 2, 3, False, y),
    "eye.m_out": lambda x, y, p: torch.eye(3, 5, dtype=x.dtype, device=x.device),
    "eye.out": lambda x, y, p: torch.eye(3, dtype=x.dtype, device=x.device),
    "fmod.Tensor_out": lambda x, y, p: torch.fmod(x, p),
    "gelu_backward.grad_input": lambda x, y, p: aten.gelu_backward(x, y, approximate="tanh"),
    "glu_backward": lambda x, y, p: aten.glu_backward(x[:, :2], y, 1),
    "glu_backward.grad_input": lambda x, y, p: aten.glu_backward(x[:, :2], y, 1, grad_input=torch.empty_like(x)),
    "glu_backward_jvp": lambda x, y, p: aten.glu_backward_jvp(x, y[:, :2], y, p[:, :2], p, 1),
    "glu_jvp": lambda x, y, p: aten.glu_jvp(x[:, :2], y, p, 1),
    "hardshrink_backward.grad_input": lambda x, y, p: aten.hardshrink_backward(x, y, 0.5),
    "hardsigmoid_backward.grad_input": lambda x, y, p: aten.hardsigmoid_backward(x, y),
    "hardswish_backward": lambda x, y, p: aten.hardswish_backward(x, y),
    "hardtanh.out": lambda x, y, p: aten.hardtanh(x, out=torch.empty_like(x)),
    "hardtanh_backward": lambda x, y, p: aten.hardtanh_backward(x, y, -1, 1),
    "hardtanh_backward.grad_input": lambda x, y, p: aten.hardtanh_backward(x, y, -1, 1, grad_input=torch.empty_like(x)),
    "huber_loss_backward.out": lambda x, y, p: aten.huber_loss_backward(
        x, y, p, 0, 1.5, grad_input=torch.empty_like(x)
    ),
    "leaky_relu_backward.grad_input": lambda x, y, p: aten.leaky_relu_backward(x, y, -0.1, False),
    "linspace.out": lambda x, y, p: torch.linspace(-1, 9, 13, dtype=x.dtype, device=x.device),
    "log_sigmoid_backward": lambda x, y, p: aten.log_sigmoid_backward(x, y, *aten.log_sigmoid_forward(y)[1:]),
    "log_sigmoid_backward.grad_input": lambda x, y, p: aten.log_sigmoid_backward(
        x, y, *aten.log_sigmoid_forward(y)[1:], grad_input=torch.empty_like(x)
    ),
    "log_sigmoid_forward": lambda x, y, p: aten.log_sigmoid_forward(x.t()),
    "log_sigmoid_forward.output": lambda x, y, p: aten.log_sigmoid_forward(
        x, output=torch.empty_like(x.t()).t(), buffer=torch.empty_like(x)
    ),
    "logit_backward.grad_input": lambda x, y, p: aten.logit_backward(x, p / 8, 0.1),
    "logspace.out": lambda x, y, p: torch.logspace(0, 3, 13, base=2, dtype=x.dtype, device=x.device),
    "mish_backward": lambda x, y, p: aten.mish_backward(x, y),
    "mse_loss_backward": lambda x, y, p: aten.mse_loss_backward(x, y, p, 1),
    "mse_loss_backward.grad_input": lambda x, y, p: aten.mse_loss_backward(x, y, p, 0, grad_input=torch.empty_like(x)),
    "mse_loss.out": lambda x, y, p: aten.mse_loss(x, y, 0),
    "native_dropout_backward": lambda x, y, p: aten.native_dropout_backward(x, y > 0, 1.25),
    "remainder.Scalar_Tensor": lambda x, y, p: torch.remainder(3, p),
    "sigmoid_backward.grad_input": lambda x, y, p: aten.sigmoid_backward(x, y),
    "silu_backward.grad_input": lambda x, y, p: aten.silu_backward(x, y),
    "smooth_l1_loss.out": lambda x, y, p: aten.smooth_l1_loss(x, y, 0, 0.5),
    "smooth_l1_loss_backward.grad_input": lambda x, y, p: aten.smooth_l1_loss_backward(
        x, y, p, 0, 1.5, grad_input=torch.empty_like(x)
    ),
    "softplus_backward.grad_input": lambda x, y, p: aten.softplus_backward(x, y, 2, 1),
    "softshrink_backward.grad_input": lambda x, y, p: aten.softshrink_backward(x, y, 0.5),
    "tanh_backward.grad_input": lambda x, y, p: aten.tanh_backward(x, y),
    "threshold_backward.grad_input": lambda x, y, p: aten.threshold_backward(x, y, 0.25),
}


def moved(value: Any, device: torch.device) -> Any:
    """A copy of the arguments on the device."""

    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=device).copy_(leaf)
        return device if leaf in ("cpu", CPU) else leaf

    return pytree.tree_map(move, value)


def forbid_unless(may_fall_back: bool) -> AbstractContextManager[None]:
    return nullcontext() if may_fall_back else torch_mtia.fallback.forbid()


def assert_same(actual: Any, expected: Any, *, tolerance: float = 0.0) -> None:
    torch.testing.assert_close(
        actual, expected, rtol=tolerance, atol=tolerance, check_device=False, check_stride=True, equal_nan=True
    )


def calls(info: OpInfo, sample: SampleInput, device: torch.device) -> list[Any]:
    """What the operator gives on the device: as a function, with `out=`, in place."""
    first, args, kwargs = moved((sample.input, sample.args, sample.kwargs), device)
    results = [info.op(first, *args, **kwargs)]
    (result,) = results
    if not isinstance(result, torch.Tensor):
        return results
    if info.supports_out:
        out = torch.empty_like(result)
        assert info.op(first, *args, out=out, **kwargs) is out
        results.append(out)
    inplace = info.inplace_variant
    if (
        inplace is not None
        and (first.shape, first.dtype) == (result.shape, result.dtype)
        and not sample.broadcasts_input
    ):
        assert inplace(first, *args, **kwargs) is first
        results.append(first)
    return results


@pytest.mark.sampled(5)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("info", "dtype"),
    [
        pytest.param(info, dtype, id=f"{info.formatted_name}-{dtype}")
        for info in INFOS
        for dtype in DTYPES
        if dtype in info.supported_dtypes("cpu")
    ],
)
def test_an_operator_gives_what_the_cpu_gives(device: torch.device, info: OpInfo, dtype: torch.dtype) -> None:
    samples = [s for s in info.sample_inputs("cpu", dtype) if s.kwargs.get("reduction", "none") == "none"]
    assert samples
    for sample in samples[:MOST_SAMPLES]:
        expected = calls(info, sample, CPU)
        with forbid_unless(info.name in MAY_FALL_BACK):
            actual = calls(info, sample, device)
        rounded_otherwise = info.name in ROUNDED_OTHERWISE and dtype in SHORT
        assert_same(actual, expected, tolerance=2e-2 if rounded_otherwise else 0.0)


@pytest.mark.parametrize(
    ("row", "dtype"),
    [
        (row, dtype)
        for row in CALLS
        for dtype in (torch.float32, torch.float64, torch.bfloat16)
        if dtype.itemsize > 2 or base_name(row) not in NO_SHORT_DTYPES
    ],
    ids=str,
)
def test_a_row_gives_what_the_cpu_gives(device: torch.device, row: str, dtype: torch.dtype) -> None:
    tensors = [torch.randn(3, 4, dtype=dtype), torch.randn(3, 4, dtype=dtype), torch.rand(3, 4, dtype=dtype) * 3 + 1]
    there = moved(tensors, device)
    expected = CALLS[row](*tensors)
    with forbid_unless(base_name(row) in MAY_FALL_BACK):
        actual = CALLS[row](*there)
    assert_same(actual, expected)
    assert_same(there, tensors)


@pytest.mark.parametrize("exponents", [torch.int8, torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_ldexp_with_whole_exponents(device: torch.device, dtype: torch.dtype, exponents: torch.dtype) -> None:
    x, exponent = torch.randn(20).to(dtype), torch.randint(-9, 9, (20,)).to(exponents)
    for other in (exponent, exponent[0], exponent[::2].repeat_interleave(2)):
        assert_same(torch.ldexp(x.to(device), other.to(device)), torch.ldexp(x, other))


@pytest.mark.parametrize("row", ROWS)
def test_a_row_is_registered_and_tested(row: str) -> None:
    assert f"aten::{row}" in torch._C._dispatch_get_registrations_for_dispatch_key("MTIA")
    assert row in CALLS or base_name(row).rstrip("_") in set().union(*map(aten_names, INFOS))
