"""Pointwise operators with kernels of their own give what the CPU gives, and refuse what it refuses."""

# ruff: noqa: ARG005 (the functions of a table take the same arguments)

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

Function = Callable[..., torch.Tensor]

OPERATORS: dict[str, Function] = {
    "mul": torch.mul,
    "add": torch.add,
    "sub": torch.sub,
    "add, alpha 3": lambda x, y, **out: torch.add(x, y, alpha=3, **out),
    "sub, alpha 3": lambda x, y, **out: torch.sub(x, y, alpha=3, **out),
}
NATIVE = ("aten::mul.out", "aten::add.out", "aten::sub.out", "aten::relu", "aten::relu_")
DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.complex64,
    torch.complex128,
    torch.bool,
)
FLOATING = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
SIZES = (0, 1, 16, 1000, 2**20)


def values(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Numbers of both signs where the dtype has them, small enough that no product overflows."""
    if dtype is torch.bool:
        return torch.rand(shape) < 0.5
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, dtype=dtype)
    return torch.randint(0 if dtype is torch.uint8 else -5, 10, shape, dtype=dtype)


def assert_same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Exactly equal; numbers of 16 bits may differ in the last one."""
    tolerance = {torch.bfloat16: 2**-7, torch.float16: 2**-10, torch.complex32: 2**-10}.get(expected.dtype, 0.0)
    torch.testing.assert_close(actual.cpu(), expected, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("name", NATIVE)
def test_the_operators_of_this_module_are_native(name: str) -> None:
    assert name in torch._C._dispatch_get_registrations_for_dispatch_key("MTIA")


# Numbers -------------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(5)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, dtype) for name in OPERATORS for dtype in DTYPES if dtype is not torch.bool or name in ("mul", "add")],
    ids=str,
)
def test_two_tensors(device: torch.device, name: str, dtype: torch.dtype, size: int) -> None:
    x, y = values(dtype, size), values(dtype, size)
    assert_same(OPERATORS[name](x.to(device), y.to(device)), OPERATORS[name](x, y))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if not dtype.is_complex and dtype != torch.bool], ids=str)
def test_relu(device: torch.device, dtype: torch.dtype, size: int) -> None:
    x = values(dtype, size)
    y = x.clone().to(device)
    assert_same(torch.relu(y), torch.relu(x))
    assert torch.relu_(y) is y
    assert_same(y, torch.relu(x))


def test_relu_passes_nan_on(device: torch.device) -> None:
    x = torch.tensor([float("nan"), -1.0, float("inf"), float("-inf"), -0.0])
    assert_same(torch.relu(x.to(device)), torch.relu(x))


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("scalar", [2, 0.1, True, -3.7, 1 + 2j, 2**40, float("inf")], ids=str)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64]
)
@pytest.mark.parametrize("function", [torch.mul, torch.add])
def test_a_tensor_and_a_python_number(
    device: torch.device, function: Function, dtype: torch.dtype, scalar: complex
) -> None:
    x = values(dtype, 33)
    if torch.result_type(x, scalar) not in (torch.complex64, torch.complex32, *DTYPES):
        with pytest.raises(NotImplementedError):  # BComplex32, from 2.14 on, has no kernels on the CPU
            function(x.to(device), scalar)
        return
    actual = function(x.to(device), scalar)
    assert actual.device == device
    assert_same(actual, function(x, scalar))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("right", DTYPES, ids=str)
@pytest.mark.parametrize("left", DTYPES, ids=str)
def test_dtypes_are_promoted(device: torch.device, left: torch.dtype, right: torch.dtype) -> None:
    x, y = values(left, 3, 5), values(right, 3, 5)
    for function in (torch.mul, torch.add):
        assert_same(function(x.to(device), y.to(device)), function(x, y))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("where", ["host", "device"])
def test_tensors_without_dimensions_count_as_numbers(device: torch.device, where: str, dtype: torch.dtype) -> None:
    for number in (torch.tensor(3), torch.tensor(0.1), torch.tensor(0.1, dtype=torch.float64), torch.tensor(True)):
        x, scalar = values(dtype, 33), number.to("cpu" if where == "host" else device)
        for function in (torch.mul, torch.add):
            assert_same(function(x.to(device), scalar), function(x, number))
            actual = function(scalar, x.to(device))
            assert actual.device == device
            assert_same(actual, function(number, x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_number_is_not_rounded_to_a_short_dtype_before_use(device: torch.device, dtype: torch.dtype) -> None:
    x = values(dtype, 1000)
    for scalar in (0.1, torch.tensor(0.1)):
        assert torch.equal((x.to(device) * scalar).cpu(), (x.float() * 0.1).to(dtype))


def test_numbers_of_both_devices(device: torch.device) -> None:
    host, there = torch.tensor(2.0), torch.tensor(3.0, device=device)
    for result in (host * there, there * host, there + there - host + host):
        assert (result.device, result.item()) == (device, 6.0)


# Layouts -------------------------------------------------------------------------------------------------------------

LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda x: x.contiguous(),
    "transposed": lambda x: x.t().contiguous().t(),
    "sliced": lambda x: x.repeat_interleave(3, 1)[:, 1::3],
    "row": lambda x: x[:1],
    "column": lambda x: x[:, :1],
    "expanded": lambda x: x[:1].expand(x.shape),
    "vector": lambda x: x[0],
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("right", LAYOUTS)
@pytest.mark.parametrize("left", LAYOUTS)
@pytest.mark.parametrize("shape", [(4, 5), (600, 700)], ids=["small", "large"])
def test_layouts_are_broadcast(device: torch.device, shape: tuple[int, int], left: str, right: str) -> None:
    x, y = torch.randn(shape), torch.randn(shape)
    expected = LAYOUTS[left](x) * LAYOUTS[right](y)
    actual = LAYOUTS[left](x.to(device)) * LAYOUTS[right](y.to(device))
    assert actual.stride() == expected.stride()
    assert_same(actual, expected)


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "expanded"])
def test_in_place(device: torch.device, layout: str) -> None:
    x, y = torch.randn(4, 5), torch.randn(1, 5)
    base = x.clone().to(device)
    target, expected = LAYOUTS[layout](base), LAYOUTS[layout](x)
    for operation in ("mul_", "add_", "sub_"):
        operand = y if target.dim() == 2 and target.shape[1] == 5 else y[:, :1]
        operand = operand if target.dim() == 2 else operand[0]
        before = target._version
        assert getattr(target, operation)(operand.to(device)) is target
        assert target._version == before + 1
        getattr(expected, operation)(operand)
    assert_same(target, expected)
    assert_same(base, x)


def test_channels_last_is_preserved(device: torch.device) -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    y = torch.relu(x.to(device) * 2 + 1)
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert_same(y, torch.relu(x * 2 + 1))


@pytest.mark.parametrize("out_dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64], ids=str)
@pytest.mark.parametrize("size", [16, 2**20])
def test_out_may_have_another_dtype(device: torch.device, size: int, out_dtype: torch.dtype) -> None:
    x, y = torch.randn(size), torch.randn(size)
    out = torch.empty(size, dtype=out_dtype, device=device)
    assert torch.add(x.to(device), y.to(device), out=out) is out
    assert_same(out, torch.add(x, y, out=torch.empty(size, dtype=out_dtype)))


def test_out_may_have_any_strides(device: torch.device) -> None:
    x, y = torch.randn(4, 5), torch.randn(4, 5)
    out = torch.zeros(5, 8, device=device).t()[::2]
    torch.mul(x.to(device), y.to(device), out=out)
    assert out.stride() == (2, 8)
    assert_same(out, x * y)


def test_out_may_be_an_input(device: torch.device) -> None:
    x = torch.randn(1000)
    y = x.clone().to(device)
    torch.mul(y, y, out=y)
    assert_same(y, x * x)


# Kinds of loops ------------------------------------------------------------------------------------------------------

KINDS: dict[str, Function] = {
    "comparison": lambda x, y: x > y,
    "comparison with a number": lambda x, y: x >= 0.25,
    "comparison into numbers": lambda x, y: torch.lt(x, y, out=torch.empty_like(x)),
    "comparison in place": lambda x, y: x.clone().eq_(y),
    "logic": lambda x, y: torch.logical_and(x > 0, y),
    "logic into numbers": lambda x, y: torch.logical_not(x, out=torch.empty_like(x)),
    "selection": lambda x, y: torch.where(x > y, x, y),
    "selection of a number": lambda x, y: torch.where(x > y, x, 2.5),
    "selection of numbers": lambda x, y: torch.where(x > y, 1, torch.tensor(0.5, device=x.device)),
    "test": lambda x, y: torch.isposinf(x / (y - y)),
    "two outputs": lambda x, y: torch.frexp(x)[1] + torch.frexp(y)[0],
    "complex from real": torch.complex,
    "real from complex": lambda x, y: torch.complex(x, y).abs() + torch.complex(x, y).angle(),
    "integers to floating point": lambda x, y: torch.sin((x * 10).int()),
    "integers to floating point, out=": lambda x, y: torch.exp(
        (x * 3).int(), out=torch.empty_like(x, dtype=torch.float64)
    ),
    "arguments": lambda x, y: torch.nn.functional.elu(x, 0.3).clamp(-0.2, 0.7).nan_to_num(0.5),
    "three operands": lambda x, y: torch.addcmul(x, y, torch.tensor(3.0, device=x.device), value=0.1),
    "a string": lambda x, y: torch.div(x, y, rounding_mode="floor") + torch.nn.functional.gelu(x, approximate="tanh"),
    "powers": lambda x, y: x.abs() ** 0.5 + 2**x + y**2,
    "tensors and no iterator": lambda x, y: torch.linalg.cross(x.view(-1, 4)[:, :3], y.view(-1, 4)[:, 1:]),
    "membership": lambda x, y: torch.isin((x * 10).int(), torch.tensor([1, 5, -3], device=x.device)),
    "no operands": lambda x, y: (
        torch.arange(x.numel(), device=x.device) + torch.linspace(0, 1, len(y), device=x.device)
    ),
    "no operands, out=": lambda x, y: torch.arange(len(x), out=torch.empty(2 * len(x), device=x.device)[::2]),
}


@pytest.mark.parametrize("size", [0, 16, 2**18])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_loop(device: torch.device, kind: str, size: int) -> None:
    x, y = torch.randn(size), torch.rand(size) + 0.5
    # The second call, behind queued work, finds the first one's operands gone.
    results = [KINDS[kind](x.to(device), y.to(device)) for _ in range(2)]
    for result in results:
        assert_same(result, KINDS[kind](x, y))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith(("no operands", "tensors and"))])
def test_every_kind_of_loop_over_strides(device: torch.device, kind: str) -> None:
    x, y = torch.randn(6, 8).t(), torch.rand(1, 12)[:, ::2] + 0.5
    assert_same(KINDS[kind](x.to(device), y.to(device).expand(8, 6)), KINDS[kind](x, y.expand(8, 6)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "function",
    [
        lambda x, number: x * number,
        lambda x, number: x / number,
        lambda x, number: torch.mul(x, number, out=torch.empty_like(x, dtype=torch.float32)),
        lambda x, number: x.clone().div_(number),
        lambda x, number: torch.where(x > number, x, number),
        lambda x, number: x == number,
        lambda x, number: torch.lerp(x, -x, number.to(x.dtype)),
    ],
)
@pytest.mark.parametrize("where", ["host", "device"])
def test_short_dtypes_and_a_tensor_without_dimensions(
    device: torch.device, function: Function, dtype: torch.dtype, where: str
) -> None:
    x, number = torch.randn(1000).to(dtype), torch.tensor(0.1)
    actual = function(x.to(device), number.to(device) if where == "device" else number)
    assert torch.equal(actual.cpu(), function(x, number))


VALUES: dict[str, Callable[[torch.device, float], torch.Tensor]] = {
    "add": lambda d, v: torch.ones(3, dtype=torch.int8, device=d).add_(torch.ones((), dtype=torch.int8), alpha=int(v)),
    "fill": lambda d, v: torch.ones(3, dtype=torch.int8, device=d).fill_(v),
    "fill of short numbers": lambda d, v: torch.ones(3, dtype=torch.float16, device=d).fill_(v * 1e6),
    "linspace": lambda d, v: torch.linspace(0, v, 3, dtype=torch.int8, device=d),
    "logspace": lambda d, v: torch.logspace(0, v, 3, 1, dtype=torch.int8, device=d),
    "threshold": lambda d, v: torch.nn.functional.threshold(torch.ones(3, dtype=torch.int8, device=d), v, v),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_number_that_does_not_fit_raises_at_the_call(device: torch.device, name: str) -> None:
    assert_same(VALUES[name](device, 0), VALUES[name](torch.device("cpu"), 0))
    for where in (torch.device("cpu"), device):
        with pytest.raises(RuntimeError, match="without overflow"):
            VALUES[name](where, 300)


def test_division_of_integers_by_zero_raises_when_the_stream_synchronizes() -> None:
    quotient = torch.ones(3, dtype=torch.int32, device="mtia") // torch.zeros(3, dtype=torch.int32, device="mtia")
    with pytest.raises(RuntimeError, match=r"ZeroDivisionError.*aten::floor_divide"):
        quotient.cpu()
    assert torch.ones(2, device="mtia").tolist() == [1, 1]


@pytest.mark.parametrize("function", [torch.nn.functional.silu, torch.nn.functional.mish])
def test_gradients_that_have_a_decomposition_too(device: torch.device, function: Function) -> None:
    def gradients(where: torch.device) -> list[torch.Tensor]:
        leaf = torch.linspace(-2, 2, 16).to(where).requires_grad_()
        (first,) = torch.autograd.grad(function(leaf).sum(), leaf, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), leaf)
        (plain,) = torch.autograd.grad(function(leaf), leaf, torch.ones_like(leaf))
        return [first.detach().cpu(), second.cpu(), plain.cpu()]

    torch.testing.assert_close(gradients(device), gradients(torch.device("cpu")))


# Autograd ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize("shapes", [((16,), (16,)), ((300, 400), (400,)), ((2**20,), ())], ids=str)
def test_gradients(device: torch.device, shapes: tuple[tuple[int, ...], tuple[int, ...]], dtype: torch.dtype) -> None:
    leaves = [torch.randn(shape, dtype=dtype) for shape in shapes]

    def gradients(where: torch.device) -> list[torch.Tensor]:
        x, y = (leaf.to(where).detach().requires_grad_() for leaf in leaves)
        (torch.relu(x * y) + x - torch.mul(y, 3)).square().mean().backward()
        assert x.grad is not None
        assert y.grad is not None
        return [x.grad.cpu(), y.grad.cpu()]

    torch.testing.assert_close(gradients(device), gradients(torch.device("cpu")))


def test_second_gradients(device: torch.device) -> None:
    def twice(x: torch.Tensor) -> torch.Tensor:
        (first,) = torch.autograd.grad((x * x * x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        return second

    x = torch.randn(16)
    assert_same(twice(x.to(device).requires_grad_()), twice(x.requires_grad_()))


# What is refused -----------------------------------------------------------------------------------------------------

ERRORS: dict[str, tuple[Callable[[torch.device], Any], str]] = {
    "shapes": (
        lambda d: torch.ones(3, device=d) + torch.ones(4, device=d),
        r"The size of tensor a \(3\) must match the size of tensor b \(4\)",
    ),
    "in place, shape": (
        lambda d: torch.ones(3, device=d).mul_(torch.ones(2, 3, device=d)),
        r"output with shape \[3\] doesn't match the broadcast shape \[2, 3\]",
    ),
    "in place, dtype": (
        lambda d: torch.ones(3, dtype=torch.int32, device=d).add_(1.5),
        "result type Float can't be cast to the desired output type Int",
    ),
    "out, dtype": (
        lambda d: torch.add(torch.ones(3, device=d), 1, out=torch.empty(3, dtype=torch.int32, device=d)),
        "result type Float can't be cast to the desired output type Int",
    ),
    "out, expanded": (lambda d: torch.ones(1, device=d).expand(3).mul_(2), "single memory location"),
    "out, overlapping": (lambda d: overlapping(torch.ones(9, device=d)), "single memory location"),
    "alpha": (
        lambda d: torch.add(torch.ones(3, dtype=torch.int32, device=d), 1, alpha=1.5),
        "For integral input tensors, argument alpha must not be a floating point number",
    ),
    "booleans": (
        lambda d: torch.ones(3, dtype=torch.bool, device=d) - torch.ones(3, dtype=torch.bool, device=d),
        "Subtraction, the `-` operator, with two bool tensors is not supported",
    ),
    "relu of booleans": (
        lambda d: torch.relu(torch.ones(3, dtype=torch.bool, device=d)),
        "Boolean inputs not supported for relu",
    ),
}


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
def test_the_least_integer_divided_by_minus_one_wraps(device: torch.device, dtype: torch.dtype) -> None:
    """The CPU's loops end the process."""
    info = torch.iinfo(dtype)
    least = torch.full((40,), info.min, dtype=dtype, device=device)
    ones = torch.ones_like(least)
    assert torch.div(least, -ones, rounding_mode="trunc").eq(info.min).all()
    assert torch.div(least, -1, rounding_mode="trunc").eq(info.min).all()
    assert torch.lcm(least, ones).eq(info.min).all()
    assert torch.lcm(least, info.max * ones).eq(info.min).all()
    x = torch.randint(-100, 100, (1000,)).to(dtype)
    y = torch.randint(1, 100, (1000,)).to(dtype)
    for operator in (functools.partial(torch.div, rounding_mode="trunc"), torch.lcm):
        assert torch.equal(operator(x.to(device), y.to(device)).cpu(), operator(x, y))


def overlapping(x: torch.Tensor) -> torch.Tensor:
    return torch.mul(x[:-1], 2, out=x[1:])


@pytest.mark.parametrize("name", ERRORS)
def test_a_wrong_argument_raises_as_on_the_cpu(device: torch.device, name: str) -> None:
    call, message = ERRORS[name]
    with pytest.raises(RuntimeError, match=message):
        call(device)


@pytest.mark.parametrize("size", [0, 16, 2**20])
@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        (lambda x: x > x, torch.float8_e4m3fn),
        (torch.exp, torch.float8_e4m3fn),
        (lambda x: torch.logical_not(x), torch.uint16),
        (torch.nn.functional.logsigmoid, torch.int64),
        (lambda x: x + x, torch.float8_e4m3fn),
        (lambda x: x + x, torch.uint16),
        (torch.relu, torch.float8_e4m3fn),
        (torch.relu, torch.complex64),
    ],
)
def test_an_unsupported_dtype_raises_at_the_call(
    device: torch.device, function: Function, dtype: torch.dtype, size: int
) -> None:
    x = torch.ones(size, device=device).to(dtype)
    with pytest.raises(NotImplementedError, match=r"not implemented for|not supported for complex"):
        function(x)


def test_an_unsupported_dtype_does_not_change_the_operand(device: torch.device) -> None:
    x = torch.ones(3, device=device).to(torch.uint16)
    with pytest.raises(NotImplementedError, match="not implemented for 'UInt16'"):
        x.add_(x)
    assert x.tolist() == [1, 1, 1]


@pytest.mark.parametrize("function", [torch.mul, torch.add, torch.sub])
def test_operands_on_two_devices_raise(function: Function) -> None:
    there, host = torch.ones(3, device="mtia"), torch.ones(3)
    for operands in ((there, host), (host, there)):
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            function(*operands)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        function(there, there, out=host)
