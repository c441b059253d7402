"""What PyTorch's own tests feed its operators on the CPU gives the same on the device, forward and backward.

Every operator of PyTorch's database that knows one of DTYPES on the CPU is run in the first it knows, native or not.
NATIVE operators are run in every dtype. What cannot be compared is in NOT_COMPARED, by reason.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils import _pytree as pytree

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64)
MOST_SAMPLES = 12
NATIVE = ("add", "sub", "mul", "nn.functional.relu")

NOT_COMPARED = {
    "draws random numbers": (
        *("bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal", "normal.in_place"),
        *(
            "normal.number_mean",
            "rand_like",
            "randint",
            "randint_like",
            "randn",
            "randn_like",
            "svd_lowrank",
            "uniform",
        ),
        *("nn.functional.alpha_dropout", "nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d"),
        *("nn.functional.feature_alpha_dropout.with_train", "nn.functional.multi_head_attention_forward"),
        *("nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d", "nn.functional.rrelu"),
        *("nn.functional.scaled_dot_product_attention", "pca_lowrank"),
    ),
    "returns memory as it finds it": (
        *("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"),
    ),
    "compiles CUDA code": (
        *("jiterator_unary", "jiterator_binary", "jiterator_4inputs_with_extra_args"),
        *("jiterator_binary_return_by_ref", "jiterator_2inputs_2outputs"),
    ),
    "wants sparse tensors": ("sparse.sampled_addmm", "sparse.mm.reduce", "to_sparse"),
    "returns its statistics in evaluation too, as PyTorch's meta function wants of devices other than the CPU": (
        *("native_batch_norm", "_native_batch_norm_legit"),
    ),
    "reads memory beyond its argument": ("as_strided.partial_views",),
    "wants an argument on the CPU, on every device": ("tensor_split",),
    "is made of other operators, and rounds otherwise than the CPU": ("native_layer_norm", "nn.functional.layer_norm"),
}
# The CPU rounds alpha, and numbers that are added, to 16 bits first; tests/test_low_precision.py is exact.
ROUNDED_OTHERWISE = {"add", "sub"}
SHORT = (torch.bfloat16, torch.float16)
RUN = [info for info in op_db if info.supported_dtypes("cpu") & set(DTYPES)]
REASONS = {name: reason for reason, names in NOT_COMPARED.items() for name in names}


def full_name(info: OpInfo) -> str:
    return f"{info.name}.{info.variant_test_name}" if info.variant_test_name else info.name


def row(info: OpInfo) -> Any:
    reason = REASONS.get(full_name(info))
    marks = [] if reason is None else [pytest.mark.skip(reason=reason)]
    return pytest.param(info, marks=marks, id=full_name(info))


def moved(value: Any, device: torch.device) -> Any:
    """A copy of the arguments on the device, with leaves of their own."""

    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            copy = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=device)
            return copy.copy_(leaf.detach()).requires_grad_(leaf.requires_grad)
        return device if leaf in ("cpu", CPU) else leaf

    return pytree.tree_map(move, value)


def compare(info: OpInfo, device: torch.device, dtype: torch.dtype) -> None:
    # The CPU cannot sum ComplexHalf, which the gradient of a broadcast operand takes.
    differentiable = info.supports_autograd and dtype in info.supported_backward_dtypes("cpu") - {torch.complex32}
    samples = info.sample_inputs("cpu", dtype, requires_grad=differentiable)
    wide = 2e-2 if info.name in ROUNDED_OTHERWISE and dtype in SHORT else None
    for sample in islice(samples, MOST_SAMPLES):
        arguments, there = (moved((sample.input, sample.args, sample.kwargs), where) for where in (CPU, device))
        expected = info.op(arguments[0], *arguments[1], **arguments[2])
        actual = info.op(there[0], *there[1], **there[2])
        torch.testing.assert_close(
            actual, expected, rtol=wide, atol=wide, check_device=False, check_stride=True, equal_nan=True
        )
        if isinstance(expected, torch.Tensor) and expected.requires_grad:
            expected.backward(torch.ones_like(expected))
            actual.backward(torch.ones_like(actual))
            for leaf, reference in zip(pytree.tree_leaves(there), pytree.tree_leaves(arguments), strict=True):
                if isinstance(reference, torch.Tensor) and reference.requires_grad:
                    torch.testing.assert_close(leaf.grad, reference.grad, check_device=False, equal_nan=True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("info", [row(info) for info in RUN])
def test_results_and_gradients_are_those_of_the_cpu(device: torch.device, info: OpInfo) -> None:
    compare(info, device, next(dtype for dtype in DTYPES if dtype in info.supported_dtypes("cpu")))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("info", "dtype"),
    [
        pytest.param(info, dtype, id=f"{full_name(info)}-{dtype}")
        for info in op_db
        if full_name(info) in NATIVE
        for dtype in sorted(info.supported_dtypes("cpu"), key=str)
    ],
)
def test_native_operators_in_every_dtype(device: torch.device, info: OpInfo, dtype: torch.dtype) -> None:
    compare(info, device, dtype)


def test_the_exclusions_name_operators_that_exist() -> None:
    assert set(REASONS) <= {full_name(info) for info in op_db}
