"""What the tests of a driver share: the driver, streams, memory, events, and calls of several functions at once."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import byref, c_uint64, c_void_p
from typing import Any

import pytest

from torch_mtia.conformance.driver_api import CAPABILITY, CONSTANTS, FUNCTIONS, RUN, Driver, sized

MIB = 1 << 20
TO_DEVICE, TO_HOST, WITHIN = 0, 1, 2
ONE = ctypes.create_string_buffer(b"\1", 1)
SECONDS = 60  # for work of another thread; far more than it takes
KEPT: list[Any] = []
"""Callbacks: a driver may run them whenever it likes."""


@pytest.fixture(scope="session")
def api(driver_library: str) -> Driver:
    """The driver, with two devices of 256 MiB if it can be configured."""
    driver = Driver(driver_library)
    assert driver.initialize() == "MTIA_SUCCESS", driver.message()
    return driver


@pytest.fixture
def needs(api: Driver) -> Callable[[str], None]:
    def check(name: str) -> None:
        """The name of a capability or of a function."""
        if not (api.offers(name) if name in FUNCTIONS else api.has(name)):
            pytest.skip(f"the driver has no {CAPABILITY.get(name) or name}")

    return check


@pytest.fixture
def stream(api: Driver) -> Iterator[Any]:
    with new_stream(api) as made:
        yield made


@pytest.fixture
def memory(api: Driver, stream: Any) -> Iterator[int]:
    """1 MiB on device 0, which no stream but `stream` uses at the end of the test."""
    address = api.get("memory_allocate", c_uint64, 0, MIB)
    yield address
    api.call("stream_synchronize", stream)
    api("memory_free", 0, address)


@pytest.fixture
def event(api: Driver) -> Iterator[Any]:
    made = api.get("event_create", c_void_p, 1)
    yield made
    api("event_destroy", made)


def destroy_stream(api: Driver, stream: Any) -> None:
    """A driver whose streams live as long as the process has no function for it."""
    if api.offers("stream_destroy"):
        api("stream_destroy", stream)


class new_stream:
    """A stream for a `with`: idle and destroyed at its end."""

    def __init__(self, api: Driver, device: int = 0, tag: int = 0) -> None:
        self.api = api
        self.handle = api.get("stream_create", c_void_p, device, 0, tag or None)

    def __enter__(self) -> Any:
        return self.handle

    def __exit__(self, *_: object) -> None:
        self.api.call("stream_synchronize", self.handle)
        destroy_stream(self.api, self.handle)


def launch(api: Driver, stream: Any, body: Callable[[], object], *, flags: int = 0, fails: bool = False) -> str:
    """Submits `body`. Its result is that of stream_launch."""

    def run(_args: int, _context: int) -> int:
        body()
        return CONSTANTS["MTIA_ERROR_LAUNCH_FAILED"] if fails else 0

    callback = RUN(run)
    KEPT.append(callback)
    work = sized("mtia_work", run=ctypes.cast(callback, c_void_p), flags=flags, name=b"test work", num_threads=1)
    return api.call("stream_launch", stream, byref(work))


def launch_late(api: Driver, stream: Any, body: Callable[[], object]) -> None:
    """`body` runs a moment after its turn: who does not wait for it comes before it."""

    def run() -> None:
        time.sleep(0.05)
        body()

    launch(api, stream, run)


@contextmanager
def held(api: Driver, stream: Any) -> Iterator[threading.Event]:
    """The stream waits until the event is set, which it is at the latest at the end of the block."""
    go = threading.Event()
    launch(api, stream, lambda: go.wait(SECONDS))
    try:
        yield go
    finally:
        go.set()


def write(api: Driver, stream: Any, address: int, data: bytes) -> None:
    source = ctypes.create_string_buffer(data, len(data))
    api("memory_copy", stream, address, ctypes.addressof(source), len(data), TO_DEVICE)
    api("stream_synchronize", stream)


def read(api: Driver, stream: Any, address: int, size: int) -> bytes:
    to = ctypes.create_string_buffer(size)
    api("memory_copy", stream, ctypes.addressof(to), address, size, TO_HOST)
    api("stream_synchronize", stream)
    return to.raw


# out[program] = value, for each program
STORE = bytes.fromhex("488b07 48034610 4c8b4f08 4839ca 7d09 4c890cd0 48ffc2 ebf2 c3")
POINTER, INTEGER = (0, 8), (1, 8)


@pytest.fixture
def load(api: Driver, needs: Callable[[str], None]) -> Iterator[Callable[..., Any]]:
    """Loads an image and returns its function; unloads at the end."""
    needs("KERNELS")
    modules = []

    def load_image(image: bytes, name: str) -> Any:
        module = api.get("module_load", c_void_p, 0, image, len(image))
        modules.append(module)
        return api.get("module_get_function", c_void_p, module, name.encode())

    yield load_image
    for module in modules:
        api("module_unload", module)


def launch_kernel(api: Driver, stream: Any, function: Any, grid: tuple[int, int, int], *arguments: int) -> str:
    packed = (c_uint64 * len(arguments))(*arguments)
    kernel = sized(
        "mtia_kernel_launch",
        num_threads=1,
        function=function,
        packed_arguments_size=ctypes.sizeof(packed),
        packed_arguments=ctypes.addressof(packed),
    )
    kernel.grid[:] = grid
    status = api.call("stream_launch_kernel", stream, byref(kernel))
    ctypes.memset(packed, 0, ctypes.sizeof(packed))  # it was read before the return
    return status


def assert_waits_for_its_turn(api: Driver, stream: Any, memory: int, submit: Callable[[], object]) -> None:
    """What `submit` writes into the first byte is there when the work before it is done, and not earlier."""
    write(api, stream, memory, bytes(8))
    with new_stream(api) as other:
        with held(api, stream):
            submit()
            time.sleep(0.05)
            assert read(api, other, memory, 1) == b"\0"
        assert read(api, stream, memory, 1) == b"\1"
