"""A driver on somebody else's runtime: examples/opencl_runtime, whose device is OpenCL's.

It needs OpenCL with its headers; on Debian: apt-get install pocl-opencl-icd ocl-icd-opencl-dev.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import RunScript
    from tests.interpreter import Finished

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
SOURCES = EXAMPLES / "opencl_runtime"

pytestmark = pytest.mark.in_tree("the scripts use torch.mtia")

PROBE = """
#include <CL/cl.h>
int main() {
  cl_platform_id platform;
  cl_uint count;
  return clGetPlatformIDs(1, &platform, &count) || clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, nullptr, &count);
}
"""
TWO_DEVICES = {"POCL_DEVICES": "pthread pthread", "TORCH_MTIA_DEVICES": "2"}


def there_is_opencl(folder: Path) -> bool:
    (folder / "probe.cpp").write_text(PROBE)
    flags = ("-DCL_TARGET_OPENCL_VERSION=200", "-o", "probe", "probe.cpp", "-lOpenCL")
    compiled = subprocess.run(["g++", *flags], cwd=folder, capture_output=True, check=False)
    return compiled.returncode == 0 and subprocess.run([folder / "probe"], check=False).returncode == 0


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("opencl")
    if not there_is_opencl(folder):
        pytest.skip("there is no OpenCL on this machine: apt-get install pocl-opencl-icd ocl-icd-opencl-dev")
    subprocess.run(["make", "-C", str(SOURCES), f"OUT={folder}"], check=True, capture_output=True, timeout=300)
    return folder / "libopencl_driver.so"


@pytest.fixture
def run(run_script: RunScript, driver: Path) -> Callable[..., Finished]:
    """Runs a script on the device."""
    return partial(run_script, TORCH_MTIA_RUNTIME=str(driver), timeout=400)


@pytest.fixture
def run_on_driver(run_script: RunScript, driver: Path) -> Callable[..., Finished]:
    """Runs a script that calls the driver's functions: `api` is the driver, `stream` one of its streams."""
    head = f"""
import ctypes, itertools
from torch_mtia.conformance.driver_api import *
from torch_mtia.conformance.driver_fixtures import MIB, TO_DEVICE, TO_HOST, WITHIN, launch, read, write
api = Driver({str(driver)!r})
assert api.initialize() == "MTIA_SUCCESS", api.message()
stream = api.get("stream_create", ctypes.c_void_p, 0, 0, None)
"""
    return lambda body, **environment: run_script(head + body, timeout=100, **environment)


def test_it_needs_nothing_but_the_header_and_opencl() -> None:
    lines = [line for source in SOURCES.glob("*.[ch]*") for line in source.read_text().splitlines()]
    included = {line.split('"')[1] for line in lines if line.startswith('#include "')}
    of_operators = {"torch_mtia/device/Extension.h"}
    assert included - of_operators == {path.name for path in SOURCES.glob("*.h")} | {"mtia_runtime.h"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("devices", ["pthread", "pthread pthread"])
def test_it_keeps_the_contract(driver: Path, tmp_path: Path, devices: str) -> None:
    command = [sys.executable, "-m", "torch_mtia.conformance", "--driver", str(driver), "-j", "0"]
    finished = subprocess.run(
        [*command, "--folder", str(tmp_path)],
        env={**os.environ, "POCL_DEVICES": devices},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr


# What OpenCL has otherwise than the driver's header -------------------------------------------------------------------


@pytest.mark.wide
def test_fills_from_any_address(run_on_driver: Callable[..., Finished]) -> None:
    run_on_driver("""
memory = api.get("memory_allocate", ctypes.c_uint64, 0, MIB)
for width, offset, count in itertools.product((1, 2, 4, 8, 16), (0, 1, 5, 8, 15), (1, 2, 7)):
    pattern = ctypes.create_string_buffer(bytes(range(1, width + 1)), width)
    write(api, stream, memory, bytes(200))
    api("memory_fill", stream, memory + offset, ctypes.addressof(pattern), width, count)
    expected = (bytes(offset) + pattern.raw * count).ljust(200, b"\\0")
    assert read(api, stream, memory, 200) == expected, (width, offset, count)
""").output()


@pytest.mark.wide
def test_memory_that_is_none(run_on_driver: Callable[..., Finished]) -> None:
    run_on_driver("""
memory = api.get("memory_allocate", ctypes.c_uint64, 0, 4096)
other = api.get("memory_allocate", ctypes.c_uint64, 0, 4096)
here = ctypes.create_string_buffer(8192)
for to in (memory + 1, memory + 4096, memory - 1, other + 8192):  # over the end, or behind it
    status = api.call("memory_copy", stream, to, ctypes.addressof(here), 4096, TO_DEVICE)
    assert status == "MTIA_ERROR_INVALID_VALUE", (status, to - memory)
assert api.call("memory_fill", stream, memory, ctypes.addressof(here), 1, 4097) == "MTIA_ERROR_INVALID_VALUE"
api("memory_free", 0, memory)
assert api.call("memory_device", memory, ctypes.byref(ctypes.c_int32())) == "MTIA_ERROR_INVALID_VALUE"
assert api.get("memory_allocate", ctypes.c_uint64, 0, 4096) != memory  # so that its use after free is noticed
""").output()


@pytest.mark.wide
def test_a_copy_from_device_to_device_is_in_the_order_of_its_stream(run_on_driver: Callable[..., Finished]) -> None:
    run_on_driver(
        """
import threading

memory = [api.get("memory_allocate", ctypes.c_uint64, device, MIB) for device in (0, 1)]
on_other = api.get("stream_create", ctypes.c_void_p, 1, 0, None)
ones = ctypes.create_string_buffer(b"\\1", 1)
for submits_to in (stream, on_other):
    for device in (0, 1):
        write(api, stream if device == 0 else on_other, memory[device], bytes(MIB))
    go = threading.Event()
    launch(api, submits_to, lambda: go.wait(60))
    api("memory_fill", submits_to, memory[submits_to == on_other], ctypes.addressof(ones), 1, MIB)
    api("memory_copy", submits_to, memory[submits_to != on_other], memory[submits_to == on_other], MIB, WITHIN)
    assert api.call("stream_query", submits_to) == "MTIA_ERROR_NOT_READY"
    go.set()
    api("stream_synchronize", submits_to)
    assert read(api, on_other, memory[1], MIB) == read(api, stream, memory[0], MIB) == b"\\1" * MIB
""",
        **TWO_DEVICES,
    ).output()


@pytest.mark.wide
def test_work_of_a_stream_may_use_the_stream(run_on_driver: Callable[..., Finished]) -> None:
    run_on_driver("""
memory = api.get("memory_allocate", ctypes.c_uint64, 0, 4096)
event = api.get("event_create", ctypes.c_void_p, 1)
ones = ctypes.create_string_buffer(b"\\1", 1)
seen = []

def body():  # what comes first is done before the next begins, as the stream itself waits for this work
    api("memory_fill", stream, memory, ctypes.addressof(ones), 1, 8)
    to = ctypes.create_string_buffer(8)
    api("memory_copy", stream, ctypes.addressof(to), memory, 8, TO_HOST)
    seen.append(to.raw)
    api("event_record", event, stream)
    api("stream_wait_event", stream, event)
    seen.append(api.call("event_query", event))

launch(api, stream, body)
api("stream_synchronize", stream)
assert seen == [b"\\1" * 8, "MTIA_SUCCESS"], seen
""").output()


@pytest.mark.wide
def test_no_implementation_is_an_error_that_says_so(run: Callable[..., Finished], tmp_path: Path) -> None:
    finished = run("import torch; torch.ones(3, device='mtia')", OCL_ICD_VENDORS=str(tmp_path))
    assert finished.returncode == 1
    assert "clGetPlatformIDs, which looks for implementations of OpenCL, failed with status -1001" in finished.stderr


# PyTorch on it --------------------------------------------------------------------------------------------------------


@pytest.mark.wide
def test_the_device_is_described_by_opencl(run: Callable[..., Finished]) -> None:
    run("""
        import torch
        import torch_mtia

        properties = torch.mtia.get_device_properties(0)
        assert torch_mtia._C._driver_info()["capabilities"] == []
        assert properties["architecture"] == "opencl" and properties["major"] >= 2, properties
        assert properties["total_memory"] > 1 << 28 and properties["multi_processor_count"] > 0
    """).output()


def test_copies_of_every_kind(run: Callable[..., Finished]) -> None:
    run("""
        import torch

        x = torch.arange(24.0).reshape(4, 6)
        y = x.to("mtia")
        assert torch.equal(y.cpu(), x)
        assert torch.equal(y.t().cpu(), x.t())  # strides on the device
        assert torch.equal(x.t().to("mtia").cpu(), x.t())  # on the host
        assert torch.equal(y[:, ::2].contiguous().cpu(), x[:, ::2])  # within the device
        assert torch.equal(y.to(torch.int32).cpu(), x.to(torch.int32))
        assert torch.equal(torch.complex(y, y).conj().cpu(), torch.complex(x, -x))
        y[1:3, 2] = torch.tensor([5, 6])  # into a view, from another dtype
        assert y[:, 2].tolist() == [2, 5, 6, 20]
        y[:, 0].fill_(7)
        assert y[:, :2].tolist() == [[7, 1], [7, 7], [7, 13], [7, 19]]
        for dtype in (torch.int8, torch.bfloat16, torch.float32, torch.int64, torch.complex128):
            assert torch.full((3,), 2, dtype=dtype, device="mtia").tolist() == [2] * 3
        y.resize_(5, 6)
        assert y[3].tolist() == [7, 19, 20, 21, 22, 23]
        assert torch.equal(x.pin_memory().to("mtia", non_blocking=True).cpu(), x)
    """).output()


def test_operators_and_gradients_are_those_of_the_cpu(run: Callable[..., Finished]) -> None:
    run("""
        import torch
        import torch.nn.functional as F
        from torch.utils._pytree import tree_map

        torch.manual_seed(0)
        x = torch.randn(4, 6)

        def check(f):
            device = tree_map(torch.Tensor.cpu, f(x.to("mtia").requires_grad_()))
            torch.testing.assert_close(device, f(x.clone().requires_grad_()))

        def gradient(f, x):
            f(x).sum().backward()
            return x.grad

        check(lambda x: x @ x.t())
        check(lambda x: torch.cat([x, x[1:]]).softmax(0))
        check(lambda x: x[x.detach() > 0])
        check(lambda x: torch.stack([*torch.linalg.svd(x)[1]]))
        check(lambda x: x.detach().sort(1).values.index_add_(0, torch.tensor([1]).to(x.device), x.detach()[:1]))
        check(lambda x: F.layer_norm(x.detach().bfloat16(), (6,)))
        check(lambda x: gradient(lambda x: x.sin() * x.exp(), x))
        check(lambda x: gradient(lambda x: F.layer_norm(x, (6,)).pow(2) * x, x))
        check(lambda x: gradient(lambda x: F.scaled_dot_product_attention(*[x[None, None]] * 3), x))
        check(lambda x: gradient(lambda x: torch.utils.checkpoint.checkpoint(torch.tanh, x, use_reentrant=False), x))
        check(lambda x: torch.func.vmap(torch.func.grad(lambda row: row.sin().sum()))(x.detach()))
    """).output()


@pytest.mark.wide
def test_optimizers_make_the_same_steps(run: Callable[..., Finished]) -> None:
    run("""
        import torch
        from torch.optim import SGD, Adagrad, Adam, AdamW, NAdam, RMSprop

        def losses(device, optimizer, **options):
            torch.manual_seed(0)
            net = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.GELU(),
                                      torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(36, 5))
            images, labels = torch.randn(8, 1, 8, 8).to(device), torch.randint(5, (8,)).to(device)
            net = net.to(device)
            optimizer = optimizer(net.parameters(), lr=0.01, **options)
            said = []
            for _ in range(4):
                loss = torch.nn.functional.cross_entropy(net(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                said.append(loss.item())
            return torch.tensor(said)

        for optimizer, options in [(SGD, {"momentum": 0.9}), (Adam, {"fused": True}), (AdamW, {"foreach": True}),
                                   (AdamW, {"foreach": False}), (RMSprop, {}), (Adagrad, {}), (NAdam, {})]:
            torch.testing.assert_close(losses("mtia", optimizer, **options), losses("cpu", optimizer, **options))
    """).output()


@pytest.mark.slow
def test_a_network_trains_as_on_the_cpu(driver: Path, tmp_path: Path) -> None:
    options = ("--compare", "--allow-fallback", "--epochs", "2", "--output", "loss.png")
    finished = subprocess.run(
        [sys.executable, str(EXAMPLES / "train_digits.py"), *options],
        cwd=tmp_path,
        env={**os.environ, "TORCH_MTIA_RUNTIME": str(driver)},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "first 20 losses: largest relative difference" in finished.stdout


@pytest.mark.wide
@pytest.mark.slow
def test_an_operator_in_opencl_goes_into_the_queue_of_its_stream(run: Callable[..., Finished], tmp_path: Path) -> None:
    script = """
        import threading

        import operators
        import torch
        import torch_mtia

        operators.main()
        axpy = torch.ops.opencl_example.axpy
        stream, go = torch.mtia.Stream(), threading.Event()
        x, y = torch.randn(2, 5, 4).to("mtia").unbind()  # y has an offset
        torch.mtia.synchronize()
        with torch.mtia.stream(stream):
            torch_mtia.launch_host_function(stream, lambda: go.wait(60))
            y.fill_(1)
            result = axpy(3, x, y)
        assert not stream.query()
        go.set()
        stream.synchronize()
        torch.testing.assert_close(result.cpu(), 3 * x.cpu() + 1)
        assert axpy(1, x[:0], y[:0]).shape == (0, 4)
    """
    folders = {"PYTHONPATH": str(SOURCES), "TORCH_EXTENSIONS_DIR": str(tmp_path)}
    assert run(script, **folders).output() == "the same as on the CPU\n"


def test_streams_are_concurrent_and_events_order_them(run: Callable[..., Finished]) -> None:
    run("""
        import threading

        import torch
        import torch_mtia

        first, second = torch.mtia.Stream(), torch.mtia.Stream()
        start, end = torch.mtia.Event(enable_timing=True), torch.mtia.Event(enable_timing=True)
        host = torch.zeros(1 << 20).pin_memory()
        x = torch.ones(1 << 20, device="mtia")
        torch.mtia.synchronize()
        go, order = threading.Event(), []

        start.record(first)
        torch_mtia.launch_host_function(first, lambda: (go.wait(60), order.append("first")))
        with torch.mtia.stream(first):
            host.copy_(x, non_blocking=True)  # behind the function, and nobody waits
        end.record(first)
        second.wait_event(end)
        torch_mtia.launch_host_function(second, lambda: order.append("second"))
        assert not first.query() and not second.query() and not end.query()
        assert host.count_nonzero() == 0 and order == []
        assert torch.equal((x + 1).cpu(), torch.full((1 << 20,), 2.0))  # the default stream goes on
        go.set()
        second.synchronize()
        assert order == ["first", "second"] and torch.equal(host, x.cpu())
        assert end.query() and start.elapsed_time(end) > 0
    """).output()


@pytest.mark.wide
def test_what_a_host_function_raises_is_raised_once(run: Callable[..., Finished]) -> None:
    run("""
        import torch
        import torch_mtia

        stream = torch.mtia.Stream()
        torch_mtia.launch_host_function(stream, lambda: 1 / 0)
        try:
            stream.synchronize()
        except RuntimeError as error:
            assert "division by zero" in str(error), error
        else:
            raise AssertionError("no error")
        stream.synchronize()
        with torch.mtia.stream(stream):
            assert torch.ones(3, device="mtia").sum().item() == 3
    """).output()


@pytest.mark.wide
def test_two_devices(run: Callable[..., Finished]) -> None:
    run(
        """
        import torch

        assert torch.mtia.device_count() == 2
        x = torch.arange(1 << 20).to("mtia:0")
        other = x.to("mtia:1")
        assert other.device.index == 1 and torch.equal(other.cpu(), x.cpu())
        assert torch.equal(x.view(1024, 1024).t().to("mtia:1").cpu(), x.view(1024, 1024).t().cpu())
        with torch.mtia.device(1):
            stream = torch.mtia.Stream()
            event = torch.mtia.current_stream(0).record_event()
            stream.wait_event(event)
            with torch.mtia.stream(stream):
                assert torch.equal(x.to("mtia:1", non_blocking=True).sum().cpu(), x.cpu().sum())
        """,
        **TWO_DEVICES,
    ).output()


@pytest.mark.wide
@pytest.mark.slow
def test_what_it_leaves_out_says_so(run: Callable[..., Finished]) -> None:
    run("""
        import torch

        x = torch.ones(3, device="mtia")
        for use in (lambda: torch.mtia.graph(torch.mtia.MTIAGraph()).__enter__(), torch.compile(lambda: x + 1)):
            try:
                use()
            except Exception as error:
                assert "the driver 'opencl'" in str(error) and "MTIA_CAPABILITY" in str(error), error
            else:
                raise AssertionError("no error")
        try:
            torch.empty(1 << 50, device="mtia")
        except torch.OutOfMemoryError:
            pass
        assert x.sum().item() == 3
    """).output()


@pytest.mark.wide
def test_a_process_may_end_with_work_under_way(run: Callable[..., Finished]) -> None:
    run("""
        import time

        import torch
        import torch_mtia

        stream = torch.mtia.Stream()
        torch_mtia.launch_host_function(stream, lambda: time.sleep(0.3))
        with torch.mtia.stream(stream):
            x = torch.ones(1 << 20, device="mtia")
            for _ in range(20):
                x = x.clone()
    """).output()


@pytest.mark.wide
def test_launch_blocking(run: Callable[..., Finished]) -> None:
    run(
        """
        import time

        import torch
        import torch_mtia

        done = []
        torch_mtia.launch_host_function(torch.mtia.current_stream(), lambda: (time.sleep(0.1), done.append(1)))
        assert done == [1]
        assert (torch.ones(3, device="mtia") + 1).tolist() == [2, 2, 2]
        """,
        TORCH_MTIA_LAUNCH_BLOCKING="1",
    ).output()
