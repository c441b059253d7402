"""A copy gives the bytes the CPU would give, in every direction, layout and pair of dtypes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from tests.conftest import RunScript

Function = Callable[[torch.Tensor], torch.Tensor]

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.bool,
    torch.complex64,
    torch.complex128,
)

# How a tensor of 4 x 6 elements may lie in memory. The second half only makes sense for a source.
DESTINATIONS: dict[str, Function] = {
    "contiguous": lambda x: x.clone(),
    "transposed": lambda x: x.t().contiguous().t(),
    "every second": lambda x: x.repeat_interleave(2, 1)[:, ::2],
    "with an offset": lambda x: torch.cat((x[:1], x)).view(-1)[6:].view(4, 6),
    "padded rows": lambda x: torch.cat((x, x), 1)[:, :6],
}
SOURCES = DESTINATIONS | {
    "expanded": lambda x: x[:, :1].contiguous().expand(4, 6),
    "flipped": lambda x: x.flip(0, 1),
}
DIRECTIONS = ("host to device", "device to host", "device to device")


def values(dtype: torch.dtype) -> torch.Tensor:
    """Numbers that every dtype can hold, zero among them."""
    whole = torch.arange(24).view(4, 6) % 17
    return (whole + 3j * whole).to(dtype) if dtype.is_complex else whole.to(dtype)


def copied(source: torch.Tensor, destination: torch.Tensor, non_blocking: bool) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Casting complex values to real")
        destination.copy_(source, non_blocking=non_blocking)
    if non_blocking and source.device.type != "cpu":
        torch.accelerator.synchronize()
    return destination.cpu()


@pytest.mark.sampled(7)
@pytest.mark.parametrize("non_blocking", [False, True], ids=["blocking", "non_blocking"])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("to", DTYPES, ids=str)
@pytest.mark.parametrize("frm", DTYPES, ids=str)
def test_dtypes_are_converted_as_on_the_cpu(
    device: torch.device, frm: torch.dtype, to: torch.dtype, direction: str, non_blocking: bool
) -> None:
    host = values(frm)
    expected = copied(host, torch.zeros(4, 6).to(to), False)
    source = host if direction.startswith("host") else host.to(device)
    destination = torch.zeros(4, 6).to(to).to("cpu" if direction.endswith("host") else device)
    assert torch.equal(copied(source, destination, non_blocking), expected)


@pytest.mark.parametrize(
    "dtypes", [(torch.float32, torch.float32), (torch.float32, torch.int64)], ids=["same", "other"]
)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("to", DESTINATIONS)
@pytest.mark.parametrize("frm", SOURCES)
def test_any_layout_is_copied(
    device: torch.device, frm: str, to: str, direction: str, dtypes: tuple[torch.dtype, torch.dtype]
) -> None:
    whole = values(dtypes[0])
    source = SOURCES[frm](whole if direction.startswith("host") else whole.to(device))
    assert torch.equal(source.cpu(), SOURCES[frm](whole))
    empty = torch.zeros(4, 6, dtype=dtypes[1])
    destination = DESTINATIONS[to](empty if direction.endswith("host") else empty.to(device))
    assert torch.equal(copied(source, destination, False), SOURCES[frm](whole).to(dtypes[1]))


ORDERS = [(0, 1, 2), (0, 2, 1), (2, 1, 0), (1, 2, 0)]  # of dimensions in memory
ROOMS = [(order, padding) for order in ORDERS for padding in (0, 3)]


def room(
    bits: torch.Tensor, sides: tuple[int, ...], order: tuple[int, ...], padding: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Memory of the given bits, as far as they go, and a tensor of these sides in it; rows are padded."""
    shape = [sides[d] + padding for d in order]
    count = shape[0] * shape[1] * shape[2]
    memory = bits[:count].view(shape)
    view = memory.permute([order.index(d) for d in range(3)])
    return memory, view[tuple(slice(side) for side in sides)]


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.int8, torch.bfloat16, torch.float32, torch.complex64, torch.complex128], ids=str
)
@pytest.mark.parametrize("sides", [(1, 8, 8), (3, 7, 9), (2, 65, 130), (1, 513, 33), (9, 16, 300)], ids=str)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_matrices_are_turned(device: torch.device, direction: str, sides: tuple[int, ...], dtype: torch.dtype) -> None:
    from_device, to_device = (torch.device("cpu") if word == "host" else device for word in direction.split(" to "))
    words = (sides[0] + 3) * (sides[1] + 3) * (sides[2] + 3)
    high = 2 if dtype == torch.bool else 256
    bits = torch.randint(0, high, (words * dtype.itemsize,), dtype=torch.uint8).view(dtype)
    background = torch.ones(words * dtype.itemsize, dtype=torch.uint8).view(dtype)
    for frm in ROOMS:
        _, source = room(bits, sides, *frm)
        _, moved_source = room(bits.to(from_device), sides, *frm)
        for to in ROOMS:
            expected, view = room(background.clone(), sides, *to)
            view.copy_(source)
            memory, view = room(background.to(to_device, copy=True), sides, *to)
            view.copy_(moved_source)
            assert torch.equal(memory.cpu().view(torch.uint8), expected.view(torch.uint8)), (frm, to)


@pytest.mark.parametrize("threads", [1, 2])
def test_large_matrices_are_turned(device: torch.device, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for shape in ((1000, 2048), (2, 1023, 517), (4, 33, 64, 65)):
            x = torch.randn(shape)
            turned = x.to(device).transpose(-1, -2).contiguous()
            assert torch.equal(turned.cpu(), x.transpose(-1, -2))
        images = x.to(device).to(memory_format=torch.channels_last)
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(images.cpu(), x)
        assert torch.equal(images.contiguous().cpu(), x)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (1, 1, 1)], ids=str)
@pytest.mark.parametrize("to", [torch.float32, torch.int64], ids=str)
def test_scalars_and_empty_tensors_are_copied(device: torch.device, shape: tuple[int, ...], to: torch.dtype) -> None:
    host = torch.full(shape, 3.0)
    on_device = host.to(device).to(to)
    assert on_device.device == device
    assert torch.equal(on_device.cpu(), host.to(to))
    assert torch.equal(on_device.clone().cpu(), host.to(to))


def test_a_source_is_broadcast(device: torch.device) -> None:
    row, number = torch.arange(6.0), torch.tensor(7)
    x = torch.zeros(4, 6, device=device)
    assert torch.equal(x.copy_(row).cpu(), row.expand(4, 6))
    assert torch.equal(x.copy_(number).cpu(), torch.full((4, 6), 7.0))
    assert torch.equal(torch.zeros(4, 6).copy_(row.to(device)), row.expand(4, 6))
    assert torch.equal(x.copy_(number.to(device)).cpu(), torch.full((4, 6), 7.0))


def test_a_tensor_is_copied_over_itself(device: torch.device) -> None:
    x = torch.arange(16.0).view(4, 4)
    y = x.clone().to(device)
    y.copy_(y)
    assert torch.equal(y.cpu(), x)
    y.t().copy_(y.clone())
    assert torch.equal(y.cpu(), x.t())


@pytest.mark.parametrize(
    ("to", "frm"),
    [
        pytest.param(lambda x: x, lambda x: x.t(), id="transpose"),
        pytest.param(lambda x: x.view(-1)[1:], lambda x: x.view(-1)[:-1], id="shifted"),
        pytest.param(lambda x: x[:1].expand(4, 4), lambda x: x.clone(), id="expanded"),
    ],
)
def test_memory_that_would_be_written_while_read_is_refused(device: torch.device, to: Function, frm: Function) -> None:
    x = torch.arange(16.0, device=device).view(4, 4)
    with pytest.raises(RuntimeError, match="single memory location"):
        to(x).copy_(frm(x))
    assert x.view(-1).tolist() == list(range(16))


def test_neighbours_of_the_destination_stay_untouched(device: torch.device) -> None:
    x = torch.zeros(6, 6, device=device)
    x[1:5, ::2].copy_(torch.ones(4, 3))
    x[1:5, 1::2].copy_(torch.full((4, 3), 2, device=device))
    expected = torch.zeros(6, 6)
    expected[1:5, ::2] = 1
    expected[1:5, 1::2] = 2
    assert torch.equal(x.cpu(), expected)


@pytest.mark.parametrize("view", [torch.conj, lambda x: x.conj().imag], ids=["conjugate", "negative"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_lazy_bits_are_resolved(device: torch.device, view: Function, direction: str) -> None:
    z = torch.randn(5, dtype=torch.complex64)
    expected = view(z).clone()
    source = view(z if direction.startswith("host") else z.to(device))
    destination = torch.zeros_like(expected, device="cpu" if direction.endswith("host") else device)
    assert torch.equal(copied(source, destination, False), expected)


def test_large_tensors_are_copied(device: torch.device) -> None:
    host = torch.randn(2**11, 2**12)
    x = host.to(device)
    assert torch.equal(x.cpu(), host)
    assert torch.equal(x.t().contiguous().cpu(), host.t())
    assert torch.equal(x.to(torch.bfloat16).cpu(), host.to(torch.bfloat16))
    assert torch.equal(x[:, 1::3].cpu(), host[:, 1::3])
    assert torch.equal(torch.empty_like(host).t().copy_(x.t()).t(), host)


def test_a_pageable_source_may_be_changed_as_soon_as_the_call_returns(device: torch.device) -> None:
    source = torch.ones(2**22)
    destination = torch.zeros(2**22, device=device)
    busy = torch.ones(2**24, device=device)
    for _ in range(8):
        busy.mul_(2)
    destination.copy_(source, non_blocking=True)
    source.fill_(-1)
    assert (destination.cpu() == 1).all()


def test_a_temporary_source_may_die_as_soon_as_the_call_returns(device: torch.device) -> None:
    copies = [torch.full((2**18,), float(i)).to(device, non_blocking=True) for i in range(32)]
    assert [x[-1].item() for x in copies] == list(range(32))


def test_to_does_not_copy_what_is_there_already(device: torch.device) -> None:
    x = torch.ones(3, device=device)
    assert x.to(device) is x
    assert x.to(device, torch.float32) is x
    assert x.to(device, copy=True) is not x


@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format, torch.preserve_format])
def test_memory_formats(device: torch.device, memory_format: torch.memory_format) -> None:
    host = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    for x in (host.to(device, memory_format=memory_format), host.to(device).clone(memory_format=memory_format)):
        assert x.stride() == host.clone(memory_format=memory_format).stride()
        assert torch.equal(x.cpu(), host)


def address(x: torch.Tensor) -> int:
    """Without the copy that data_ptr() makes of a lazy clone."""
    return torch._C._data_address(x)  # type: ignore[attr-defined, no-any-return]


def test_a_copy_onto_itself_does_nothing_even_where_elements_share_memory(device: torch.device) -> None:
    x = torch.arange(12.0, device=device).view(4, 3)
    column = x[:, 1:2].expand(4, 5)
    column.copy_(column[...])
    assert x.cpu().equal(torch.arange(12.0).view(4, 3))
    with pytest.raises(RuntimeError, match="single memory location"):
        column.copy_(torch.zeros(4, 5, device=device))


def test_a_lazy_clone_shares_memory_until_one_is_written(device: torch.device) -> None:
    """What torch._lazy_clone makes (c10/core/impl/COW.h)."""
    x = torch.arange(6.0, device=device)
    clone = torch._lazy_clone(x)
    clone_of_a_view = torch._lazy_clone(x[2:])
    assert torch.equal((clone + x).cpu(), 2 * torch.arange(6.0))
    assert address(clone) == address(x)
    clone.add_(1)
    x.zero_()
    assert (clone.tolist(), clone_of_a_view.tolist(), x.tolist()) == ([1, 2, 3, 4, 5, 6], [2, 3, 4, 5], [0] * 6)


LAZY_CLONES = {
    "a recorded use of a clone holds its memory": """
        x = torch.ones(N, device="mtia")
        clone = torch._lazy_clone(x)
        side.wait_stream(main)
        with side:
            y = clone + 1
        clone.record_stream(side)
        del x, clone
        z = torch.full((N,), -7.0, device="mtia")  # takes the memory, if it is free
        main.synchronize()
        side.synchronize()
        result = y, 2
    """,
    "a clone that is written on another stream has read what it shared before that is freed": """
        x = torch.ones(N, device="mtia")
        clone = torch._lazy_clone(x)
        side.wait_stream(main)
        with side:
            clone.add_(1)
        del x
        z = torch.full((N,), -7.0, device="mtia")
        main.synchronize()
        side.synchronize()
        result = clone, 2
    """,
    "or written": """
        x = torch.ones(N, device="mtia")
        clone = torch._lazy_clone(x)
        side.wait_stream(main)
        with side:
            clone.add_(1)
        x.fill_(-7)
        main.synchronize()
        side.synchronize()
        result = clone, 2
    """,
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", LAZY_CLONES)
def test_lazy_clones_on_two_streams(run_script: RunScript, case: str) -> None:
    script = """
        import torch
        N = 100_000
        side, main = torch.Stream("mtia"), torch.mtia.current_stream()
        {case}
        result, value = result
        assert (result.cpu() == value).all()
    """
    for seed in ("1", "2"):
        run_script(script.replace("{case}", LAZY_CLONES[case].strip()), TORCH_MTIA_DELAY=seed).output()


@pytest.mark.sampled(5)
@pytest.mark.parametrize("write", ["y.add_(1)", "y[2:].add_(1)", "torch.add(x, 1, out=y)", "x.add_(1)", "y.data_ptr()"])
def test_a_lazy_clone_is_written_on_its_own_device(run_script: RunScript, write: str) -> None:
    script = f"""
        import torch

        def run(device, size):
            x = torch.arange(float(size)).to(device)
            y = torch._lazy_clone(x)
            {write}
            return x, y

        torch.mtia.set_device(1)
        for size in (8, 300_000):
            for result, expected in zip(run("mtia:0", size), run("cpu", size)):
                assert torch.equal(result.cpu(), expected)
                assert result.device.index == 0
        del result
        assert torch.accelerator.max_memory_allocated(1) == 0
    """
    run_script(script, TORCH_MTIA_DEVICES="2").output()


def test_a_lazy_clone_whose_storage_is_resized_has_memory_of_its_own(device: torch.device) -> None:
    x = torch.arange(6.0, device=device)
    clone = torch._lazy_clone(x)
    clone.untyped_storage().resize_(64)
    again = torch._lazy_clone(clone)
    clone.add_(1)
    x.zero_()
    assert again.tolist() == [0, 1, 2, 3, 4, 5]
    assert clone.tolist() == [1, 2, 3, 4, 5, 6]


def test_a_lazy_clone_that_runs_out_of_memory_still_shares(run_script: RunScript) -> None:
    script = """
        import torch
        from torch_mtia.memory import set_per_process_memory_fraction
        x = torch.ones(1 << 23, device="mtia")
        clone = torch._lazy_clone(x)
        torch.mtia.empty_cache()
        set_per_process_memory_fraction(0.0001)
        for _ in range(3):
            try:
                clone.add_(1)
                raise AssertionError("there was memory")
            except torch.OutOfMemoryError:
                pass
        set_per_process_memory_fraction(1.0)
        del x
        other = torch.full((1 << 23,), -7.0, device="mtia")
        assert (clone.cpu() == 1).all()
        clone.add_(1)
        assert (clone.cpu() == 2).all()
    """
    run_script(script).output()


@torch.no_grad()
def test_the_fallback_reads_a_lazy_clone_without_a_copy(device: torch.device) -> None:
    x = torch.eye(3, device=device)
    clone = torch._lazy_clone(x)
    assert torch.linalg.eigvals(clone).cpu().equal(torch.ones(3, dtype=torch.complex64))
    assert address(clone) == address(x)


def test_the_fallback_writes_a_lazy_clone_alone(device: torch.device) -> None:
    x = torch.zeros(3, device=device)
    clone = torch._lazy_clone(x)
    torch.linalg.eigvalsh(torch.eye(3, device=device), out=clone)
    assert x.cpu().equal(torch.zeros(3))
    assert clone.cpu().equal(torch.ones(3))


def test_copies_between_devices(run_script: RunScript) -> None:
    finished = run_script(
        """
        import torch
        host = torch.arange(24.).view(4, 6)
        x = host.to("mtia:0")
        y = x.to("mtia:1")
        assert y.device.index == 1 and torch.equal(y.cpu(), host)
        assert torch.equal(x.t().to("mtia:1", torch.int64).cpu(), host.t().long())
        assert torch.equal(y[:, ::2].to("mtia:0").cpu(), host[:, ::2])
        z = torch.zeros(6, 8, device="mtia:1")[:, ::2]
        assert torch.equal(z.copy_(x.t()[:, :4]).cpu(), host.t())
        assert torch.mtia.current_device() == 0

        # The copy waits for the work of both current streams, and both wait for the copy.
        a = torch.zeros(2**23, device="mtia:0")
        for _ in range(20):
            a.add_(1)
        b = a.to("mtia:1", non_blocking=True)
        a.fill_(-1)
        b.add_(1)
        assert (b.cpu() == 21).all() and (a.cpu() == -1).all()
        """,
        TORCH_MTIA_DEVICES="2",
    )
    finished.output()
