"""Packages of AOTInductor, and the option cpp_wrapper: C++ code around the kernels, with Python and without."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor, nn

import torch_mtia
from tests import packages
from tests.packages import EXAMPLE, Classifier, MakePackage, expected, inputs, load
from torch_mtia import environment, torch_version

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

from compile_models import MODELS, Model, Shape
from torch._inductor import config
from torch._inductor.codegen.wrapper import PythonWrapperCodegen
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
from torch._inductor.utils import fresh_cache, run_and_get_code, run_and_get_cpp_code

if TYPE_CHECKING:
    from tests.conftest import RunScript

make_package, classifier, embedded = packages.make_package, packages.classifier, packages.embedded
_without_gradients = packages.without_gradients
SMALL = Shape(batch=2, tokens=16, vocabulary=100, width=32, heads=4, layers=1, image=16)


def members(path: Path, suffix: str) -> list[str]:
    with zipfile.ZipFile(path) as archive:
        return [name for name in archive.namelist() if name.endswith(suffix)]


# What a package does --------------------------------------------------------------------------------------------------


@pytest.mark.sampled(4)
@pytest.mark.parametrize("rows", [2, 1, 17, 1024])
def test_a_package_runs_with_any_size(classifier: Path, rows: int) -> None:
    result = load(classifier)(inputs(rows))
    assert result.device == torch.device("mtia", 0)
    torch.testing.assert_close(result.cpu(), expected(rows))


def test_a_package_has_its_kernels_and_launches_them(classifier: Path, run_script: RunScript) -> None:
    assert members(classifier, ".cubin")
    script = f"""
        import torch
        model = torch._inductor.aoti_load_package({str(classifier)!r})
        model(torch.ones(3, 16, device="mtia")).cpu()
    """
    finished = run_script(script, TORCH_MTIA_LOG="launch")
    finished.output()
    assert "triton_" in finished.stderr


@pytest.mark.wide
def test_kernels_may_be_part_of_the_library(embedded: Path) -> None:
    assert not members(embedded, ".cubin")
    torch.testing.assert_close(load(embedded)(inputs(2)).cpu(), expected(2))


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [pytest.param(model, id=model.name, marks=[] if model.name == "llama" else pytest.mark.wide) for model in MODELS],
)
def test_a_model_is_exported_packaged_and_run(model: Model, make_package: MakePackage) -> None:
    network = model.make(SMALL).eval()
    on_device = model.make(SMALL).eval().to("mtia")
    on_device.load_state_dict(network.state_dict())

    class Loss(nn.Module):
        def __init__(self, network: nn.Module, device: str) -> None:
            super().__init__()
            self.network, self.device = network, device

        def forward(self) -> Tensor:
            return model.loss(self.network, SMALL, self.device)

    path = make_package(Loss(on_device, "mtia"))
    torch.manual_seed(0)
    torch.testing.assert_close(load(path)().cpu(), model.loss(network, SMALL, "cpu"), rtol=1e-4, atol=1e-4)


class Grows(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        x.add_(1)
        square = x.view(10, 10)
        return x @ square.t().reshape(100), x, x.view(2, 50)[1], square.t()[1:] * 2, square.sum(0).view(2, -1)


@pytest.fixture(scope="module")
def grows(make_package: MakePackage) -> Path:
    return make_package(Grows(), torch.zeros(100, device="mtia"))


@pytest.mark.wide
def test_inputs_are_written_to(grows: Path) -> None:
    model = load(grows)
    x = torch.zeros(100, device="mtia")
    assert model(x)[0].item() == 100.0
    assert model(x)[0].item() == 400.0
    assert x.tolist() == [2.0] * 100


@pytest.mark.sampled(3)
@pytest.mark.parametrize("offset", [0, 1, 16])
def test_inputs_that_begin_anywhere_are_written_to_and_returned(grows: Path, offset: int) -> None:
    base = torch.arange(128.0)
    given = base.to("mtia")
    wanted = Grows()(base[offset : offset + 100])
    results = load(grows)(given[offset : offset + 100])
    for result, expected_result in zip(results, wanted, strict=True):
        assert torch.equal(result.cpu(), expected_result)
    assert torch.equal(given.cpu(), base)
    assert results[1].data_ptr() == given[offset:].data_ptr()


def test_views_and_strides_are_passed_on(grows: Path) -> None:
    x = torch.arange(100.0)
    for result, wanted in zip(load(grows)(x.to("mtia")), Grows()(x), strict=True):
        assert result.stride() == wanted.stride()
        assert result.storage_offset() == wanted.storage_offset()


@pytest.mark.wide
def test_a_branch_is_taken_at_run_time(make_package: MakePackage) -> None:
    class Branches(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))  # type: ignore[no-any-return]

    model = load(make_package(Branches(), torch.ones(8, device="mtia")))
    for sign in (1.0, -1.0):
        x = torch.full((8,), sign)
        torch.testing.assert_close(model(x.to("mtia")).cpu(), Branches()(x))


# Streams, devices, threads --------------------------------------------------------------------------------------------


@pytest.mark.wide
def test_a_package_runs_in_the_callers_stream_or_the_one_given(classifier: Path, run_script: RunScript) -> None:
    script = f"""
        import ctypes
        import torch
        model = torch._inductor.aoti_load_package({str(classifier)!r})
        x = torch.linspace(-1, 1, 64).reshape(4, 16).to("mtia")
        expected = [model(x * turn).cpu() for turn in range(30)]
        stream = torch.Stream("mtia")
        capsule = ctypes.pythonapi.PyCapsule_New
        capsule.restype, capsule.argtypes = ctypes.py_object, [ctypes.c_void_p] * 3
        handle = capsule(stream.native_handle, None, None)
        torch.accelerator.synchronize()
        for turn in range(30):
            with stream:
                y = x * turn
                result = model(y) + 0 if turn % 2 else None
            if result is None:
                [result] = model.loader.run([y], handle)
            del y
            torch.accelerator.current_stream().synchronize()
            stream.synchronize()
            assert torch.equal(result.cpu(), expected[turn]), turn
    """
    run_script(script, TORCH_MTIA_DELAY="3").output()


@pytest.mark.parametrize("single_threaded", [False, True])
def test_a_package_is_captured_and_replayed(classifier: Path, single_threaded: bool) -> None:
    model = load(classifier, run_single_threaded=single_threaded)
    x = inputs(4)
    model(x)
    graph = torch.accelerator.Graph()
    with graph:
        y = model(x)
    x.neg_()
    graph.replay()
    torch.testing.assert_close(y.cpu(), Classifier()(-inputs(4, "cpu")))
    torch.testing.assert_close(model(x).cpu(), y.cpu())


@pytest.mark.wide
def test_a_package_runs_on_the_device_it_is_loaded_for(classifier: Path, run_script: RunScript) -> None:
    script = f"""
        import torch
        x = torch.linspace(-1, 1, 64).reshape(4, 16)
        first, second = (torch._inductor.aoti_load_package({str(classifier)!r}, device_index=i) for i in (0, 1))
        assert torch.accelerator.current_device_index() == 0
        on_second = second(x.to("mtia:1"))
        assert on_second.device == torch.device("mtia", 1), on_second.device
        assert torch.equal(first(x.to("mtia:0")).cpu(), on_second.cpu())
        assert torch.accelerator.current_device_index() == 0
        assert torch.accelerator.memory_allocated(1) > 0
        try:
            second(x.to("mtia:0"))
        except RuntimeError as error:
            print(error)
    """
    output = run_script(script, TORCH_MTIA_DEVICES="2").output()
    assert "self is on mtia:0, different from other tensors on mtia:1" in output


class Repeats(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.expand(1 << 24, -1) + 1


@pytest.fixture(scope="module")
def repeats(make_package: MakePackage) -> Path:
    size = torch.export.Dim("size", max=1 << 24)
    return make_package(Repeats(), torch.ones(4, device="mtia"), dynamic_shapes=({0: size},))


@pytest.mark.wide
def test_inputs_elsewhere_are_refused(classifier: Path, repeats: Path) -> None:
    with pytest.raises(RuntimeError, match="got self is on cpu, different from other tensors on mtia:0"):
        load(classifier)(inputs(4, "cpu"))
    only_kernels = load(repeats)
    with pytest.raises(RuntimeError, match=r"argument 0 does not lie there: give the model inputs on the device"):
        only_kernels(torch.ones(2))


@pytest.mark.wide
def test_inputs_unlike_the_exported_ones_are_refused_where_upstream_checks(
    classifier: Path, run_script: RunScript
) -> None:
    script = f"""
        import torch
        model = torch._inductor.aoti_load_package({str(classifier)!r})
        x = torch.ones(3, 16, device="mtia")
        assert model(x).shape == (3, 10)
        for other in (x.double(), x.t().contiguous().t(), x[:, 1:]):
            try:
                model(other)
            except RuntimeError as error:
                print(error)
    """
    output = run_script(script, AOTI_RUNTIME_CHECK_INPUTS="1").output()
    assert re.findall(r"unmatched (dtype|stride|dim)", output) == ["dtype", "stride", "dim"]


def test_threads_share_a_package(classifier: Path) -> None:
    model = load(classifier, num_runners=3)

    def run(rows: int) -> list[Tensor]:
        with torch.Stream("mtia"), torch.no_grad():
            return [model(inputs(rows)).cpu() for _ in range(20)]

    sizes = [3, 5, 7, 9]
    with ThreadPoolExecutor(len(sizes)) as pool:
        for rows, results in zip(sizes, pool.map(run, sizes), strict=True):
            assert len(results) == 20
            for result in results:
                torch.testing.assert_close(result, expected(rows))


def test_memory_that_is_not_there_is_an_out_of_memory_error(repeats: Path) -> None:
    model = load(repeats)
    with pytest.raises(torch.OutOfMemoryError):
        model(torch.ones(1 << 22, device="mtia"))
    assert model(torch.ones(3, device="mtia"))[5].tolist() == [2.0] * 3


# Kernels and operators of the user ------------------------------------------------------------------------------------


@triton.jit  # type: ignore[untyped-decorator]
def scaled(x, y, n, factor, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, at < n) * factor, at < n)


@triton.autotune([triton.Config({"BLOCK": size}) for size in (64, 256)], key=["n"])  # type: ignore[untyped-decorator]
@triton.jit  # type: ignore[untyped-decorator]
def tuned(x, y, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, at < n) + 1, at < n)


class OwnKernels(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = torch.empty_like(x)
        scaled[(triton.cdiv(x.numel(), 128),)](x, y, x.numel(), 0.1, BLOCK=128)
        z = torch.empty_like(x)
        tuned[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](y, z, x.numel())
        return z.relu()


@contextmanager
def calls_of(owner: type, name: str) -> Iterator[list[Any]]:
    """What the method is called on."""
    called: list[Any] = []
    original = getattr(owner, name)

    def method(self: Any, *args: Any, **options: Any) -> Any:
        called.append(self)
        return original(self, *args, **options)

    with mock.patch.object(owner, name, method):
        yield called


class OwnPackage(NamedTuple):
    path: Path
    at_compile_time: bool
    tuned: list[str]
    apart: bool


@pytest.fixture(scope="module", params=[True, False], ids=["at_compile_time", "in_a_first_run"])
def own_package(make_package: MakePackage, request: pytest.FixtureRequest) -> OwnPackage:
    x = torch.ones(500, dtype=torch.float64, device="mtia")
    sizes = ({0: torch.export.Dim("size", max=1 << 20)},)
    options = {"triton.autotune_at_compile_time": request.param}
    with (
        fresh_cache(),
        calls_of(CachingAutotuner, "autotune_to_one_config") as tuners,
        calls_of(PythonWrapperCodegen, "generate_and_run_autotune_block") as blocks,
    ):
        path = make_package(OwnKernels(), x, strict=True, dynamic_shapes=sizes, **options)
    return OwnPackage(path, request.param, [tuner.fn.__name__ for tuner in tuners], bool(blocks))


@pytest.mark.sampled(2)
def test_triton_kernels_of_the_user_are_part_of_a_package(own_package: OwnPackage) -> None:
    for n in (500, 12345):
        x = torch.randn(n, dtype=torch.float64)
        torch.testing.assert_close(load(own_package.path)(x.to("mtia")).cpu(), (x * 0.1 + 1).relu())


@pytest.mark.wide
def test_kernels_are_tuned_before_or_while_the_package_is_written(own_package: OwnPackage) -> None:
    assert own_package.tuned == ["tuned"]
    assert own_package.apart == (own_package.at_compile_time or torch_version.TORCH >= (2, 14))
    with calls_of(CachingAutotuner, "autotune_to_one_config") as tuners:
        load(own_package.path)(torch.ones(500, dtype=torch.float64, device="mtia"))
    assert not tuners


@pytest.mark.sampled(2)
def test_numbers_reach_kernels_in_full(own_package: OwnPackage) -> None:
    x = torch.arange(8.0, dtype=torch.float64)
    # From 2.15 on the number is a float32, as it is where Triton launches the kernel.
    factor = 0.1 if torch_version.TORCH < (2, 15) else torch.tensor(0.1).item()
    assert torch.equal(load(own_package.path)(x.to("mtia")).cpu(), (x * factor + 1).relu())


@torch.library.custom_op("tests_packages::twice", mutates_args=())
def twice(x: Tensor, names: list[int]) -> Tensor:
    return x * len(names)


@twice.register_fake
def _(x: Tensor, _names: list[int]) -> Tensor:
    return torch.empty_like(x)


@pytest.mark.wide
def test_operators_without_a_shim_are_called_by_their_schema(make_package: MakePackage) -> None:
    class Calls(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            values, _ = torch.linalg.qr(x)
            return twice(values, [1, 2]), torch.ops.aten.unique_dim(x, 0)[0]

    x = torch.randn(4, 4)
    path = make_package(Calls(), x.to("mtia"))
    assert members(path, ".json")
    for result, wanted in zip(load(path)(x.to("mtia")), Calls()(x), strict=True):
        torch.testing.assert_close(result.cpu(), wanted)


@pytest.mark.wide
def test_a_package_may_use_the_cpu_as_well(make_package: MakePackage) -> None:
    class Mixed(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x + (y.sin() * 2).to("mtia")

    x, y = torch.randn(33), torch.randn(33)
    path = make_package(Mixed(), x.to("mtia"), y)
    torch.testing.assert_close(load(path)(x.to("mtia"), y).cpu(), x + y.sin() * 2)


# Code with cpp_wrapper ------------------------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dynamic", [pytest.param(False, marks=pytest.mark.wide), True])
def test_compiled_code_may_be_cpp(dynamic: bool) -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return (x @ y).relu().sum(1) + x[:, 0]

    x, y = torch.randn(7, 12), torch.randn(12, 5)
    compiled = torch.compile(function, dynamic=dynamic, options={"cpp_wrapper": True})
    result, code = run_and_get_cpp_code(compiled, x.to("mtia"), y.to("mtia"))
    assert "launchKernel(" in code
    assert "aoti_torch_mtia_mm_out" in code
    torch.testing.assert_close(result.cpu(), function(x, y))


def test_a_network_trains_in_cpp() -> None:
    network, on_device = Classifier(), Classifier().to("mtia")
    compiled = torch.compile(on_device)

    def step() -> None:
        compiled(inputs(8)).square().sum().backward()

    with torch.enable_grad(), config.patch(cpp_wrapper=True):
        network(inputs(8, "cpu")).square().sum().backward()
        _, (forward, backward) = run_and_get_code(step)
    assert "launchKernel(" in forward
    assert "launchKernel(" in backward
    for weight, wanted in zip(on_device.parameters(), network.parameters(), strict=True):
        assert weight.grad is not None
        torch.testing.assert_close(weight.grad.cpu(), wanted.grad)


# Without Python -------------------------------------------------------------------------------------------------------


WITHOUT_PYTHON = os.environ | {"LD_LIBRARY_PATH": ""}


def run_program(program: Path, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, *map(str, arguments)], env=WITHOUT_PYTHON | environment, capture_output=True, text=True, timeout=120
    )


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example's, which has no Python."""
    folder = tmp_path_factory.mktemp("program")
    options = [
        f"-DCMAKE_PREFIX_PATH={torch.utils.cmake_prefix_path}",
        f"-DTORCH_MTIA={Path(torch_mtia.__file__).parent}",
    ]
    for arguments in (["-S", str(EXAMPLE), "-B", str(folder), *options], ["--build", str(folder)]):
        made = subprocess.run(["cmake", *arguments], timeout=600, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        if torch.version.cuda is not None and b"cannot find the CUDA" in made.stderr:
            pytest.skip("the CMake files of a wheel for CUDA want the toolkit of CUDA")
        assert made.returncode == 0, made.stderr.decode()
    return folder / "run_package"


@pytest.mark.slow
@pytest.mark.in_tree("the program asks for mtia by name")
def test_a_program_without_python_runs_a_package(classifier: Path, program: Path) -> None:
    finished = run_program(program, classifier, 6)
    assert finished.returncode == 0, finished.stderr
    assert [int(line) for line in finished.stdout.split()] == expected(6).argmax(1).tolist()
    libraries = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    assert "libtorch_mtia.so" in libraries
    assert "libtorch_python.so" not in libraries
    assert "libpython" not in libraries


@pytest.mark.sampled(5)
@pytest.mark.in_tree("the program asks for mtia by name")
@pytest.mark.parametrize(
    ("variable", "texts"),
    [
        (environment.DEVICES, ("none", "0", "2", "65", "auto")),
        (environment.MEMORY, ("1GiB", "256mb", "67108864", "63M", "1X", "16777217T", "")),
        (environment.LOG, ("launch", "launch,", ",", "launch,lunch")),
        (environment.DELAY, ("7", "-1", "x")),
        (environment.RUNTIME, ("host", "~/nothing.so", "elsewhere")),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_program_without_python_takes_the_settings_that_python_takes(
    classifier: Path, program: Path, variable: environment.Variable[Any], texts: tuple[str, ...]
) -> None:
    for text in texts:
        finished = run_program(program, classifier, **{variable.name: text})
        try:
            variable.read({variable.name: text})
        except ValueError:
            assert finished.returncode == 1, text
            assert f"{variable.name}='{text}' is not valid. Valid: " in finished.stderr
        else:
            assert finished.returncode == 0, finished.stderr
