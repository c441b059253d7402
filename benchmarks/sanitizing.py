"""What the sanitizer costs: the same work on the device with it and without it.

    python benchmarks/sanitizing.py
    python benchmarks/sanitizing.py --cases 'kernel'

A ratio of 0.5 is twice the time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from eager import TRAINING_STEPS, digits_step, normal, text_step
from timing import DEVICE, Bar, Case, Side, main, on

from torch_mtia import sanitizer

sys.path.append(str(Path(__file__).parent.parent / "examples"))

STREAMS = ("streams", "memory")
KERNELS = ("streams", "memory", "init", "kernels")
CALLS = 64


def watched(checks: tuple[str, ...], prepare: Callable[[], Side]) -> Side:
    sanitizer.start(*checks)
    return prepare()


def case(name: str, prepare: Callable[[], Side], checks: tuple[str, ...], operations: int, most: float | None) -> Case:
    """`most`: how many times as long it may take."""
    return Case(
        name=f"{name}, {', '.join(checks)}",
        ours=lambda: watched(checks, prepare),
        peer=prepare,
        operations=operations,
        bar=Bar(ratio=1 / most) if most is not None else Bar(),
        note="",
    )


def operator() -> Side:
    x, y = normal(16).to(DEVICE), normal(16).to(DEVICE)
    last: list[torch.Tensor] = []

    def run() -> None:
        for _ in range(CALLS):
            last[:] = [x + y]

    return on(DEVICE, run, lambda: last[0].cpu())


def vector_add() -> Side:
    from triton_vector_add import add

    x, y = normal(1 << 20).to(DEVICE), normal(1 << 20).to(DEVICE)
    return of_kernel(lambda: add(x, y))


def softmax() -> Side:
    from triton_softmax import softmax

    x = normal(1024, 1024).to(DEVICE)
    return of_kernel(lambda: softmax(x))


def matmul() -> Side:
    from triton_matmul import matmul

    x, y = normal(512, 512).to(DEVICE), normal(512, 512).to(DEVICE)
    return of_kernel(lambda: matmul(x, y))


def of_kernel(call: Callable[[], torch.Tensor]) -> Side:
    last: list[torch.Tensor] = []

    def run() -> None:
        last[:] = [call()]

    return on(DEVICE, run, lambda: last[0].cpu())


CASES = (
    case("operator of 16 elements", operator, STREAMS, CALLS, None),
    case("operator of 16 elements", operator, KERNELS, CALLS, None),
    case("training step, digits", lambda: digits_step(DEVICE), STREAMS, TRAINING_STEPS, 3),
    case("training step, text", lambda: text_step(DEVICE), STREAMS, TRAINING_STEPS, 1.5),
    *(case(f"kernel, {of.__name__}", of, KERNELS, 1, 20) for of in (vector_add, softmax, matmul)),
)


if __name__ == "__main__":
    sys.exit(main(CASES, __doc__))
