"""Devices can be counted, described and selected, through torch.mtia and through torch.accelerator."""

from __future__ import annotations

import os
import pickle
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import RunScript


def test_the_device_is_the_accelerator() -> None:
    assert torch.mtia.is_available()
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("mtia")
    assert torch.accelerator.device_count() == torch.mtia.device_count()


def test_a_tensor_of_mtia_is_on_the_current_device() -> None:
    assert torch.empty(2, device="mtia").device == torch.device("mtia", torch.mtia.current_device())
    assert torch.empty(2).mtia().device == torch.device("mtia", 0)  # type: ignore[attr-defined]
    assert torch.empty(2, device="mtia").is_mtia


@pytest.mark.parametrize(
    ("name", "kind"),
    [("name", str), ("total_memory", int), ("multi_processor_count", int), ("L2_cache_size", int), ("warp_size", int)],
)
def test_properties_are_items_and_attributes(name: str, kind: type) -> None:
    properties = torch.mtia.get_device_properties(0)
    assert isinstance(properties, dict)
    assert isinstance(properties[name], kind)
    assert getattr(properties, name) == properties[name]


def test_properties_report_the_real_cores() -> None:
    assert 1 <= torch.mtia.get_device_properties()["multi_processor_count"] <= (os.cpu_count() or 1)


def test_properties_can_be_pickled() -> None:
    properties = torch.mtia.get_device_properties(0)
    copy = pickle.loads(pickle.dumps(properties))
    assert copy == properties
    assert copy.name == properties["name"]


def test_an_unknown_property_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_property"):
        _ = torch.mtia.get_device_properties(0).no_such_property  # type: ignore[attr-defined]


def test_a_device_has_a_name() -> None:
    assert torch.mtia.get_device_name() == torch.mtia.get_device_name("mtia:0") == torch.mtia.get_device_name(0)  # type: ignore[attr-defined]
    assert torch.mtia.get_device_name() == torch.mtia.get_device_properties()["name"]  # type: ignore[attr-defined]


def test_the_grid_of_cores_has_as_many_as_there_are() -> None:
    properties = torch.mtia.get_device_properties()
    assert properties["max_grid_height"] * properties["max_grid_width"] == properties["multi_processor_count"]


@pytest.mark.parametrize("select", ["torch.mtia.set_device(1)", "torch.mtia.device(1).__enter__()"])
def test_fake_tensors_are_on_the_device_that_was_selected_first(run_script: RunScript, select: str) -> None:
    script = f"""
        import torch
        from torch._subclasses.fake_tensor import FakeTensorMode
        {select}
        print(torch.mtia.is_initialized())
        with FakeTensorMode():
            print(torch.empty(2, device="mtia").device)
        torch.ones(1, device="mtia")
        with FakeTensorMode():
            x = torch.empty(2, device="mtia")
            print(torch.where(torch.empty(2, device="mtia", dtype=torch.bool), x, x).device)
    """
    assert run_script(script, TORCH_MTIA_DEVICES="2").output().split() == ["True", "mtia:1", "mtia:1"]


def test_capability_is_a_pair() -> None:
    major, minor = torch.mtia.get_device_capability()
    assert (major, minor) == torch.mtia.get_device_capability(0)
    assert major >= 0
    assert minor >= 0


ALL_DTYPES = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_accelerator_capability_is_the_dtypes_that_convert(dtype: torch.dtype) -> None:
    supported = torch.accelerator.get_device_capability()["supported_dtypes"]
    assert {torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn} <= supported
    if dtype in supported:
        x = torch.empty(16, dtype=dtype, device="mtia").to(torch.float32).to(dtype)
        assert x.dtype == dtype
    else:
        with pytest.raises((RuntimeError, TypeError)):
            torch.empty(16, dtype=dtype, device="mtia").to(torch.float32)


def test_accelerator_device_index() -> None:
    torch.accelerator.set_device_index(0)
    assert torch.accelerator.current_device_index() == 0
    with torch.accelerator.device_index(0):
        assert torch.accelerator.current_device_index() == 0
    with torch.accelerator.device_index(None):
        assert torch.accelerator.current_device_index() == 0


@pytest.mark.parametrize("select", [torch.mtia.set_device, torch.accelerator.set_device_index])
def test_selecting_a_device_that_does_not_exist_raises(select: object) -> None:
    assert callable(select)
    with pytest.raises(RuntimeError, match="7"):
        select(7)
    assert torch.mtia.current_device() == 0
    assert torch.ones(2, device="mtia").tolist() == [1, 1]


def test_a_negative_device_is_no_selection() -> None:
    torch.mtia.set_device(-1)
    with torch.mtia.device(-1), torch.mtia.device(None):
        assert torch.mtia.current_device() == 0


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "query",
    [
        "torch.mtia.get_device_properties(0)",
        "torch.mtia.get_device_capability()",
        "torch.accelerator.get_memory_info()",
        "torch.mtia.current_stream()",
        "torch.Event('mtia', enable_timing=True).record()",
        "torch.mtia.get_rng_state()",
        "torch.mtia.synchronize()",
        "torch.mtia.empty_cache()",
    ],
)
def test_anything_may_be_the_first_use(run_script: RunScript, query: str) -> None:
    run_script(f"import torch; {query}").output()


FOUR_DEVICES = """
import torch
assert torch.mtia.device_count() == torch.accelerator.device_count() == 4
"""


def test_four_devices_are_selected_and_restored(run_script: RunScript) -> None:
    finished = run_script(
        FOUR_DEVICES
        + """
assert torch.mtia.current_device() == 0
torch.mtia.set_device(1)
assert torch.mtia.current_device() == torch.accelerator.current_device_index() == 1
with torch.mtia.device(2):
    assert torch.empty(1, device="mtia").device.index == 2
    with torch.mtia.device("mtia:3"):
        assert torch.mtia.current_device() == 3
    assert torch.mtia.current_device() == 2
assert torch.mtia.current_device() == 1
try:
    with torch.mtia.device(3):
        raise KeyError
except KeyError:
    assert torch.mtia.current_device() == 1
try:
    with torch.mtia.device(3):
        torch.empty(1, device="mtia:9")
except RuntimeError as error:
    assert "9" in str(error), error
    assert torch.mtia.current_device() == 1
assert torch.mtia._exchange_device(3) == 1
assert torch.mtia._maybe_exchange_device(-1) == -1
assert torch.mtia.current_device() == 3
""",
        TORCH_MTIA_DEVICES="4",
    )
    finished.output()


def test_the_current_device_belongs_to_the_thread(run_script: RunScript) -> None:
    finished = run_script(
        FOUR_DEVICES
        + """
from concurrent.futures import ThreadPoolExecutor
torch.mtia.set_device(2)
with ThreadPoolExecutor(1) as other:
    assert other.submit(torch.mtia.current_device).result() == 0
    other.submit(torch.mtia.set_device, 3).result()
    assert other.submit(torch.mtia.current_device).result() == 3
assert torch.mtia.current_device() == 2
""",
        TORCH_MTIA_DEVICES="4",
    )
    finished.output()


def test_an_operator_runs_on_the_device_of_its_tensors(run_script: RunScript) -> None:
    finished = run_script(
        FOUR_DEVICES
        + """
x = torch.arange(4., device="mtia:3", requires_grad=True)
y = (x * x + 1).relu().erf().sum()
assert y.device.index == 3
y.backward()
assert x.grad.device.index == 3
assert torch.mtia.current_device() == 0
torch.mtia.synchronize(3)
assert torch.mtia.memory_allocated(3) > 0 and torch.mtia.memory_allocated(0) == 0
""",
        TORCH_MTIA_DEVICES="4",
    )
    finished.output()


def test_threads_on_different_devices_run_concurrently(run_script: RunScript) -> None:
    """A host function of each device's stream waits for those of the others: one after another, none would return."""
    finished = run_script(
        FOUR_DEVICES
        + """
import threading, torch_mtia
from concurrent.futures import ThreadPoolExecutor
all_devices = threading.Barrier(4, timeout=60)
torch.mtia.init()  # of seeds set before that, PyTorch keeps the last one, for the device of the thread that initializes

def train(device):
    torch.set_num_threads(1)  # a sum in two parts is rounded otherwise
    torch.mtia.set_device(device)
    torch.mtia.manual_seed(device)
    x = torch.randn(64, 32, device="mtia")
    weight = torch.zeros(32, 8, device="mtia", requires_grad=True)
    for step in range(20):
        if step % 5 == 0:
            torch_mtia.launch_host_function(torch.mtia.current_stream(), all_devices.wait)
        loss = ((x @ weight - 1) ** 2).mean()
        weight.grad = None
        loss.backward()
        with torch.no_grad():
            weight -= 0.1 * weight.grad
    torch.mtia.synchronize()
    assert weight.device.index == torch.mtia.current_device() == device
    return weight.tolist()

with ThreadPoolExecutor(4) as pool:
    together = list(pool.map(train, range(4)))
all_devices = threading.Barrier(1)
assert [train(device) for device in range(4)] == together
assert together[0] != together[1]
""",
        TORCH_MTIA_DEVICES="4",
    )
    finished.output()


OF_A_DEVICE: dict[str, Callable[[int], object]] = {
    "torch.mtia.current_stream": torch.mtia.current_stream,
    "torch.mtia.default_stream": torch.mtia.default_stream,
    "torch.mtia.memory_stats": torch.mtia.memory_stats,
    "torch.mtia.get_device_properties": torch.mtia.get_device_properties,
    "torch.mtia.synchronize": torch.mtia.synchronize,
    "torch.accelerator.current_stream": torch.accelerator.current_stream,
    "torch.accelerator.synchronize": torch.accelerator.synchronize,
    "torch.accelerator.memory_stats": torch.accelerator.memory_stats,
    "torch.accelerator.reset_peak_memory_stats": torch.accelerator.reset_peak_memory_stats,
    "torch.accelerator.reset_accumulated_memory_stats": torch.accelerator.reset_accumulated_memory_stats,
    "torch.accelerator.get_memory_info": torch.accelerator.get_memory_info,
    "a stream": lambda index: torch.Stream(torch.device("mtia", index)),
    "a raw stream": lambda index: torch._C._mtia_getCurrentRawStream(index),
    "an event": lambda index: torch.Event(torch.device("mtia", index)).record(
        torch.Stream(stream_id=0, device_index=index, device_type=torch.Stream("mtia").device_type)
    ),
}


@pytest.mark.parametrize("index", [99, 127])
@pytest.mark.parametrize("name", OF_A_DEVICE)
def test_what_takes_a_device_refuses_one_that_does_not_exist(name: str, index: int) -> None:
    with pytest.raises(RuntimeError, match=f"mtia:{index} does not exist"):
        OF_A_DEVICE[name](index)


@pytest.mark.in_tree("the modules are those of mtia")
def test_test_suites_of_other_projects_initialize_the_device(run_script: RunScript) -> None:
    """As Helion's and tritonbench's do."""
    script = """
        import unittest
        import torch
        {imports}
        class OfAnotherProject(unittest.TestCase): ...
        assert not torch.mtia.is_initialized()
        {initialize}
        print(torch.mtia.is_initialized())
    """
    of_a_class = (
        "from mtia.re.re_unittest_lib import MTIAUnittest",
        "MTIAUnittest.setUpClass.__func__(OfAnotherProject)",
    )
    of_a_function = "from mtia.re.re_unittest_lib import init_mtia_device", "init_mtia_device()"
    launcher = "from triton_mtia.python.mtia.eager import mtia_triton_launcher", "mtia_triton_launcher.init()"
    backends = "from mtia.host_runtime.torch_mtia import dynamo_backends", "torch.mtia.init()"
    for imports, initialize in (of_a_class, of_a_function, launcher, backends):
        assert run_script(script.format(imports=imports, initialize=initialize)).output() == "True\n"
