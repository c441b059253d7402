"""What the sanitizer costs: the same work on the device with and without the sanitizer.

    python benchmarks/sanitizing.py
    python benchmarks/sanitizing.py --cases 'kernel'

A ratio of 0.5 is twice the time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from eager import TRAINING_STEPS, digits_step, text_step
from timing import DEVICE, MEBIBYTE, Case, Group, Side, Target, calling, main, normal

from torch_mtia import sanitizer

sys.path.append(str(Path(__file__).parent.parent / "examples"))

STREAMS = ("streams", "memory")
KERNELS = ("streams", "memory", "init", "kernels")
CALLS = 64

UNSANITIZED = "`mtia` without the sanitizer"
OPERATORS = Group("sanitized operators", UNSANITIZED)
STEPS = Group("sanitized training steps", UNSANITIZED)
TRITON = Group("sanitized Triton kernels", UNSANITIZED)


def sanitized(checks: tuple[str, ...], prepare: Callable[[], Side]) -> Side:
    sanitizer.start(*checks)
    return prepare()


def case(
    name: str,
    group: Group,
    prepare: Callable[[], Side],
    checks: tuple[str, ...],
    operations: int = 1,
    most: float | None = None,
) -> Case:
    """`most`: how many times as long it may take."""
    return Case(
        f"{name}, {', '.join(checks)}",
        group,
        mtia=lambda: sanitized(checks, prepare),
        baseline=prepare,
        operations=operations,
        target=Target() if most is None else Target(ratio=1 / most),
    )


def operator() -> Side:
    x, y = normal(16).to(DEVICE), normal(16).to(DEVICE)
    return calling(DEVICE, lambda: x + y, calls=CALLS)


def vector_add() -> Side:
    from triton_vector_add import add

    x, y = normal(MEBIBYTE).to(DEVICE), normal(MEBIBYTE).to(DEVICE)
    return calling(DEVICE, lambda: add(x, y))


def softmax() -> Side:
    from triton_softmax import softmax

    x = normal(1024, 1024).to(DEVICE)
    return calling(DEVICE, lambda: softmax(x))


def matmul() -> Side:
    from triton_matmul import matmul

    x, y = normal(512, 512).to(DEVICE), normal(512, 512).to(DEVICE)
    return calling(DEVICE, lambda: matmul(x, y))


CASES = (
    case("operator of 16 elements", OPERATORS, operator, STREAMS, CALLS),
    case("operator of 16 elements", OPERATORS, operator, KERNELS, CALLS),
    case("training step, digits", STEPS, lambda: digits_step(DEVICE), STREAMS, TRAINING_STEPS, 3),
    case("training step, text", STEPS, lambda: text_step(DEVICE), STREAMS, TRAINING_STEPS, 1.5),
    *(case(of.__name__, TRITON, of, KERNELS, most=20) for of in (vector_add, softmax, matmul)),
)


if __name__ == "__main__":
    sys.exit(main(CASES, __doc__))
