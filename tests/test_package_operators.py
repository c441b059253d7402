"""Operators and numbers in packages, beside kernels: by their schema, on the device that a package is loaded for."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch._inductor import config

from tests import packages
from tests.packages import MakePackage, load

if TYPE_CHECKING:
    from tests.conftest import RunScript

make_package, _without_gradients = packages.make_package, packages.without_gradients
LIBRARY = "test_package_operators"
SHORT = {"aot_inductor.compile_wrapper_opt_level": "O0"}


class Of(nn.Module):
    """A module that is a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.forward = function


def on_device(rows: int) -> Tensor:
    return torch.linspace(-1, 1, rows * 16).reshape(rows, 16).to("mtia")


@pytest.fixture
def library() -> Iterator[torch.library.Library]:
    with torch.library._scoped_library(LIBRARY, "FRAGMENT") as library:
        yield library


@pytest.mark.wide
def test_an_operator_gets_the_device_of_the_model(make_package: MakePackage, library: torch.library.Library) -> None:
    seen: list[torch.device] = []

    def onto(x: Tensor, device: torch.device) -> Tensor:
        seen.append(device)
        return x.to(device, copy=True)

    library.define("onto(Tensor x, Device device) -> Tensor")
    library.impl("onto", onto, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{LIBRARY}::onto", lambda x, device: torch.empty_like(x, device=device), lib=library)
    operator = torch.ops.test_package_operators.onto
    x = torch.arange(4.0, device="mtia")
    path = make_package(Of(lambda x: operator(x + 1, torch.device("mtia:0")) * 2), x, **SHORT)
    seen.clear()
    torch.testing.assert_close(load(path)(x).cpu(), (x.cpu() + 1) * 2)
    assert seen == [torch.device("mtia", 0)]


def test_an_operator_that_quantizes_gets_any_number_of_rows(
    make_package: MakePackage, library: torch.library.Library
) -> None:
    def quantize(x: Tensor, bits: int) -> tuple[Tensor, Tensor]:
        scale = x.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
        return (x / scale).round().to(torch.int8), scale

    library.define("quantize(Tensor x, int bits) -> (Tensor, Tensor)")
    library.impl("quantize", quantize, "CompositeExplicitAutograd")
    torch.library.register_fake(
        f"{LIBRARY}::quantize",
        lambda x, _bits: (torch.empty_like(x, dtype=torch.int8), x.new_empty(x.shape[0], 1)),
        lib=library,
    )
    operator = torch.ops.test_package_operators.quantize

    def dequantized(x: Tensor) -> Tensor:
        values, scale = operator(x * 2, 8)
        result: Tensor = values * scale
        return result

    shapes = {"args": ({0: torch.export.Dim("rows", min=1, max=1000)},)}
    path = make_package(Of(lambda *args: dequantized(*args)), on_device(8), dynamic_shapes=shapes, **SHORT)
    model = load(path)
    for rows in (8, 1, 3, 257):
        x = on_device(rows)
        torch.testing.assert_close(model(x), dequantized(x))


@pytest.mark.wide
def test_numbers_that_a_call_leaves_out_are_passed(make_package: MakePackage) -> None:
    """The `alpha` of index_add, an integer."""
    x, index, values = torch.zeros(5, 3), torch.tensor([4, 0]), torch.ones(2, 3)
    of_device = [each.to("mtia") for each in (x, index, values)]
    path = make_package(Of(lambda x, index, values: x.index_add(0, index, values) + 1), *of_device, **SHORT)
    torch.testing.assert_close(load(path)(*of_device).cpu(), x.index_add(0, index, values) + 1)


def test_a_recurrent_layer_is_one_call(make_package: MakePackage) -> None:
    layer = nn.LSTM(5, 7, num_layers=2, bidirectional=True)
    x = torch.randn(6, 3, 5)
    path = make_package(copy.deepcopy(layer).to("mtia"), x.to("mtia"), **SHORT)
    result: tuple[Tensor, tuple[Tensor, Tensor]] = load(path)(x.to("mtia"))
    for ours, theirs in zip((result[0], *result[1]), (layer(x)[0], *layer(x)[1]), strict=True):
        assert torch.equal(ours.cpu(), theirs)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_number_that_is_read_from_a_tensor_is_not_cut(make_package: MakePackage, dtype: torch.dtype) -> None:
    x, factor = torch.ones(4, device="mtia"), torch.tensor(3.25, dtype=dtype, device="mtia")
    path = make_package(Of(lambda x, factor: x * factor.item()), x, factor, **SHORT)
    assert load(path)(x, factor).tolist() == [3.25] * 4


@triton.jit
def scaled(x, y, size, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, at < size) * factor, at < size)


@pytest.mark.wide
def test_a_kernel_takes_numbers_that_vary(device: torch.device) -> None:
    def function(x: Tensor, factor: float) -> Tensor:
        y = torch.empty_like(x)
        scaled[(1,)](x, y, x.numel(), factor, BLOCK=16)
        return y

    x = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64, device=device)
    compiled = torch.compile(function, dynamic=True)
    with config.patch(cpp_wrapper=True):
        for factor in (3.5, -0.125, 1e30):
            assert torch.equal(compiled(x, factor), x * factor)


class Normalized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.convolution(x)))


@pytest.mark.wide
def test_packages_of_one_process_keep_their_kernels(make_package: MakePackage) -> None:
    """Those of the third are the first's, under the names of the second's."""
    torch.manual_seed(0)
    x = torch.randn(2, 3, 6, 6)
    for training, folds in ((True, False), (False, True), (False, False)):
        model = Normalized().train(training)
        options = {**SHORT, "aot_inductor.use_runtime_constant_folding": folds}
        path = make_package(copy.deepcopy(model).to("mtia"), x.to("mtia"), **options)
        torch.testing.assert_close(load(path)(x.to("mtia")).cpu(), model(x), rtol=1e-4, atol=1e-4)


@pytest.mark.wide
def test_an_input_without_memory_is_refused(make_package: MakePackage) -> None:
    x = torch.ones(4, device="mtia")
    model = load(make_package(Of(lambda x, y: x + y), x, x, **SHORT))
    with pytest.raises(RuntimeError, match="input 1 of a package has no memory"):
        model(x, torch.ones(4, device="meta"))
    assert model(x, x).tolist() == [2.0] * 4


@pytest.mark.wide
@pytest.mark.slow
def test_what_is_made_in_a_package_lies_on_the_device_it_is_loaded_for(
    make_package: MakePackage, run_script: RunScript
) -> None:
    x = torch.zeros(8, dtype=torch.int64, device="mtia")
    path = make_package(Of(lambda x: (x + torch.randperm(8, device="mtia:0"), torch.randperm(8, device="mtia:0"))), x)
    script = f"""
        import torch
        model = torch._inductor.aoti_load_package({str(path)!r}, device_index=1)
        results = model(torch.zeros(8, dtype=torch.int64, device="mtia:1"))
        print(*(result.device for result in results), *(result.sort().values.tolist() for result in results))
    """
    expected = f"mtia:1 mtia:1 {list(range(8))} {list(range(8))}"
    finished = run_script(script, TORCH_MTIA_DEVICES="2")
    assert finished.stdout.strip() == expected, finished.stderr
