"""Device memory is finite, cached, reused in stream order, counted exactly, and not for the host to touch."""

from __future__ import annotations

import gc
import re
import signal
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import RunScript

STATISTICS = ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes")
POOLS = ("all", "small_pool", "large_pool")
METRICS = ("current", "peak", "allocated", "freed")


@pytest.fixture(autouse=True)
def _empty_cache() -> None:
    """The figures of a test start from a device without cached blocks."""
    torch.empty(1, device="mtia")  # the statistics exist only after the first allocation
    gc.collect()
    torch.accelerator.empty_cache()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("requested", "rounded"), [(1, 512), (511, 512), (512, 512), (513, 1024), (2**20 + 1, 2**20 + 512)]
)
def test_allocations_are_rounded_to_512_bytes(requested: int, rounded: int) -> None:
    before = torch.accelerator.memory_allocated()
    x = torch.empty(requested, dtype=torch.uint8, device="mtia")
    assert torch.accelerator.memory_allocated() - before == rounded
    assert x.data_ptr() % 512 == 0
    del x
    assert torch.accelerator.memory_allocated() == before


def test_an_empty_tensor_takes_no_memory() -> None:
    before = torch.accelerator.memory_allocated()
    x = torch.empty(0, 3, device="mtia")
    assert x.data_ptr() == 0
    assert torch.accelerator.memory_allocated() == before


def test_memory_is_freed_by_its_address_on_whichever_device_it_is(run_script: RunScript) -> None:
    """As c10::Allocator::raw_allocate and raw_deallocate, which packages use."""
    script = """
        import ctypes, pathlib
        import torch, torch_mtia
        library = ctypes.CDLL(pathlib.Path(torch_mtia.__file__).parent / "lib" / "libtorch_mtia.so")
        allocated = torch.accelerator.memory_allocated

        def allocate(size):
            address = ctypes.c_void_p()
            assert library.aoti_torch_mtia_allocate(ctypes.c_uint64(size), ctypes.byref(address)) == 0
            return address

        def free(address):
            assert library.aoti_torch_mtia_free(address) == 0

        torch.mtia.set_device(1)
        address, nothing, tensor = allocate(1000), allocate(0), torch.ones(2000, device="mtia")
        assert (bool(address), bool(nothing), allocated(1)) == (True, False, 1024 + 8192)
        torch.mtia.set_device(0)
        other = torch.ones(10, device="mtia")
        free(ctypes.c_void_p(address.value + 512))  # none begins there
        free(nothing)
        assert (allocated(0), allocated(1)) == (512, 1024 + 8192)
        free(address)
        assert (allocated(0), allocated(1)) == (512, 8192)
        free(address)
        del tensor
        assert (allocated(0), allocated(1)) == (512, 0)
    """
    run_script(script, TORCH_MTIA_DEVICES="2").output()


def test_every_statistic_is_reported() -> None:
    statistics = torch.accelerator.memory_stats()
    missing = {f"{name}.{pool}.{metric}" for name in STATISTICS for pool in POOLS for metric in METRICS} - set(
        statistics
    )
    assert not missing
    assert {"num_alloc_retries", "num_ooms"} <= set(statistics)


def test_statistics_of_the_device_are_flat_and_nested() -> None:
    x = torch.empty(1000, device="mtia")
    statistics = torch.mtia.memory_stats()
    assert {name: statistics[name] for name in torch.accelerator.memory_stats()} == torch.accelerator.memory_stats()
    assert statistics["dram"]["allocated_bytes"] == statistics["allocated_bytes.all.current"] >= x.nbytes


def test_statistics_count_exactly() -> None:
    torch.accelerator.reset_accumulated_memory_stats()
    before = torch.accelerator.memory_stats()
    x = torch.randn(256, device="mtia")
    during = torch.accelerator.memory_stats()
    assert during["active_bytes.all.current"] - before["active_bytes.all.current"] == 1024
    assert during["active_bytes.all.freed"] == 0
    assert during["requested_bytes.all.current"] - before["requested_bytes.all.current"] == 1024
    del x
    after = torch.accelerator.memory_stats()
    assert after["active_bytes.all.current"] == before["active_bytes.all.current"]
    assert after["active_bytes.all.freed"] == 1024
    assert after["active_bytes.all.allocated"] == 1024


def test_the_peak_is_kept_until_reset() -> None:
    torch.accelerator.reset_peak_memory_stats()
    torch.mtia.reset_peak_memory_stats()
    before = torch.accelerator.memory_allocated()
    x = torch.empty(2**22, dtype=torch.uint8, device="mtia")
    del x
    assert torch.accelerator.memory_allocated() == torch.mtia.memory_allocated() == before
    assert torch.accelerator.max_memory_allocated() == torch.mtia.max_memory_allocated() == before + 2**22
    torch.accelerator.reset_peak_memory_stats()
    assert torch.accelerator.max_memory_allocated() == before


def test_freed_memory_stays_reserved_until_the_cache_is_emptied() -> None:
    before = torch.accelerator.memory_reserved()
    free_before, total = torch.accelerator.get_memory_info()
    x = torch.empty(2**26, dtype=torch.uint8, device="mtia")
    del x
    assert torch.accelerator.memory_reserved() >= before + 2**26
    assert torch.accelerator.get_memory_info()[0] <= free_before - 2**26
    torch.mtia.empty_cache()
    assert torch.accelerator.memory_reserved() == before
    assert torch.accelerator.get_memory_info() == (free_before, total)
    assert total == torch.mtia.get_device_properties()["total_memory"]


def test_emptying_the_cache_leaves_live_tensors_alone() -> None:
    large, small = (torch.arange(size, device="mtia") for size in (2**20, 10))
    torch.mtia.empty_cache()
    assert torch.equal(large.cpu(), torch.arange(2**20))
    assert torch.equal(small.cpu(), torch.arange(10))


def test_a_freed_block_is_reused_by_its_stream_at_once() -> None:
    x = torch.ones(777_000, device="mtia")
    address = x.data_ptr()
    y = x * 2  # reads x, whose memory the next line gives away
    del x
    z = torch.full((777_000,), -1.0, device="mtia")
    assert z.data_ptr() == address
    assert (y.cpu() == 2).all()
    assert (z.cpu() == -1).all()


def test_a_freed_block_is_not_given_to_another_stream() -> None:
    x = torch.ones(777_000, device="mtia")
    address = x.data_ptr()
    y = x * 2
    del x
    with torch.mtia.stream(torch.Stream("mtia")):
        z = torch.full((777_000,), -1.0, device="mtia")
        assert z.data_ptr() != address
    torch.mtia.synchronize()
    assert (y.cpu() == 2).all()
    assert (z.cpu() == -1).all()


@pytest.mark.parametrize("size", [2**42, 2**60 + 2**59], ids=["4 TiB", "1.5 EiB"])
def test_an_allocation_larger_than_the_device_is_out_of_memory(size: int) -> None:
    with pytest.raises(torch.OutOfMemoryError, match=r"^\w+ out of memory\. Tried to allocate"):
        torch.empty(size, dtype=torch.uint8, device="mtia")
    assert torch.ones(3, device="mtia").tolist() == [1, 1, 1]


def test_a_size_that_overflows_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="Storage size calculation overflowed"):
        torch.empty(2**31, 2**31, 2, device="mtia")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "grow",
    [
        lambda x: x.resize_(2**42),
        lambda x: x.resize_(2**40, 2, 2, memory_format=torch.contiguous_format),
        lambda x: torch.add(x[0, :1].expand(2**42), 1, out=x),
        lambda x: x.set_(x.untyped_storage(), 0, (2**42,)),
        lambda x: x.set_(torch.UntypedStorage(4, device="mtia"), 1, (2**42,)),
        lambda x: x.untyped_storage().resize_(2**42),
    ],
    ids=["resize_", "resize_ with a format", "out=", "set_", "set_ to another storage", "the storage's resize_"],
)
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_a_tensor_that_cannot_grow_stays_what_it_is(grow: Callable[[torch.Tensor], object]) -> None:
    x = torch.arange(12.0, device="mtia")[2:].view(5, 2)
    storage = x.untyped_storage().data_ptr()
    with pytest.raises(torch.OutOfMemoryError):
        grow(x)
    assert (x.shape, x.stride(), x.storage_offset()) == ((5, 2), (2, 1), 2)
    assert (x.untyped_storage().data_ptr(), x.untyped_storage().nbytes()) == (storage, 48)
    assert torch.equal(x.cpu(), torch.arange(2.0, 12.0).view(5, 2))


def test_running_out_reports_the_figures_and_the_device_keeps_working(run_script: RunScript) -> None:
    finished = run_script(
        """
        import torch
        tensors = []
        try:
            while True:
                tensors.append(torch.ones(2**22, device="mtia"))  # 16 MiB
        except torch.OutOfMemoryError as error:
            print(error)
        assert 28 <= len(tensors) <= 32, len(tensors)
        assert torch.accelerator.memory_stats()["num_ooms"] == 1
        assert all(t[-1].item() == 1 for t in tensors)
        del tensors[:4]
        assert torch.ones(2**22, device="mtia")[-1].item() == 1
        tensors.clear()
        torch.empty(2**28 - 2**26, dtype=torch.uint8, device="mtia")  # only once the cache is given back
        """,
        TORCH_MTIA_MEMORY="512M",
    )
    message = finished.output()
    assert "Tried to allocate 16.00 MiB" in message
    assert "mtia" in message.lower()
    assert re.search(r"total capacity of 512\.00 MiB", message)
    assert re.search(r"free", message)
    assert re.search(r"allocated", message)


@pytest.mark.wide
def test_blocks_in_flight_are_waited_for_before_giving_up(run_script: RunScript) -> None:
    finished = run_script(
        """
        import torch
        side = torch.Stream("mtia")
        for _ in range(8):
            x = torch.ones(2**26, device="mtia")  # 256 MiB of 512
            side.wait_stream(torch.mtia.current_stream())
            with torch.mtia.stream(side):
                y = x[-1] + 1
            x.record_stream(side)
            del x
        side.synchronize()
        assert y.item() == 2
        """,
        TORCH_MTIA_MEMORY="512M",
    )
    finished.output()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("access", ["ctypes.string_at(address, 4)", "ctypes.memset(address, 0, 4)"])
def test_a_host_access_to_device_memory_faults(run_script: RunScript, access: str) -> None:
    finished = run_script(
        f"""
        import ctypes, torch
        x = torch.ones(4, device="mtia")
        torch.mtia.synchronize()
        address = x.data_ptr()
        {access}
        """
    )
    assert finished.returncode == -signal.SIGSEGV


def system_with(folder: Path, *, total: int, available: int, limit: int | None = None, used: int = 0) -> Path:
    """A folder that stands in for "/": of a machine, and of a container around the process; in MiB."""
    files = {"proc/meminfo": f"MemTotal: {total << 10} kB\nMemAvailable: {available << 10} kB\n"}
    if limit is not None:
        files |= {
            "proc/self/cgroup": "0::/job\n",
            "proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
            "sys/fs/cgroup/job/memory.max": f"{limit << 20}\n",
            "sys/fs/cgroup/job/memory.current": f"{used << 20}\n",
        }
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        pytest.param(None, "the machine leaves no room", id="machine"),
        pytest.param(400, "the container's limit leaves no room", id="container"),
    ],
)
def test_what_the_host_has_no_room_for_is_out_of_memory_and_not_killed(
    run_script: RunScript, tmp_path: Path, limit: int | None, reason: str
) -> None:
    available = 300 if limit is None else 2000
    root = system_with(tmp_path / "root", total=3200, available=available, limit=limit, used=100)
    finished = run_script(
        """
        import torch
        device = torch.accelerator.current_accelerator()
        cached = torch.empty(150 << 20, dtype=torch.uint8, device=device)
        del cached
        kept = torch.empty(180 << 20, dtype=torch.uint8, device=device)  # in the place of what was cached
        try:
            torch.empty(180 << 20, dtype=torch.uint8, device=device)
        except torch.OutOfMemoryError as error:
            print(error)
        assert torch.accelerator.memory_stats()["num_ooms"] == 1
        assert torch.ones(3, device=device).tolist() == [1, 1, 1]
        """,
        TORCH_MTIA_MEMORY="1G",
        TORCH_MTIA_SYSTEM_ROOT=str(root),
    )
    assert reason in finished.output()
    assert "180.00 MiB are promised" in finished.output()
    assert "TORCH_MTIA_MEMORY" not in finished.output()


def test_free_pinned_memory_goes_back_before_the_host_has_no_room(run_script: RunScript, tmp_path: Path) -> None:
    root = system_with(tmp_path / "root", total=3200, available=300)
    finished = run_script(
        """
        import resource, torch
        def resident() -> int:
            with open("/proc/self/statm") as statm:
                return int(statm.read().split()[1]) * resource.getpagesize() >> 20
        device = torch.accelerator.current_accelerator()
        used = torch.full((64 << 20,), 7, dtype=torch.uint8, pin_memory=True)
        torch.full((256 << 20,), 7, dtype=torch.uint8, pin_memory=True)
        before = resident()
        try:
            torch.empty(400 << 20, dtype=torch.uint8, device=device)
        except torch.OutOfMemoryError:
            print(before - resident() > 200)
        assert used.is_pinned() and (used == 7).all()
        assert torch.accelerator.memory_stats()["num_ooms"] == 1
        """,
        TORCH_MTIA_MEMORY="1G",
        TORCH_MTIA_SYSTEM_ROOT=str(root),
    )
    assert finished.output() == "True\n"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("setup", "call"),
    [
        pytest.param(
            "x = torch.randn(2, 64, 256, 256, device=device); w = torch.randn(64, 64, 3, 3, device=device)",
            "torch.nn.functional.conv2d(x, w)",
            id="oneDNN",
        ),
        pytest.param("x = torch.randn(4096, 2048, device=device)", "x.kthvalue(5, 0)[0]", id="ATen"),
    ],
)
def test_workspace_that_the_machine_has_no_room_for_is_out_of_memory(
    run_script: RunScript, tmp_path: Path, setup: str, call: str
) -> None:
    root = system_with(tmp_path / "root", total=6400, available=6000)
    finished = run_script(
        f"""
        import pathlib, torch
        device = torch.accelerator.current_accelerator()
        {setup}
        expected = {call}.cpu()
        figures = pathlib.Path("{root}/proc/meminfo")
        before = figures.read_text()
        figures.write_text(before.replace("{6000 << 10}", "{8 << 10}"))
        try:
            result = {call}  # its memory is what was cached
            torch.accelerator.synchronize()
        except torch.OutOfMemoryError as error:
            print(error)
        figures.write_text(before)
        assert torch.equal({call}.cpu(), expected)
        """,
        TORCH_MTIA_MEMORY="1G",
        TORCH_MTIA_SYSTEM_ROOT=str(root),
    )
    assert "MiB of workspace on the host, and the machine leaves 8 MiB" in finished.output()


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("limit", "devices", "capacity"), [(None, 1, 1600), (None, 2, 800), (1000, 1, 500)])
def test_the_default_is_half_of_what_the_machine_or_the_container_has(
    run_script: RunScript, tmp_path: Path, limit: int | None, devices: int, capacity: int
) -> None:
    root = system_with(tmp_path / "root", total=3200, available=3000, limit=limit)
    script = "import torch; print(torch.accelerator.get_memory_info(0)[1] >> 20)"
    settings = {"TORCH_MTIA_SYSTEM_ROOT": str(root), "TORCH_MTIA_DEVICES": str(devices)}
    assert run_script(script, timeout=120, **settings).output() == f"{capacity}\n"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("expandable", [True, False])
def test_memory_that_is_free_in_pieces_is_all_usable(run_script: RunScript, expandable: bool) -> None:
    finished = run_script(
        """
        import torch
        device = torch.accelerator.current_accelerator()
        pieces = [torch.empty(10 << 20, dtype=torch.uint8, device=device) for _ in range(25)]
        del pieces[::2]
        large = torch.empty(134 << 20, dtype=torch.uint8, device=device)
        small = torch.empty(2 << 20, dtype=torch.uint8, device=device)
        print(torch.accelerator.get_memory_info(0)[0])
        """,
        TORCH_MTIA_MEMORY="256M",
        PYTORCH_ALLOC_CONF=f"expandable_segments:{expandable}",
    )
    assert finished.output() == "0\n"
