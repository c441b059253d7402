"""Whether a library keeps the contract of mtia_runtime.h. No operator of PyTorch is involved.

The driver is called through ctypes, from this process; what has to happen before `initialize`, or ends the process, is
a script of a process of its own (`fresh`).
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from ctypes import byref, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any

import pytest

from torch_mtia.conformance import driver_api
from torch_mtia.conformance.driver_api import CAPABILITY, CONSTANTS, FUNCTIONS, LEAST, RUN, Driver, sized
from torch_mtia.conformance.driver_fixtures import MIB, SECONDS, TO_DEVICE, WITHIN, new_stream, read, write

NOWHERE = 1 << 46  # an address that neither side has


def fresh(library: str, script: str) -> None:
    """Runs the script, in which `driver` has been loaded and not initialized, in a process of its own."""
    head = "import sys, os, ctypes\nfrom driver_api import *\ndriver = Driver(sys.argv[1])\n"
    process = subprocess.run(
        [sys.executable, "-c", head + script, library],
        env=os.environ | {"PYTHONPATH": str(Path(driver_api.__file__).parent), "PYTHONSAFEPATH": ""},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert process.returncode == 0, f"exit status {process.returncode}\n{process.stdout}{process.stderr}"


# The table ------------------------------------------------------------------------------------------------------------


def test_versions_are_negotiated(api: Driver) -> None:
    assert api.get_api(1) == api.get_api(1) != 0
    assert api.get_api(0) is None
    assert api.get_api(99) is None
    assert api.table.abi_version == 1


def test_name_and_version_are_texts(api: Driver) -> None:
    assert api.table.name
    assert api.table.version


@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_are_there(api: Driver, function: str) -> None:
    if api.offers(function):
        capability = CAPABILITY.get(function)
        assert getattr(api.table, function), f"{function} is null" + (f", and {capability} is set" * bool(capability))


def test_unknown_capabilities_are_not_claimed(api: Driver) -> None:
    known = sum(bit for name, bit in CONSTANTS.items() if name.startswith("MTIA_CAPABILITY_"))
    assert api.table.capabilities & ~known == 0


# Initialization -------------------------------------------------------------------------------------------------------


def test_before_initialization_nothing_is_served(driver_library: str) -> None:
    fresh(
        driver_library,
        "value = ctypes.c_uint64()\n"
        "assert driver.call('device_count', ctypes.byref(value)) in ('MTIA_SUCCESS', 'MTIA_ERROR_NOT_INITIALIZED')\n"
        "assert driver.call('memory_allocate', 0, 4096, ctypes.byref(value)) == 'MTIA_ERROR_NOT_INITIALIZED'\n"
        "assert driver.message()\n"
        "assert driver.call('stream_create', 0, 0, None, ctypes.byref(value)) == 'MTIA_ERROR_NOT_INITIALIZED'\n"
        "assert driver.call('event_create', 0, ctypes.byref(value)) == 'MTIA_ERROR_NOT_INITIALIZED'\n",
    )


def test_initialization_starts_no_thread(driver_library: str) -> None:
    fresh(
        driver_library,
        "assert driver.initialize() == 'MTIA_SUCCESS', driver.message()\n"
        "assert len(os.listdir('/proc/self/task')) == 1",
    )


@pytest.mark.parametrize("params", ["None", "ctypes.byref(sized('mtia_init_params'))", "ctypes.byref(short)"])
def test_wrong_parameters_are_refused_and_right_ones_may_follow(driver_library: str, params: str) -> None:
    fresh(
        driver_library,
        "short = sized('mtia_init_params', num_devices=1, memory_per_device=1 << 28); short.struct_size = 4\n"
        f"assert driver.call('initialize', {params}) == 'MTIA_ERROR_INVALID_VALUE'\n"
        "assert driver.message()\n"
        "assert driver.initialize() == 'MTIA_SUCCESS', driver.message()\n",
    )


def test_a_second_initialization_is_refused(api: Driver) -> None:
    assert api.initialize() == "MTIA_ERROR_INVALID_VALUE"


def test_a_forked_child_is_refused(driver_library: str) -> None:
    fresh(
        driver_library,
        "assert driver.initialize() == 'MTIA_SUCCESS'\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    value = ctypes.c_uint64()\n"
        "    status = driver.call('memory_allocate', 0, 4096, ctypes.byref(value))\n"
        "    os._exit(0 if status == 'MTIA_ERROR_FORKED' and driver.message() else 1)\n"
        "assert os.waitpid(child, 0)[1] == 0\n",
    )


def test_launch_blocking_waits_and_reports_the_failure(driver_library: str) -> None:
    fresh(
        driver_library,
        "assert driver.initialize(launch_blocking=1) == 'MTIA_SUCCESS'\n"
        "stream = driver.get('stream_create', ctypes.c_void_p, 0, 0, None)\n"
        "ran = []\n"
        "good = RUN(lambda args, context: ran.append(1) or 0)\n"
        "bad = RUN(lambda args, context: 8)\n"
        "work = sized('mtia_work', run=ctypes.cast(good, ctypes.c_void_p), name=b'good')\n"
        "assert driver.call('stream_launch', stream, ctypes.byref(work)) == 'MTIA_SUCCESS' and ran == [1]\n"
        "work = sized('mtia_work', run=ctypes.cast(bad, ctypes.c_void_p), name=b'bad')\n"
        "assert driver.call('stream_launch', stream, ctypes.byref(work)) == 'MTIA_ERROR_LAUNCH_FAILED'\n"
        "assert driver.message()\n"
        "work = sized('mtia_work', run=ctypes.cast(good, ctypes.c_void_p), name=b'good')\n"
        "assert driver.call('stream_launch', stream, ctypes.byref(work)) == 'MTIA_SUCCESS'  # it did not\n",
    )


def test_launch_blocking_is_not_for_what_work_gives_to_another_stream(driver_library: str) -> None:
    fresh(
        driver_library,
        "import threading\n"
        "assert driver.initialize(launch_blocking=1) == 'MTIA_SUCCESS'\n"
        "first, second = (driver.get('stream_create', ctypes.c_void_p, 0, 0, None) for _ in range(2))\n"
        "go, ran = threading.Event(), []\n"
        "inner = RUN(lambda args, context: ran.append(go.wait(30)) or 0)\n"
        "def work_of(run):\n"
        "    return ctypes.byref(sized('mtia_work', run=ctypes.cast(run, ctypes.c_void_p), name=b'work', cost=10**6))\n"
        "def give(args, context):\n"
        "    status = driver.call('stream_launch', second, work_of(inner))\n"
        "    go.set()\n"
        "    return status != 'MTIA_SUCCESS'\n"
        "outer = RUN(give)\n"
        "assert driver.call('stream_launch', first, work_of(outer)) == 'MTIA_SUCCESS'\n"
        "driver('stream_synchronize', second)\n"
        "assert ran == [True]\n",
    )


# Wrong arguments ------------------------------------------------------------------------------------------------------

VALUE = c_uint64()
OUT = byref(VALUE)


@pytest.mark.parametrize("device", [-1, 1000])
@pytest.mark.parametrize(
    ("function", "arguments"),
    {
        "device_synchronize": (),
        "memory_allocate": (4096, OUT),
        "memory_free": (NOWHERE,),
        "memory_info": (OUT, OUT),
        "stream_create": (0, None, OUT),
        "device_properties": (byref(sized("mtia_device_properties")),),
    }.items(),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_device_that_does_not_exist(
    api: Driver, needs: Callable[[str], None], function: str, arguments: Any, device: int
) -> None:
    needs(function)
    assert api.call(function, device, *arguments) == "MTIA_ERROR_INVALID_DEVICE"
    assert api.message()


@pytest.mark.parametrize("function", [name for name in FUNCTIONS if name not in ("last_error_message", "set_tracer")])
def test_null_pointers_are_refused(api: Driver, needs: Callable[[str], None], function: str) -> None:
    needs(function)
    if not any(kind in (c_void_p, ctypes.c_char_p) for kind in FUNCTIONS[function]) or function == "memory_device":
        pytest.skip("it takes no pointer that may not be null")
    nothing = [None if kind in (c_void_p, ctypes.c_char_p) else 0 for kind in FUNCTIONS[function]]
    assert api.call(function, *nothing) == "MTIA_ERROR_INVALID_VALUE"
    assert api.message()


STRUCTS = {
    "device_properties": "mtia_device_properties",
    "stream_launch": "mtia_work",
    "stream_launch_kernel": "mtia_kernel_launch",
    "set_tracer": "mtia_tracer",
}


@pytest.mark.parametrize("size", [0, 4, -1])
@pytest.mark.parametrize(("function", "struct"), STRUCTS.items())
def test_structs_shorter_than_the_version_are_refused(
    api: Driver, needs: Callable[[str], None], stream: Any, function: str, struct: str, size: int
) -> None:
    needs(function)
    short = sized(struct)
    short.struct_size = size if size >= 0 else LEAST[struct] + size
    first = {"device_properties": (0,), "set_tracer": ()}.get(function, (stream,))
    assert api.call(function, *first, byref(short)) == "MTIA_ERROR_INVALID_VALUE"


def longer(made: Any) -> Any:
    """As a later header has it: what the driver does not know is at the end, and not zero."""
    bytes_there = bytes(made)
    buffer = ctypes.create_string_buffer(bytes_there + b"\xff" * 64, len(bytes_there) + 64)
    c_uint32.from_buffer(buffer).value = len(buffer)
    return buffer


def test_structs_of_a_later_header_are_taken(api: Driver, stream: Any) -> None:
    properties = longer(sized("mtia_device_properties"))
    api("device_properties", 0, byref(properties))
    assert c_uint32.from_buffer(properties).value == len(properties)
    assert properties.raw[-64:] == b"\xff" * 64
    ran: list[int] = []

    def run_once(_args: int, _context: int) -> int:
        ran.append(1)
        return 0

    run = RUN(run_once)
    api("stream_launch", stream, byref(longer(sized("mtia_work", run=ctypes.cast(run, c_void_p), num_threads=1))))
    api("stream_synchronize", stream)
    assert ran == [1]


def test_parameters_of_a_later_header_are_taken(driver_library: str) -> None:
    fresh(
        driver_library,
        "class Later(ctypes.Structure):\n"
        "    _fields_ = [('known', structure('mtia_init_params')), ('more', ctypes.c_uint64)]\n"
        "params = sized('mtia_init_params', num_devices=1, memory_per_device=1 << 28, parallel_for=parallel_for)\n"
        "later = Later(params, 2**64 - 1)\n"
        "later.known.struct_size = ctypes.sizeof(later)\n"
        "assert driver.call('initialize', ctypes.byref(later)) == 'MTIA_SUCCESS', driver.message()\n",
    )


def test_the_message_belongs_to_the_thread(api: Driver) -> None:
    assert api.call("memory_allocate", 0, 4096, None) == "MTIA_ERROR_INVALID_VALUE"
    before = api.message()
    other = threading.Thread(target=api.call, args=("memory_free", -1, NOWHERE))
    other.start()
    other.join()
    assert api.message() == before


# Devices and memory ---------------------------------------------------------------------------------------------------


def test_devices_describe_themselves(api: Driver) -> None:
    count = api.get("device_count", c_int32)
    assert count >= 1
    for device in range(count):
        properties = sized("mtia_device_properties")
        api("device_properties", device, byref(properties))
        assert properties.name
        assert properties.architecture
        assert properties.total_memory >= 64 * MIB
        total = memory_info(api, device)[1]
        assert abs(total - properties.total_memory) <= total // 16, "total_memory is not the total of memory_info"
        assert properties.multi_processor_count >= 1
        assert properties.warp_size >= 1


def memory_info(api: Driver, device: int) -> tuple[int, int]:
    """Free bytes and all bytes."""
    free, total = c_uint64(), c_uint64()
    api("memory_info", device, byref(free), byref(total))
    assert free.value <= total.value
    return free.value, total.value


def free_memory(api: Driver, device: int) -> int:
    return memory_info(api, device)[0]


def test_memory_is_aligned_and_counted(api: Driver) -> None:
    for device in range(api.get("device_count", c_int32)):
        before = free_memory(api, device)
        assert before > 0
        addresses = [api.get("memory_allocate", c_uint64, device, size) for size in (1, 4097, MIB)]
        assert len(set(addresses)) == 3
        assert all(address and address % 4096 == 0 for address in addresses)
        assert before - free_memory(api, device) >= MIB
        for address in addresses:
            api("memory_free", device, address)
        assert free_memory(api, device) == before


def test_more_memory_than_there_is(api: Driver) -> None:
    assert api.call("memory_allocate", 0, 1 << 50, OUT) == "MTIA_ERROR_OUT_OF_MEMORY"
    assert api.message()


def test_memory_that_is_used_up(api: Driver) -> None:
    """What memory_info calls free can be allocated, but for a quarter, and no more than that."""
    free, addresses, address = free_memory(api, 0), [], c_uint64()
    piece = free // 8
    while (status := api.call("memory_allocate", 0, piece, byref(address))) == "MTIA_SUCCESS":
        addresses.append(address.value)
        assert len(addresses) <= 8, f"{len(addresses) * piece} bytes were allocated, where {free} were free"
    assert status == "MTIA_ERROR_OUT_OF_MEMORY"
    assert len(addresses) >= 6, f"{len(addresses) * piece} bytes could be allocated, where {free} were free"
    assert api.message()
    api("memory_free", 0, addresses.pop())
    addresses.append(api.get("memory_allocate", c_uint64, 0, piece))
    for each in addresses:
        api("memory_free", 0, each)


def test_no_bytes_are_refused(api: Driver) -> None:
    assert api.call("memory_allocate", 0, 0, OUT) == "MTIA_ERROR_INVALID_VALUE"
    assert api.message()


def test_memory_without_a_place_for_its_address_is_not_taken(api: Driver) -> None:
    before = free_memory(api, 0)
    assert api.call("memory_allocate", 0, MIB, None) == "MTIA_ERROR_INVALID_VALUE"
    assert free_memory(api, 0) == before


def test_memory_that_was_not_allocated_is_not_freed(api: Driver, memory: int) -> None:
    assert api.call("memory_free", 0, NOWHERE) == "MTIA_ERROR_INVALID_VALUE"
    assert api.call("memory_free", 0, memory + 512) == "MTIA_ERROR_INVALID_VALUE"
    freed = api.get("memory_allocate", c_uint64, 0, MIB)
    api("memory_free", 0, freed)
    assert api.call("memory_free", 0, freed) == "MTIA_ERROR_INVALID_VALUE"


def test_addresses_know_their_device(api: Driver) -> None:
    for device in range(api.get("device_count", c_int32)):
        memory = api.get("memory_allocate", c_uint64, device, MIB)
        assert api.get("memory_device", c_int32, memory) == device
        assert api.get("memory_device", c_int32, memory + MIB - 1) == device
        api("memory_free", device, memory)
    here = ctypes.create_string_buffer(16)
    assert api.call("memory_device", ctypes.addressof(here), OUT) == "MTIA_ERROR_INVALID_VALUE"


def test_the_host_view(api: Driver, needs: Callable[[str], None], stream: Any, memory: int) -> None:
    needs("HOST_VIEW")
    write(api, stream, memory, b"seen from the host")
    offset = api.get("memory_host_offset", c_int64)
    assert ctypes.string_at(memory + offset, 18) == b"seen from the host"


def test_virtual_memory(api: Driver, needs: Callable[[str], None], stream: Any) -> None:
    needs("VIRTUAL_MEMORY")
    size = 2 * MIB
    address = api.get("memory_reserve", c_uint64, 0, 4 * size)
    api("memory_map", 0, address + size, size)
    write(api, stream, address + size, b"mapped")
    assert read(api, stream, address + size, 6) == b"mapped"
    assert api.call("memory_map", 0, address + size, size) == "MTIA_ERROR_INVALID_VALUE"
    assert api.call("memory_release", 0, address) == "MTIA_ERROR_INVALID_VALUE"
    api("memory_unmap", 0, address + size, size)
    assert api.call("memory_unmap", 0, address + size, size) == "MTIA_ERROR_INVALID_VALUE"
    api("memory_release", 0, address)
    assert api.call("memory_release", 0, address) == "MTIA_ERROR_INVALID_VALUE"


def test_shared_memory(api: Driver, needs: Callable[[str], None], stream: Any) -> None:
    needs("SHARED_MEMORY")
    size = 2 * MIB
    file = os.memfd_create("conformance")
    os.ftruncate(file, size)
    address = api.get("memory_reserve", c_uint64, 0, 4 * size)
    for place in (address, address + 2 * size):  # one file, seen at two places
        api("memory_map_shared", 0, place, size, file)
    write(api, stream, address, b"shared")
    assert read(api, stream, address + 2 * size, 6) == b"shared"
    assert os.pread(file, 6, 0) == b"shared"
    assert api.call("memory_map_shared", 0, address, size, file) == "MTIA_ERROR_INVALID_VALUE"
    assert api.call("memory_map_shared", 0, address + size, 2 * size, file) == "MTIA_ERROR_INVALID_VALUE"  # too short
    os.close(file)
    assert read(api, stream, address, 6) == b"shared"
    for place in (address, address + 2 * size):
        api("memory_unmap", 0, place, size)
    api("memory_map", 0, address, size)
    assert read(api, stream, address, 6) == bytes(6)  # nothing of it is left
    api("memory_unmap", 0, address, size)
    api("memory_release", 0, address)


# Copies and fills -----------------------------------------------------------------------------------------------------


def numbered(size: int) -> bytes:
    """Bytes of which no part is one that begins at another multiple of a power of two."""
    return (bytes(range(251)) * (size // 251 + 1))[:size]


@pytest.mark.parametrize("size", [1, 7, 4096, MIB - 3])
def test_copies_there_and_back(api: Driver, stream: Any, memory: int, size: int) -> None:
    write(api, stream, memory + 3, numbered(size))
    assert read(api, stream, memory + 3, size) == numbered(size)


def test_copies_within_the_device_and_to_another(api: Driver, stream: Any, memory: int) -> None:
    """Of any alignment, and not a byte more."""
    devices = range(min(2, api.get("device_count", c_int32)))
    write(api, stream, memory, numbered(8192))
    for device in devices:
        other = api.get("memory_allocate", c_uint64, device, 16384)
        with new_stream(api, device=device) as stream_of_other:
            write(api, stream_of_other, other, b"\xff" * 16384)
            api("memory_copy", stream, other + 5, memory + 9, 4099, WITHIN)
            api("stream_synchronize", stream)
            expected = b"\xff" * 5 + numbered(8192)[9 : 9 + 4099] + b"\xff" * 100
            assert read(api, stream_of_other, other, len(expected)) == expected
        api("memory_free", device, other)


def test_large_copies_and_fills(api: Driver, stream: Any) -> None:
    size = 5 * MIB - 3
    first, second = (api.get("memory_allocate", c_uint64, 0, size + 1) for _ in range(2))
    write(api, stream, first, numbered(size))
    assert read(api, stream, first, size) == numbered(size)
    api("memory_copy", stream, second, first, size, WITHIN)
    assert read(api, stream, second, size) == numbered(size)
    write(api, stream, first + size, b"\xff")
    one = ctypes.create_string_buffer(b"\1", 1)
    api("memory_fill", stream, first, ctypes.addressof(one), 1, size)
    assert read(api, stream, first, size + 1) == b"\1" * size + b"\xff"
    for address in (first, second):
        api("memory_free", 0, address)


def test_copies_of_nothing(api: Driver, stream: Any, memory: int) -> None:
    here = ctypes.create_string_buffer(1)
    api("memory_copy", stream, memory, ctypes.addressof(here), 0, TO_DEVICE)
    api("stream_synchronize", stream)


def test_a_copy_of_an_unknown_kind(api: Driver, stream: Any, memory: int) -> None:
    assert api.call("memory_copy", stream, memory, memory + 64, 8, 17) == "MTIA_ERROR_INVALID_VALUE"


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("count", [1, 3, 5000])
def test_fills(api: Driver, stream: Any, memory: int, width: int, count: int) -> None:
    write(api, stream, memory, b"\xff" * (width * count + 1))
    pattern = ctypes.create_string_buffer(bytes(range(1, width + 1)), width)
    api("memory_fill", stream, memory, ctypes.addressof(pattern), width, count)
    ctypes.memset(pattern, 0, width)  # it was read before the return
    assert read(api, stream, memory, width * count + 1) == bytes(range(1, width + 1)) * count + b"\xff"


@pytest.mark.parametrize("width", [2, 4, 8, 16])
def test_fills_from_any_address_on(api: Driver, stream: Any, memory: int, width: int) -> None:
    write(api, stream, memory, b"\xff" * 64)
    pattern = ctypes.create_string_buffer(bytes(range(1, width + 1)), width)
    api("memory_fill", stream, memory + 1, ctypes.addressof(pattern), width, 3)
    assert read(api, stream, memory, 64) == (b"\xff" + pattern.raw * 3).ljust(64, b"\xff")


@pytest.mark.parametrize("width", [0, 3, 32])
def test_a_pattern_of_another_width(api: Driver, stream: Any, memory: int, width: int) -> None:
    pattern = ctypes.create_string_buffer(32)
    status = api.call("memory_fill", stream, memory, ctypes.addressof(pattern), width, 1)
    assert status == "MTIA_ERROR_INVALID_VALUE"
