"""Operators on lists of tensors give what they give on the CPU, and refuse what it refuses, when they are called."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import (
    foreach_binary_op_db,
    foreach_other_op_db,
    foreach_pointwise_op_db,
    foreach_reduce_op_db,
    foreach_unary_op_db,
)
from torch.utils import _pytree as pytree

from torch_mtia import fallback

if TYPE_CHECKING:
    from tests.conftest import RunScript

Function = Callable[..., Any]

DTYPES = (torch.float32, torch.bfloat16, torch.complex64, torch.int64, torch.bool)
DATABASE = [
    *foreach_unary_op_db,
    *foreach_binary_op_db,
    *foreach_pointwise_op_db,
    *foreach_reduce_op_db,
    *foreach_other_op_db,
]
IN_PLACE = [info for info in DATABASE if info.inplace_variant is not None]
NUM_TENSORS = 5
# The CPU rounds alpha, and numbers that are added, to 16 bits first; tests/test_low_precision.py is exact.
ROUNDED_OTHERWISE = {"_foreach_add", "_foreach_sub"}


def moved(value: Any, device: torch.device) -> Any:
    """A copy on the device. A tensor that occurs twice stays one tensor; numbers stay on the CPU."""
    copies: dict[int, torch.Tensor] = {}

    def move(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) not in copies:
            there = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=device)
            copies[id(leaf)] = there.copy_(leaf.detach()).requires_grad_(leaf.requires_grad)
        return copies[id(leaf)]

    return pytree.tree_map(move, value)


def outcome(function: Function, tensors: list[torch.Tensor], args: Any, kwargs: Any) -> tuple[Any, Any]:
    """What the call returns, or the type of what it raises and the first line of the message."""
    try:
        return function(tensors, *args, **kwargs), None
    except (RuntimeError, IndexError, NotImplementedError, ValueError) as error:
        return None, (type(error), str(error).partition("\n")[0])


def compare(
    function: Function,
    device: torch.device,
    tensors: list[torch.Tensor],
    args: Any,
    kwargs: Any,
    tolerance: float | None = None,
) -> bool:
    """Compares results, errors and the tensors afterwards with the CPU's; true if the call succeeds."""
    host = copy.deepcopy((tensors, args, kwargs))
    there = moved((tensors, args, kwargs), device)
    expected, expected_error = outcome(function, *host)
    actual, actual_error = outcome(function, *there)
    if "BComplex32" in f"{actual_error}{expected_error}":
        # bfloat16 with a complex number, from 2.14 on; which operator refuses it first is left open.
        assert actual_error is not None
        assert expected_error is not None
        return False
    assert actual_error == expected_error
    assert_close = functools.partial(
        torch.testing.assert_close, rtol=tolerance, atol=tolerance, check_device=False, equal_nan=True
    )
    assert_close(actual, expected)
    assert_close(there[0], host[0], check_stride=True)
    return expected_error is None


def tolerance(info: Any, dtype: torch.dtype) -> float | None:
    return 2e-2 if info.name in ROUNDED_OTHERWISE and dtype == torch.bfloat16 else None


def samples(info: Any, dtype: torch.dtype) -> Iterator[tuple[list[torch.Tensor], Any, Any]]:
    options = {"allow_higher_dtype_scalars": True} if info in foreach_binary_op_db + foreach_pointwise_op_db else {}
    for sample in info.sample_inputs("cpu", dtype, num_input_tensors=[NUM_TENSORS], **options):
        yield sample.input, sample.args, sample.kwargs


@pytest.mark.sampled(3)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("info", DATABASE, ids=lambda info: info.name)
def test_results_and_errors_are_those_of_the_cpu(device: torch.device, info: Any, dtype: torch.dtype) -> None:
    functions = [f for f in (info.method_variant, info.inplace_variant) if f is not None]
    compared = [
        compare(f, device, *sample, tolerance(info, dtype)) for f in functions for sample in samples(info, dtype)
    ]
    assert compared


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("info", IN_PLACE, ids=lambda info: info.name)
def test_in_place_operators_do_not_fall_back(device: torch.device, info: Any, dtype: torch.dtype) -> None:
    succeeded = 0
    with fallback.forbid():
        for tensors, args, kwargs in samples(info, dtype):
            # These take ATen's slow path: one operator for each tensor.
            if any(isinstance(a, torch.Tensor) and a.dim() == 1 for a in args):
                continue
            if any(isinstance(leaf, (bool, complex)) for leaf in pytree.tree_leaves((args, kwargs))):
                continue
            succeeded += compare(info.inplace_variant, device, tensors, args, kwargs, tolerance(info, dtype))
    assert succeeded


@pytest.mark.parametrize("count", [1, 20, 100])
def test_a_list_of_any_length(device: torch.device, count: int) -> None:
    tensors, others = ([torch.randn(17) for _ in range(count)] for _ in range(2))
    for function in (torch._foreach_add_, torch._foreach_mul_, torch._foreach_copy_, torch._foreach_add):
        assert compare(function, device, tensors, (others,), {})


def test_a_chain_of_large_lists_runs_in_order(device: torch.device) -> None:
    tensors = [torch.randn(50_000) for _ in range(10)]

    def chain(lists: list[torch.Tensor]) -> list[torch.Tensor]:
        squares = list(torch._foreach_mul(lists, lists))
        for _ in range(5):
            torch._foreach_mul_(squares, 0.5)
            torch._foreach_add_(squares, lists, alpha=2)
            torch._foreach_addcdiv_(squares, lists, squares, 1e-3)
            torch._foreach_abs_(squares)
            torch._foreach_sqrt_(squares)
        return squares

    assert compare(chain, device, tensors, (), {})


# Lists that are not alike --------------------------------------------------------------------------------------------

UNLIKE: dict[str, tuple[Function, Any]] = {
    "dtypes": (torch._foreach_add_, lambda: ([torch.ones(3), torch.ones(3).bfloat16()], [torch.ones(3)] * 2)),
    "shapes": (torch._foreach_mul_, lambda: ([torch.ones(2, 3), torch.ones(3, 3)], [torch.randn(3)] * 2)),
    "strides": (torch._foreach_add_, lambda: ([torch.randn(3, 4), torch.randn(4, 3)], [torch.randn(4, 3).t()] * 2)),
    "integers": (torch._foreach_mul_, lambda: ([torch.arange(3), torch.arange(4)], 3)),
    "gaps": (
        torch._foreach_mul_,
        lambda: ([torch.ones(6)[::2], torch.ones(4)], [torch.full((3,), 2.0), torch.ones(4)]),
    ),
    "powers of integers": (torch._foreach_pow_, lambda: ([torch.arange(3)], 2)),
    "no elements": (torch._foreach_sqrt_, lambda: ([torch.ones(0), torch.full((3,), 4.0)],)),
    "a number of another dtype": (
        torch._foreach_mul_,
        lambda: ([torch.ones(3).bfloat16()], torch.tensor(0.1, dtype=torch.float64)),
    ),
    "copy with conversion": (torch._foreach_copy_, lambda: ([torch.ones(3).bfloat16()], [torch.randn(3)])),
    "result of a higher dtype": (torch._foreach_add_, lambda: ([torch.arange(3)], 0.5)),
    "negative powers of integers": (torch._foreach_pow_, lambda: ([torch.arange(3)], -2)),
    "operand of a higher dtype": (
        torch._foreach_mul_,
        lambda: ([torch.ones(3)], [torch.ones(3, dtype=torch.complex64)]),
    ),
    "complex number": (torch._foreach_add_, lambda: ([torch.ones(3)], 2j)),
    "shapes that do not broadcast": (torch._foreach_add_, lambda: ([torch.ones(3)], [torch.ones(4)])),
    "fewer tensors": (torch._foreach_add_, lambda: ([torch.ones(3)] * 2, [torch.ones(3)])),
    "fewer numbers": (torch._foreach_add_, lambda: ([torch.ones(3)] * 2, [1.0])),
    "tensor with dimensions as number": (torch._foreach_add_, lambda: ([torch.ones(3)], torch.ones(2))),
    "dtype without a kernel": (torch._foreach_lgamma_, lambda: ([torch.ones(3, dtype=torch.complex64)],)),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_lists_that_are_not_alike(device: torch.device, name: str) -> None:
    function, make = UNLIKE[name]
    tensors, *args = make()
    compare(function, device, tensors, args, {})


def test_an_empty_list_raises() -> None:
    with pytest.raises(RuntimeError, match="Tensor list must have at least one tensor"):
        torch._foreach_add_([], [])


def test_numbers_may_stay_on_the_cpu(device: torch.device) -> None:
    tensors = [torch.ones(3, device=device), torch.ones((), device=device)]
    number = torch.tensor(2.0)
    torch._foreach_mul_(tensors, number)
    number.fill_(100.0)
    torch._foreach_add_(tensors, [torch.tensor(1.0), torch.tensor(3.0)])
    assert [t.tolist() for t in tensors] == [[3.0] * 3, 5.0]


def test_a_tensor_on_the_wrong_device_raises(device: torch.device) -> None:
    for function in (torch._foreach_add_, torch._foreach_add, torch._foreach_mul_, torch._foreach_div):
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            function([torch.ones(3, device=device)], [torch.ones(3)])
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch._foreach_add_([torch.ones(3, device=device), torch.ones(3)], [torch.ones(3, device=device)] * 2)


def test_a_list_may_span_devices(run_script: RunScript) -> None:
    script = """
        import torch

        tensors = [torch.ones(3, device="mtia:0"), torch.ones(4, device="mtia:1"), torch.ones(5)]
        torch._foreach_add_(tensors, 1.0)
        torch._foreach_mul_(tensors, [t.clone() for t in tensors])
        print([t.tolist() for t in tensors])
        try:
            torch._foreach_add_(tensors[:1], [torch.ones(3, device="mtia:1")])
        except RuntimeError as error:
            print(error)
    """
    lines = run_script(script, TORCH_MTIA_DEVICES="2").output().splitlines()
    assert lines[0] == str([[4.0] * 3, [4.0] * 4, [4.0] * 5])
    assert lines[1].startswith("Expected all tensors to be on the same device")


# Aliasing ------------------------------------------------------------------------------------------------------------


def test_a_tensor_twice_in_a_list(device: torch.device) -> None:
    x, y = torch.randn(4), torch.randn(4)
    assert compare(torch._foreach_mul_, device, [x, y, x], ([y, x, x],), {})
    assert compare(torch._foreach_add_, device, [x, x, x], (1.5,), {})


def test_the_list_may_be_its_own_operand(device: torch.device) -> None:
    tensors = [torch.randn(4) for _ in range(3)]
    assert compare(torch._foreach_mul_, device, tensors, (tensors,), {})
    assert compare(torch._foreach_addcmul_, device, tensors, (tensors, tensors, 0.5), {})


def test_an_element_of_the_list_may_be_the_number(device: torch.device) -> None:
    number = torch.tensor(3.0)
    assert compare(torch._foreach_mul_, device, [torch.ones(2), number, torch.ones(2)], (number,), {})


def test_views_of_one_storage(device: torch.device) -> None:
    base = torch.arange(12.0, device=device)
    torch._foreach_add_(list(base.view(3, 4)), [base[:4], base[4:8], base[:4]])
    assert base.tolist() == [0, 2, 4, 6, 8, 10, 12, 14, 8, 11, 14, 17]


def test_partial_overlap_raises(device: torch.device) -> None:
    base = torch.arange(4.0, device=device)
    with pytest.raises(RuntimeError, match="single memory location"):
        torch._foreach_add_([base[1:]], [base[:-1]])
    assert base.tolist() == [0, 1, 2, 3]


# Autograd ------------------------------------------------------------------------------------------------------------


def test_versions_advance(device: torch.device) -> None:
    tensors = [torch.ones(3, device=device) for _ in range(2)]
    before = [t._version for t in tensors]
    torch._foreach_mul_(tensors, 2.0)
    assert [t._version for t in tensors] == [version + 1 for version in before]


def test_gradients(device: torch.device) -> None:
    leaves = [torch.randn(3, requires_grad=True), torch.randn(2, 2, requires_grad=True)]

    def gradients(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        products = torch._foreach_mul(tensors, tensors)
        torch._foreach_add_(products, tensors, alpha=3)
        norms = torch._foreach_norm(products)
        return list(torch.autograd.grad(torch.stack(norms).sum(), tensors))

    expected, actual = gradients(leaves), gradients(moved(leaves, device))
    torch.testing.assert_close(actual, expected, check_device=False)
