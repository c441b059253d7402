"""Compares the cost model's constants with this machine, on one thread of the CPU: those of csrc/aten/Launch.h and
csrc/runtime/host/work.h, and the weights of operators in yaml/native_functions.yaml.

The constants decide which work is small or large, so a factor of two is accurate enough. Takes half a minute:
    python benchmarks/costs.py
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("csrc/aten/Launch.h", "csrc/runtime/host/work.h", "csrc/aten/PointwiseKernels.cpp")
KIBIBYTE = 2**10


def constants() -> dict[str, int]:
    text = "".join((ROOT / header).read_text() for header in SOURCES)
    found = re.findall(r"constexpr \w+ (k\w+) = (\d+);", text)
    rows = (ROOT / "yaml" / "native_functions.yaml").read_text()
    weights = re.findall(r"^- \{?operator: (\w+),?\s(?:(?!^- ).)*?\bweight: (\d+)", rows, re.MULTILINE | re.DOTALL)
    return {name: int(value) for name, value in [*found, *weights]}


def nanoseconds(call: Callable[[], object]) -> float:
    """The median of 31 rounds, each of which takes a millisecond or more."""
    call()
    start, calls = time.perf_counter_ns(), 0
    while time.perf_counter_ns() - start < 1_000_000:
        call()
        calls += 1
    rounds = []
    for _ in range(31):
        start = time.perf_counter_ns()
        for _ in range(calls):
            call()
        rounds.append((time.perf_counter_ns() - start) / calls)
    return statistics.median(rounds)


def beyond_the_call(call: Callable[[], object], small: Callable[[], object]) -> float:
    """Nanoseconds of the work alone: a call of the same operator on one element is subtracted."""
    return max(nanoseconds(call) - nanoseconds(small), 1.0)


def bytes_per_nanosecond() -> float:
    """The bandwidth of an addition whose operands and result, 384 KiB together, stay in the second-level cache."""
    a, b, out = (torch.ones(32 * KIBIBYTE) for _ in range(3))
    c, d, little = (torch.ones(1) for _ in range(3))
    return 12 * a.numel() / beyond_the_call(lambda: torch.add(a, b, out=out), lambda: torch.add(c, d, out=little))


def weight(call: Callable[[torch.Tensor], object], tensors: int = 2) -> float:
    """The time of a call over that of moving its tensors at kBytesPerNanosecond."""
    large, small = torch.rand(512, 64), torch.rand(1, 64)
    moved = 4 * tensors * large.numel() / constants()["kBytesPerNanosecond"]
    return beyond_the_call(lambda: call(large), lambda: call(small)) / moved


def sampling_weight() -> float:
    """The same ratio for bilinear samples, one for each element of an image of four channels."""
    image, grid = torch.rand(1, 4, 64, 64), torch.rand(1, 64, 64, 2) * 2 - 1
    pixel, point = torch.rand(1, 4, 1, 1), torch.zeros(1, 1, 1, 2)
    moved = 4 * (2 * image.numel() + grid.numel()) / constants()["kBytesPerNanosecond"]
    return (
        beyond_the_call(
            lambda: F.grid_sample(image, grid, align_corners=False),
            lambda: F.grid_sample(pixel, point, align_corners=False),
        )
        / moved
    )


def operations_per_nanosecond() -> float:
    a, out = torch.ones(512, 512), torch.empty(512, 512)
    return 2 * 512**3 / nanoseconds(lambda: torch.mm(a, a, out=out))


def nanoseconds_per_tensor() -> float:
    tensors = [torch.ones(16) for _ in range(128)]
    return nanoseconds(lambda: torch._foreach_add_(tensors, 1.0)) / len(tensors)


def copied_bytes_per_nanosecond() -> float:
    source, target = (torch.ones(64 * KIBIBYTE) for _ in range(2))
    little, least = (torch.ones(1) for _ in range(2))
    return 4 * source.numel() / beyond_the_call(lambda: target.copy_(source), lambda: little.copy_(least))


def main() -> None:
    torch.set_num_threads(1)
    measured = {
        "kBytesPerNanosecond": bytes_per_nanosecond,
        "kOperationsPerNanosecond": operations_per_nanosecond,
        "kActivationWeight": lambda: weight(F.gelu),
        "binary_cross_entropy": lambda: weight(lambda x: F.binary_cross_entropy(x, x, reduction="none"), tensors=3),
        "native_layer_norm": lambda: weight(lambda x: F.layer_norm(x, x.shape[1:])),
        "_fft_c2c": lambda: weight(lambda x: torch.fft.fft(torch.view_as_complex(x.view(-1, 32, 2)))),
        "grid_sampler_2d": sampling_weight,
        "kNanosecondsPerTensor": nanoseconds_per_tensor,
        "kBytesPerNs": copied_bytes_per_nanosecond,
    }
    print(f"{'constant':28}{'source':>10}{'measured':>10}")
    for name, measure in measured.items():
        print(f"{name:28}{constants()[name]:10}{measure():10.1f}")


if __name__ == "__main__":
    main()
