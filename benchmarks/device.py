"""The execution model of the device against PyTorch's CPU device: chains of operators, copies, fallbacks, launches.

All cases take some minutes, some of them less:
    python benchmarks/device.py
    python benchmarks/device.py --cases 'chain 1M'
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

import native_loops
import torch
from timing import CPU, MEBIBYTE, SEED, Case, Group, Side, Target, calling, main, on

LAUNCHES = 100_000

SAME_KERNELS = "Both sides run ATen's own kernels."
SMALL_CHAINS = Group("chains of small operators", CPU, about=f"{SAME_KERNELS} Up to 16K elements.")
LARGE_CHAINS = Group("chains of large operators", CPU, about=f"{SAME_KERNELS} 64K elements and more.")
COPIES = Group("copies of 256 MiB", "`memmove`", about="Both sides move bytes and do nothing else.")
FALLBACKS = Group("CPU fallback", CPU, about=SAME_KERNELS)
LAUNCH = Group("launch of an empty kernel", "")

# elements, operators in a chain, least ratio to the CPU. The device is waited for at the end of each chain.
CHAINS: tuple[tuple[str, int, int, float], ...] = (
    ("16", 16, 64, 0.9),
    ("4K", 4 * 1024, 64, 0.95),
    ("16K", 16 * 1024, 64, 0.95),
    ("64K", 64 * 1024, 64, 0.95),
    ("256K", 256 * 1024, 32, 0.95),
    ("1M", MEBIBYTE, 16, 0.95),
    ("16M", 16 * MEBIBYTE, 16, 0.95),
)
DIRECTIONS = ("forward", "forward+backward")
HOSTS = ("idle", "busy")  # what the host does between two operators


def host_work() -> None:
    """What the host is busy with: a fixed amount of Python, about five microseconds."""
    for _ in range(500):
        pass


def chain_case(label: str, elements: int, operators: int, ratio: float, direction: str, host: str) -> Case:
    backward, between = direction != "forward", host_work if host == "busy" else None
    return Case(
        f"chain {label}, {direction}, host {host}",
        SMALL_CHAINS if elements <= 16 * 1024 else LARGE_CHAINS,
        mtia=lambda: chain("mtia", elements, operators, backward, between),
        baseline=lambda: chain("cpu", elements, operators, backward, between),
        operations=operators,
        target=Target(ratio=ratio),
    )


def copy_case(name: str, mtia: Callable[[], Side]) -> Case:
    return Case(name, COPIES, mtia, lambda: memmove(), target=Target(ratio=0.9))


def fallback_case(label: str, elements: int, calls: int, target: Target) -> Case:
    return Case(
        f"fallback {label}",
        FALLBACKS,
        mtia=lambda: fallback("mtia", elements, calls),
        baseline=lambda: fallback("cpu", elements, calls),
        operations=calls,
        target=target,
    )


def launch_case(way: str) -> Case:
    return Case(f"launch, {way}", LAUNCH, lambda: launches(way == "inline"), operations=LAUNCHES)


CASES = (
    *(chain_case(*row, direction, host) for row in CHAINS for direction in DIRECTIONS for host in HOSTS),
    copy_case("copy 256 MiB, host to device", lambda: copy(to_device=True)),
    copy_case("copy 256 MiB, device to host", lambda: copy(to_device=False)),
    fallback_case("16", 16, 16, Target(excess_us=3)),
    fallback_case("16M", 16 * MEBIBYTE, 1, Target(ratio=0.95)),
    launch_case("inline"),
    launch_case("queued"),
)


# Chains --------------------------------------------------------------------------------------------------------------


def chain(device: str, elements: int, operators: int, backward: bool, between: Callable[[], None] | None) -> Side:
    """mul, add, relu, mul, ... each on the result of the one before. Backward takes each operator back once."""
    generator = torch.Generator().manual_seed(SEED)
    x = torch.randn(elements, generator=generator).to(device).requires_grad_(backward)
    factor = (torch.rand(elements, generator=generator) + 0.5).to(device)
    shift = (torch.randn(elements, generator=generator) * 0.1).to(device)
    gradient = torch.ones_like(factor)
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


def random_bytes() -> torch.Tensor:
    generator = torch.Generator().manual_seed(SEED)
    return torch.randint(0, 256, (256 * MEBIBYTE,), dtype=torch.uint8, generator=generator)


def copy(to_device: bool) -> Side:
    host = random_bytes()
    source = host if to_device else host.to("mtia")
    destination = torch.zeros_like(host, device="mtia" if to_device else "cpu")
    return on("mtia", lambda: destination.copy_(source), lambda: torch.equal(destination.cpu(), host))


def memmove() -> Side:
    source = random_bytes()
    destination = torch.zeros_like(source)

    def run() -> None:
        ctypes.memmove(destination.data_ptr(), source.data_ptr(), source.nbytes)

    return on("cpu", run, lambda: torch.equal(destination, source))


# Fallbacks -----------------------------------------------------------------------------------------------------------


def fallback(device: str, elements: int, calls: int) -> Side:
    native = torch._C._dispatch_get_registrations_for_dispatch_key("MTIA")
    assert "aten::_dirichlet_grad" not in native, "it has become native: take another operator"
    x = torch.linspace(0.1, 0.9, elements).to(device)
    return calling(device, lambda: torch._dirichlet_grad(x, x, x), calls=calls)


# Launches ------------------------------------------------------------------------------------------------------------


def launches(inline: bool) -> Side:
    return on("mtia", lambda: native_loops.launch("mtia", LAUNCHES, inline), lambda: LAUNCHES)


if __name__ == "__main__":
    sys.exit(main(CASES, __doc__))
