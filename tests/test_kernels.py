"""The Triton kernels of torch_mtia.kernels compute what ATen's do, and leave to those what they cannot."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close
from torch.testing._internal.common_methods_invocations import op_db

pytest.importorskip("triton")

from torch_mtia.backend import device_module, device_type
from torch_mtia.kernels import dispatch

if TYPE_CHECKING:
    from tests.conftest import RunScript

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.uint8)
ROUGH = 2e-2  # of 16 bits, which the CPU rounds more often
SHAPES = ((7, 33), (33,), (7, 1), (1, 1), ())


@pytest.fixture(scope="module", autouse=True)
def kernels(pytestconfig: pytest.Config) -> Iterator[dict[str, dispatch.Operator]]:
    if pytestconfig.getoption("--device") == "cpu":
        pytest.skip("about the device's kernels")
    operators = dispatch.register()
    yield operators
    dispatch.unregister()


@pytest.fixture
def only_triton(kernels: dict[str, dispatch.Operator], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left to the kernels that the operators had before, but copies from and to the host."""

    class Refusing:
        def call_boxed(self, *_: Any, **__: Any) -> Tensor:
            raise AssertionError("was not run as a Triton kernel")

    for name, kernel in kernels.items():
        if not name.startswith(("aten::copy_", "aten::zero_", "aten::fill_")):
            monkeypatch.setattr(kernel, "previous", Refusing())


def on_device(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.to(device_type())
    return type(value)(map(on_device, value)) if isinstance(value, (list, tuple)) else value


def check(
    function: Callable[..., Tensor], *arguments: Any, rtol: float | None = None, atol: float | None = None
) -> None:
    """The function gives on the device what it gives on the CPU, in the same layout."""
    expected = function(*arguments)
    actual = function(*map(on_device, arguments))
    if rtol is None and expected.dtype in (torch.float16, torch.bfloat16):
        rtol = atol = ROUGH
    assert_close(actual.cpu(), expected, equal_nan=True, rtol=rtol, atol=atol)
    assert actual.stride() == expected.stride()


def example(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    if dtype in FLOATS:
        return torch.randn(shape).to(dtype)
    return torch.randint(0, 2 if dtype == torch.bool else 9, shape).to(dtype)


@pytest.mark.usefixtures("only_triton")
class TestPointwise:
    @pytest.mark.sampled(3)
    @pytest.mark.parametrize("function", [torch.add, torch.mul, torch.div, torch.maximum, torch.eq, torch.lt])
    def test_types_are_promoted(self, function: Callable[..., Tensor]) -> None:
        dtypes = (*FLOATS, *INTEGERS, torch.bool)
        for left, right in itertools.product(dtypes, dtypes):
            check(function, example((7, 33), left), example((7, 33), right))

    @pytest.mark.sampled(4)
    @pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
    @pytest.mark.parametrize("other", [2, 2.5, True, torch.tensor(3.5)], ids=str)
    def test_numbers(self, dtype: torch.dtype, other: float | Tensor) -> None:
        for function in (torch.add, torch.mul, torch.div, torch.lt):
            x = example((7, 33), dtype)
            expected = function(x, other)
            assert_close(function(on_device(x), other).cpu(), expected)

    def test_shapes_are_broadcast(self) -> None:
        for left, right in itertools.product(SHAPES, SHAPES):
            check(torch.add, example(left, torch.float32), example(right, torch.float32))

    def test_strides(self) -> None:
        x = torch.randn(5, 6, 7, 8)
        for view in (
            x.transpose(0, 3),
            x[:, ::2, 1:],
            x.expand(3, 5, 6, 7, 8),
            x.contiguous(memory_format=torch.channels_last),
        ):
            check(torch.exp, view)
            check(torch.mul, view, torch.randn(8 if view.shape[-1] == 8 else view.shape[-1]))

    def test_large(self) -> None:
        check(torch.add, torch.randn(1 << 20), torch.randn(1 << 20))
        check(torch.add, torch.randn(1000, 1025), torch.randn(1000, 1))

    @pytest.mark.sampled(3)
    @pytest.mark.parametrize("dtype", FLOATS)
    def test_unary(self, dtype: torch.dtype) -> None:
        x = torch.linspace(-6, 6, 1001).to(dtype)
        signed = (
            torch.neg,
            torch.abs,
            torch.sign,
            torch.relu,
            torch.floor,
            torch.ceil,
            torch.trunc,
            torch.sin,
            torch.cos,
        )
        for function in (
            *signed,
            torch.tanh,
            torch.erf,
            torch.sigmoid,
            torch.exp,
            torch.exp2,
            torch.reciprocal,
            F.silu,
        ):
            check(function, x)
        check(functools.partial(F.gelu, approximate="tanh"), x)
        for function in (F.gelu, F.leaky_relu, torch.logical_not):
            check(function, x)
        for function in (torch.sqrt, torch.rsqrt, torch.log, torch.log2, torch.log10):
            check(function, x.abs())

    def test_infinities_and_nan(self) -> None:
        x = torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0, -0.0, 1.0, 1e-38, 3e38])
        for binary in (torch.maximum, torch.minimum, torch.mul, torch.add, torch.div, torch.eq, torch.le):
            check(binary, x[:, None], x)
        for function in (
            torch.tanh,
            torch.sigmoid,
            torch.relu,
            torch.sign,
            torch.exp,
            torch.log,
            torch.abs,
            torch.rsqrt,
        ):
            check(function, x)

    def test_zeros_have_signs(self) -> None:
        x = torch.tensor([0.0, -0.0, 1.0])
        for dtype in FLOATS:
            assert (-on_device(x.to(dtype))).cpu().signbit().tolist() == [True, False, True]

    def test_tanh_is_exact_near_zero(self) -> None:
        check(torch.tanh, torch.logspace(-20, 0, 1000), rtol=5e-7, atol=0)

    def test_in_place_and_out(self) -> None:
        x, y = torch.randn(2, 5, 6)
        check(lambda x, y: x.clone().add_(y, alpha=3), x, y)
        check(lambda x, y: x.clone().t().mul_(y.t()), x, y)
        check(lambda x, y: torch.add(x, y, out=torch.empty(0, device=x.device)), x, y)
        check(lambda x, y: torch.add(x, y, out=torch.empty(6, 5, device=x.device).t()), x, y)
        check(lambda x: torch.mul(x, x, out=x.clone()), x)
        check(lambda x, y: torch.lt(x, y, out=torch.empty(5, 6, device=x.device)), x, y)
        written = on_device(x)
        assert torch.exp(on_device(y), out=written) is written

    def test_gradients(self) -> None:
        for function in (
            torch.relu,
            torch.sigmoid,
            torch.tanh,
            F.silu,
            F.gelu,
            functools.partial(F.gelu, approximate="tanh"),
        ):

            def gradient(x: Tensor, function: Callable[[Tensor], Tensor] = function) -> Tensor:
                leaf = x.detach().requires_grad_()
                (function(leaf) * x).sum().backward()
                assert leaf.grad is not None
                return leaf.grad

            check(gradient, torch.linspace(-4, 4, 100))

    def test_ternary(self) -> None:
        x, y, z = torch.randn(3, 5, 6)
        check(torch.where, x > 0, y, z)
        check(lambda x, y: torch.where(x > 0, y, 0), x, y)
        check(functools.partial(torch.addcmul, value=0.5), x, y, z)
        check(functools.partial(torch.addcdiv, value=0.5), x, y, z)
        check(lambda x, y: torch.lerp(x, y, 0.3) + torch.lerp(x, y, 0.7), x, y)


class TestCopies:
    @pytest.mark.parametrize(
        "dtype", [*FLOATS, *INTEGERS, torch.bool, torch.float64, torch.complex64, torch.complex128]
    )
    def test_order(self, dtype: torch.dtype) -> None:
        x = torch.randn(7, 33, 5).mul(9).to(dtype)
        check(lambda x: x.transpose(0, 2).contiguous(), x)
        check(lambda x: torch.zeros_like(x.expand(2, 7, 33, 5)).copy_(x), x)
        check(lambda x: x[::2, 3:].clone(), x)

    def test_types(self) -> None:
        dtypes = (*FLOATS, *INTEGERS, torch.bool, torch.float64)
        for source, target in itertools.product(dtypes, dtypes):
            check(lambda x, target=target: x.to(target), torch.arange(100.0).to(source))

    def test_lazy_conjugates_are_taken(self) -> None:
        x = torch.randn(4, 5, dtype=torch.complex64)
        check(lambda x: torch.empty(5, 4, dtype=x.dtype, device=x.device).copy_(x.conj().t()), x)
        check(lambda x: x.conj().imag.clone(), x)

    def test_fills(self) -> None:
        for value, dtype in itertools.product((0, 2, True), (torch.float32, torch.int64, torch.bool)):
            check(lambda x, value=value: fill_columns(x, value), torch.ones(4, 6).to(dtype))
        check(lambda x: zero_columns(x), torch.ones(4, 6))


def fill_columns(x: Tensor, value: float) -> Tensor:
    x = x.clone()
    x[:, ::2].fill_(value)
    return x


def zero_columns(x: Tensor) -> Tensor:
    x = x.clone()
    x[:, ::2].zero_()
    return x


REDUCTIONS = (torch.sum, torch.mean, torch.amax, torch.amin)


@pytest.mark.usefixtures("only_triton")
class TestReductions:
    @pytest.mark.sampled(4)
    @pytest.mark.parametrize("function", REDUCTIONS)
    @pytest.mark.parametrize("dim", [0, -1, (0, 2), (0, 1, 2), ()], ids=str)
    def test_dimensions(self, function: Callable[..., Tensor], dim: int | tuple[int, ...]) -> None:
        x = torch.randn(5, 33, 7)
        for source, keepdim in itertools.product((x, x.transpose(0, 2), x[:, ::2]), (False, True)):
            check(functools.partial(function, dim=dim, keepdim=keepdim), source)

    @pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool])
    def test_types(self, dtype: torch.dtype) -> None:
        x = example((20, 30), dtype)
        for function in (torch.sum, torch.max, torch.min):
            check(lambda x, function=function: function(x), x)
        for extremum in (torch.amax, torch.amin):
            check(functools.partial(extremum, dim=1), x)
        check(lambda x: x.sum(0, dtype=torch.float32), x)

    @pytest.mark.parametrize("shape", [(300_000,), (3, 100_000), (100_000, 3), (600, 700)], ids=str)
    def test_long(self, shape: tuple[int, ...]) -> None:
        x = torch.randn(shape)
        for function in (torch.sum, torch.mean):
            check(lambda x, function=function: function(x), x, rtol=1e-4, atol=1e-2)
            check(functools.partial(function, dim=0), x, rtol=1e-4, atol=1e-2)
        check(torch.max, x)

    def test_nan_is_the_largest_and_the_smallest(self) -> None:
        x = torch.randn(4, 50)
        x[1, 20] = float("nan")
        check(functools.partial(torch.amax, dim=1), x)
        check(functools.partial(torch.amin, dim=1), x)
        check(torch.max, x)

    def test_of_nothing(self) -> None:
        check(functools.partial(torch.sum, dim=1), torch.ones(3, 0))
        check(functools.partial(torch.mean, dim=1), torch.ones(3, 0))


@pytest.mark.usefixtures("only_triton")
class TestSoftmax:
    @pytest.mark.sampled(3)
    @pytest.mark.parametrize("function", [torch.softmax, torch.log_softmax])
    @pytest.mark.parametrize("dtype", FLOATS)
    def test_any_dimension(self, function: Callable[..., Tensor], dtype: torch.dtype) -> None:
        for source in (torch.randn(5, 33, 7), torch.randn(5, 33, 7).transpose(0, 2), torch.randn(2, 9000)):
            for dim in range(source.dim()):
                check(functools.partial(function, dim=dim), source.to(dtype))

    @pytest.mark.parametrize("function", [torch.softmax, torch.log_softmax])
    def test_gradient(self, function: Callable[..., Tensor]) -> None:
        def gradient(x: Tensor, dim: int) -> Tensor:
            leaf = x.detach().requires_grad_()
            (function(leaf, dim) * x).sum().backward()
            assert leaf.grad is not None
            return leaf.grad

        for source, dim in itertools.product((torch.randn(5, 33, 7), torch.randn(5, 33, 7).transpose(0, 2)), range(3)):
            check(functools.partial(gradient, dim=dim), source)

    def test_rows_that_are_infinite(self) -> None:
        x = torch.randn(3, 6000)
        x[0, :5000] = -float("inf")
        x[1] = -float("inf")
        x[2, 7] = float("nan")
        check(functools.partial(torch.softmax, dim=1), x)


@pytest.mark.usefixtures("only_triton")
class TestProducts:
    @pytest.mark.sampled(4)
    @pytest.mark.parametrize("dtype", FLOATS)
    @pytest.mark.parametrize("size", [(1, 1, 1), (3, 5, 7), (128, 64, 128), (130, 70, 200)], ids=str)
    def test_products(self, dtype: torch.dtype, size: tuple[int, int, int]) -> None:
        m, n, k = size
        a, b, c = (torch.randn(shape).to(dtype) for shape in ((m, k), (k, n), (n,)))
        tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 0.2}
        check(torch.mm, a, b, **tolerance)
        check(lambda a, b: torch.mm(b.t(), a.t()), a, b, **tolerance)
        check(torch.addmm, c, a, b, **tolerance)
        check(F.linear, a, b.t().contiguous(), c, **tolerance)
        check(lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=-2), c, a, b, **tolerance)
        check(torch.bmm, a.expand(3, m, k), b.expand(3, k, n), **tolerance)
        check(torch.baddbmm, c.expand(3, 1, n), a.expand(3, m, k), b.expand(3, k, n), **tolerance)

    def test_in_place_and_out(self) -> None:
        a, b = torch.randn(2, 20, 20)
        check(lambda a, b: a.clone().addmm_(a, b), a, b, rtol=1e-4, atol=1e-4)
        check(lambda a, b: torch.mm(a, b, out=torch.empty(20, 20, device=a.device).t()), a, b, rtol=1e-4, atol=1e-4)

    def test_what_is_not_added_is_not_read(self) -> None:
        a, b, nan = torch.randn(4, 5), torch.randn(5, 6), torch.full((6,), float("nan"))
        check(lambda nan, a, b: torch.addmm(nan, a, b, beta=0), nan, a, b)


class TestWhatIsLeftToOtherKernels:
    @pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
    def test_types(self, dtype: torch.dtype) -> None:
        x, y = torch.randn(2, 6, 6).to(dtype)
        for function in (torch.add, torch.mul, torch.div, torch.mm, torch.eq):
            check(function, x, y)
        check(torch.sum, x)
        check(torch.add, x, torch.ones(6))

    def test_no_elements(self) -> None:
        check(torch.add, torch.ones(0, 3), torch.ones(3))
        check(torch.mm, torch.ones(0, 3), torch.ones(3, 2))
        check(torch.mm, torch.ones(2, 0), torch.ones(0, 2))

    def test_overlapping_memory(self) -> None:
        x = on_device(torch.arange(6.0))
        with pytest.raises(RuntimeError, match="single memory location"):
            x[:1].expand(4).add_(1)
        with pytest.raises(RuntimeError, match="written-to"):
            torch.add(x[:4], 1, out=x[1:5])
        x[:3].add_(x[3:])
        assert x.tolist() == [3, 5, 7, 3, 4, 5]

    @pytest.mark.parametrize(
        "call",
        [
            lambda x: x + torch.ones(3, device=x.device),
            lambda x: x.add_(torch.ones(3, 4, 4, device=x.device)),
            lambda x: torch.add(x, x, out=torch.empty(4, 4, dtype=torch.int64, device=x.device)),
            lambda x: x.to(torch.int64).add_(1.5),
            lambda x: x.to(torch.int64).mul_(1.5),
            lambda x: x.bool().mul_(1),
            lambda x: torch.mm(x, torch.ones(3, 3, device=x.device)),
            lambda x: x.sum(5),
            lambda x: torch.amax(x[:0], 0),
            lambda x: x[:0].max(),
            lambda x: x[:0].min(),
            lambda x: torch.amax(x, 0, out=torch.empty(4, dtype=torch.float64, device=x.device)),
            lambda x: torch.softmax(x, 2),
            lambda x: torch.ones(4, 4, dtype=torch.bool, device=x.device) - x.bool(),
        ],
    )
    def test_errors_are_atens(self, call: Callable[[Tensor], object]) -> None:
        messages = []
        for x in (torch.randn(4, 4), on_device(torch.randn(4, 4))):
            with pytest.raises((RuntimeError, IndexError)) as raised:
                call(x)
            messages.append((raised.type, str(raised.value).replace(device_type(), "cpu")))
        assert messages[0][0] == messages[1][0]

    def test_resizing_what_has_elements_warns(self) -> None:
        x = on_device(torch.ones(3))
        for _ in range(2):
            with pytest.warns(UserWarning, match="was resized"):
                torch.add(x, x, out=on_device(torch.ones(5)))


OPINFOS = {
    *(
        "add",
        "sub",
        "mul",
        "true_divide",
        "eq",
        "lt",
        "where",
        "maximum",
        "abs",
        "exp",
        "tanh",
        "sigmoid",
        "sum",
        "mean",
    ),
    *("amax", "amin", "mm", "addmm", "bmm", "baddbmm", "softmax", "log_softmax", "nn.functional.gelu", "addcmul"),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("info", [i for i in op_db if i.name in OPINFOS], ids=operator.attrgetter("formatted_name"))
def test_pytorchs_samples(info: Any) -> None:
    dtypes = [d for d in (torch.float32, torch.int64) if d in info.dtypes]
    for dtype in dtypes:
        for sample in itertools.islice(info.sample_inputs("cpu", dtype), 12):
            expected = info(sample.input, *sample.args, **sample.kwargs)
            arguments = {name: on_device(value) for name, value in sample.kwargs.items()}
            actual = info(on_device(sample.input), *map(on_device, sample.args), **arguments)
            assert_close(actual.cpu(), expected, equal_nan=True, rtol=1e-4, atol=1e-4)


def test_the_default_dtype_is_that_of_the_call() -> None:
    x = on_device(torch.arange(4))
    try:
        for dtype in (torch.float32, torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            for result in (x.exp(), x / 2, x * 0.5, torch.where(x > 1, 1.0, 2.0)):
                assert result.dtype == dtype
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_default_device_is_not_asked() -> None:
    torch.set_default_device(device_type())
    try:
        x = torch.arange(5.0)
        assert_close((x + torch.tensor(2.5, device="cpu")).cpu(), torch.arange(5.0, device="cpu") + 2.5)
    finally:
        torch.set_default_device(None)


@pytest.mark.in_tree("another name takes the place of PrivateUse1")
def test_beside_another_accelerator(run_script: RunScript) -> None:
    """PyTorch's `torch.accelerator` is then the other one, which is PrivateUse1."""
    output = run_script(
        """
        import torch
        torch.utils.rename_privateuse1_backend("vendor")
        x = torch.arange(3.0, device="mtia:1")
        torch.mtia.set_device(0)
        y = torch.softmax((x + x).exp(), 0)
        print(y.device, y.sum().item())
        """,
        TORCH_MTIA_KERNELS="triton",
        TORCH_MTIA_DEVICES="2",
    ).output()
    assert output == "mtia:1 1.0\n"


@pytest.mark.wide
def test_several_devices(run_script: RunScript) -> None:
    output = run_script(
        """
        import torch
        from torch_mtia.backend import device_type
        x = torch.arange(3.0, device=f"{device_type()}:1")
        print((x + x).sum().item(), (x + x).device.index)
        """,
        TORCH_MTIA_KERNELS="triton",
        TORCH_MTIA_DEVICES="2",
    ).output()
    assert output == "6.0 1\n"


def test_the_setting_registers_them(run_script: RunScript) -> None:
    script = """
        import sys, torch
        from torch_mtia import kernels
        from torch_mtia.backend import device_type
        print(kernels.wanted(), "triton" in sys.modules)
        x = torch.ones(3, device=device_type()) + 1
        print(x.tolist(), "triton" in sys.modules)
    """
    for name, expected in (("triton", "True"), ("aten", "False"), ("auto", "False")):
        finished = run_script(script, TORCH_MTIA_KERNELS=name)
        assert finished.output() == f"{expected} False\n[2.0, 2.0, 2.0] {expected}\n"
        assert "overrid" not in finished.stderr.lower()


def test_they_can_be_captured() -> None:
    x = on_device(torch.ones(8, 8))
    torch.softmax(x @ x + 1, -1)  # compiles
    graph = torch.accelerator.Graph()
    with graph:
        y = torch.softmax(x @ x + 1, -1).sum(0)
    x.fill_(2)
    graph.replay()
    device_module().synchronize()
    assert_close(y.cpu(), torch.ones(8))


def test_a_network_learns_the_same() -> None:
    def losses(device: str) -> list[float]:
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.GELU(), torch.nn.Linear(32, 5)).to(device)
        x, y = torch.randn(64, 20).to(device), torch.randint(5, (64,)).to(device)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.5, foreach=False)
        made = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            made.append(loss.item())
        return made

    assert losses(device_type()) == pytest.approx(losses("cpu"), rel=1e-4)
