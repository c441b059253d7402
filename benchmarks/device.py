"""The execution model of the device against PyTorch's CPU device: chains of operators, copies, fall backs, launches.

python benchmarks/device.py                      # everything, some minutes
python benchmarks/device.py --cases 'chain 1M'   # a part
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

import torch
from timing import SAME_KERNEL, Bar, Case, Comparison, Side, main

SEED = 0
MEBIBYTE = 2**20

# elements, operators in a chain, least ratio to the CPU. The device is waited for at the end of each chain.
CHAINS: tuple[tuple[str, int, int, float | None], ...] = (
    ("16", 16, 64, 0.9),
    ("4K", 4 * 1024, 64, None),
    ("64K", 64 * 1024, 64, None),
    ("1M", MEBIBYTE, 16, 0.95),
    ("16M", 16 * MEBIBYTE, 16, 0.95),
)
DIRECTIONS = ("forward", "forward+backward")
HOSTS = ("idle", "busy")  # what the host does between two operators


def chain_case(label: str, elements: int, operators: int, ratio: float | None, direction: str, host: str) -> Case:
    return Case(
        name=f"chain {label}, {direction}, host {host}",
        make=lambda: chain(elements, operators, backward=direction != "forward", busy=host == "busy"),
        operations=operators,
        bar=Bar(ratio=ratio),
        note=SAME_KERNEL,
    )


CASES = (
    *(chain_case(*row, direction, host) for row in CHAINS for direction in DIRECTIONS for host in HOSTS),
    Case("copy 256 MiB, host to device", lambda: copy(to_device=True), 1, "memmove", Bar(ratio=0.9), "memory floor"),
    Case("copy 256 MiB, device to host", lambda: copy(to_device=False), 1, "memmove", Bar(ratio=0.9), "memory floor"),
    Case("fall back 16", lambda: fall_back(16, 16), 16, "cpu", Bar(excess_us=3), SAME_KERNEL),
    Case("fall back 16M", lambda: fall_back(16 * MEBIBYTE, 1), 1, "cpu", Bar(ratio=0.95), SAME_KERNEL),
    Case("launch of nothing, inline", lambda: launches(True), 100_000, "", note="ours only"),
    Case("launch of nothing, queued", lambda: launches(False), 100_000, "", note="ours only"),
)


def host_work() -> None:
    """What the host is busy with: a fixed amount of Python, about five microseconds."""
    for _ in range(500):
        pass


def nothing() -> None:
    pass


def on(device: str, run: Callable[[], object], result: Callable[[], object]) -> Side:
    return Side(run, torch.accelerator.synchronize if device == "mtia" else nothing, result)


# Chains --------------------------------------------------------------------------------------------------------------


def chain(elements: int, operators: int, backward: bool, busy: bool) -> Comparison:
    """mul, add, relu, mul, ... each on the result of the one before. Backward takes each operator back once."""
    generator = torch.Generator().manual_seed(SEED)
    x, shift = (torch.randn(elements, generator=generator) for _ in range(2))
    factor = torch.rand(elements, generator=generator) + 0.5

    def side(device: str) -> Side:
        return chain_on(device, [x, factor, shift * 0.1], operators, backward, host_work if busy else None)

    return Comparison(side("mtia"), side("cpu"))


def chain_on(
    device: str, operands: list[torch.Tensor], operators: int, backward: bool, between: Callable[[], None] | None
) -> Side:
    x, factor, shift = (operand.to(device, copy=True) for operand in operands)
    gradient = torch.ones_like(x)
    x.requires_grad_(backward)
    cycle: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
        lambda y: torch.mul(y, factor),
        lambda y: torch.add(y, shift),
        torch.relu,
    )
    links = [cycle[i % 3] for i in range(operators)]
    last: list[torch.Tensor] = []

    def run() -> None:
        last.clear()
        x.grad = None
        y = x
        for link in links:
            y = link(y)
            if between is not None:
                between()
        if backward:
            y.backward(gradient)
        last.append(y.detach())

    def result() -> list[torch.Tensor]:
        return [last[0].cpu(), *([x.grad.cpu()] if x.grad is not None else [])]

    return on(device, run, result)


# Copies --------------------------------------------------------------------------------------------------------------


def copy(to_device: bool) -> Comparison:
    size = 256 * MEBIBYTE
    generator = torch.Generator().manual_seed(SEED)
    host = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)
    there = host.to("mtia")
    destination, copied = torch.zeros_like(there if to_device else host), torch.zeros_like(host)
    source = host if to_device else there

    def by_us() -> None:
        destination.copy_(source)

    def by_memmove() -> None:
        ctypes.memmove(copied.data_ptr(), host.data_ptr(), size)

    return Comparison(
        on("mtia", by_us, lambda: bool(torch.equal(destination.cpu(), host))),
        on("cpu", by_memmove, lambda: bool(torch.equal(copied, host))),
    )


# Fall backs ----------------------------------------------------------------------------------------------------------


def fall_back(elements: int, calls: int) -> Comparison:
    x = torch.linspace(-3, 3, elements)
    native = torch._C._dispatch_get_registrations_for_dispatch_key("MTIA")
    if any(name.startswith("aten::special_i0e") for name in native):
        sys.exit("aten::special_i0e has become native: take another operator for the fall back cases")

    def side(device: str) -> Side:
        operand = x.to(device)
        last: list[torch.Tensor] = []

        def run() -> None:
            for _ in range(calls):
                last[:] = [torch.special.i0e(operand)]

        return on(device, run, lambda: last[0].cpu())

    return Comparison(side("mtia"), side("cpu"))


# Launches ------------------------------------------------------------------------------------------------------------


def launches(inline: bool) -> Comparison:
    from torch_mtia import _C

    return Comparison(on("mtia", lambda: _C._bench_launch(100_000, inline), lambda: None))


if __name__ == "__main__":
    sys.exit(main(CASES, __doc__))
