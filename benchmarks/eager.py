"""Operators, optimizer steps and training steps against PyTorch's CPU device with as many threads.

All cases take some minutes, some of them less:
    python benchmarks/eager.py
    python benchmarks/eager.py --cases 'small'
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from timing import (
    AS_FAST,
    CPU,
    DEVICE,
    MEBIBYTE,
    SEED,
    Case,
    Group,
    Side,
    Target,
    Tolerance,
    is_known_to_onednn,
    main,
    normal,
    on,
)
from torch.nn import functional as F

sys.path.append(str(Path(__file__).parent.parent / "examples"))  # the models of the training steps


@dataclasses.dataclass(frozen=True)
class Operator:
    name: str
    call: Callable[..., torch.Tensor]
    operands: Callable[[], Sequence[torch.Tensor]]  # of the CPU; the floating-point ones get gradients
    tolerance: Tolerance | None = None
    calls: int = 4  # between two waits for the device


def indices(below: int, *shape: int) -> torch.Tensor:
    return torch.randint(below, shape)


# Both sides run the same kernels, but may split the work differently, and the rounding of sums depends on the split.
SUMS = Tolerance(relative=1e-4, absolute=1e-4)
LONG_SUMS = Tolerance(relative=1e-4, absolute=2e-2)  # of 16M values, whose partial sums reach some thousand
# Sums of 2048 terms in fp32, from two libraries. Each partial sum is rounded, so a result has an error with a standard
# deviation of 2048 * 2**-24 / sqrt(6) = 5e-5. Some of 4M results are off by six standard deviations.
DEEP_SUMS = Tolerance(relative=1e-4, absolute=5e-4)
BF16_SUMS = Tolerance(relative=2e-2, absolute=0.5)  # one unit in the last place of values up to some hundred

SMALL_CALLS = 64
SMALL: tuple[Operator, ...] = (
    Operator("add", torch.add, lambda: [normal(16), normal(16)]),
    Operator("mul", torch.mul, lambda: [normal(16), normal(16)]),
    Operator("relu", torch.relu, lambda: [normal(16)]),
    Operator("exp", torch.exp, lambda: [normal(16)]),
    Operator("sum", torch.sum, lambda: [normal(16)]),
    Operator("softmax", lambda x: torch.softmax(x, -1), lambda: [normal(16)]),
    Operator("view + add", lambda x, y: x.view(4, 4) + y, lambda: [normal(16), normal(4, 4)]),
    Operator("index_select", lambda x, i: x.index_select(0, i), lambda: [normal(16), indices(16, 16)]),
    Operator("cat", lambda x, y: torch.cat([x, y]), lambda: [normal(8), normal(8)]),
    Operator("where", torch.where, lambda: [normal(16) > 0, normal(16), normal(16)]),
    Operator("addmm", torch.addmm, lambda: [normal(4), normal(4, 4), normal(4, 4)]),
    Operator("layer_norm", lambda x, w, b: F.layer_norm(x, (16,), w, b), lambda: [normal(16) for _ in range(3)]),
)


HALF_MATMULS = ((2048 if is_known_to_onednn(torch.bfloat16) else 512, torch.bfloat16), (512, torch.float16))


def half_matmul(size: int, dtype: torch.dtype) -> Operator:
    name = f"matmul {size}, {str(dtype).removeprefix('torch.')}"
    return Operator(name, torch.matmul, lambda: [normal(size, size, dtype=dtype) for _ in range(2)], BF16_SUMS)


LARGE: tuple[Operator, ...] = (
    Operator("gelu 16M", F.gelu, lambda: [normal(16 * MEBIBYTE)]),
    Operator("add 16M", torch.add, lambda: [normal(16 * MEBIBYTE), normal(16 * MEBIBYTE)]),
    Operator("transposed copy 2048 x 2048", lambda x: x.t().contiguous(), lambda: [normal(2048, 2048)]),
    Operator(
        "copy to channels last 32 x 64 x 56 x 56",
        lambda x: x.contiguous(memory_format=torch.channels_last),
        lambda: [normal(32, 64, 56, 56)],
    ),
    Operator("sum 16M", torch.sum, lambda: [normal(16 * MEBIBYTE)], LONG_SUMS),
    Operator("softmax 4K x 4K", lambda x: torch.softmax(x, -1), lambda: [normal(4096, 4096)]),
    Operator(
        "layer_norm 4K x 4K",
        lambda x, w, b: F.layer_norm(x, (4096,), w, b),
        lambda: [normal(4096, 4096), normal(4096), normal(4096)],
        SUMS,
    ),
    Operator(
        "batch_norm 32 x 128 x 64 x 64",
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        lambda: [normal(32, 128, 64, 64), normal(128), normal(128)],
        Tolerance(relative=1e-4, absolute=1e-3),
    ),
    Operator("matmul 2048, float32", torch.matmul, lambda: [normal(2048, 2048), normal(2048, 2048)], DEEP_SUMS),
    *(half_matmul(size, dtype) for size, dtype in HALF_MATMULS if is_known_to_onednn(dtype)),
    *(
        Operator(
            f"conv2d {channels} x {side} x {side}",
            lambda x, w: F.conv2d(x, w, padding=1),
            lambda channels=channels, side=side: [  # type: ignore[misc]
                normal(8, channels, side, side),
                normal(channels, channels, 3, 3),
            ],
            Tolerance(relative=1e-4, absolute=1e-2),
        )
        for channels, side in ((64, 56), (128, 28), (256, 14), (512, 7))  # the stages of ResNet
    ),
    Operator(
        "embedding 16K of 32K x 512",
        lambda i, w: F.embedding(i, w),
        lambda: [indices(32 * 1024, 16 * 1024), normal(32 * 1024, 512)],
        SUMS,
    ),
    Operator(
        "cross_entropy 2K x 8K",
        lambda x, i: F.cross_entropy(x, i),
        lambda: [normal(2048, 8192), indices(8192, 2048)],
        SUMS,
    ),
    Operator(
        "attention B2 H8 T1024 D64",
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
        lambda: [normal(2, 8, 1024, 64) for _ in range(3)],
        SUMS,
    ),
)

# Where `mtia` upcasts, as the processor has no instructions for the dtype.
UPCAST = tuple(half_matmul(size, dtype) for size, dtype in HALF_MATMULS if not is_known_to_onednn(dtype))

# steps x batch x features; the hidden size is the number of features.
RECURRENT: tuple[Operator, ...] = tuple(
    Operator(
        f"LSTM {steps} x {batch} x {features}, {str(dtype).removeprefix('torch.')}",
        lambda x, h, c, *weights: torch.lstm(x, (h, c), weights, True, 1, 0.0, False, False, False)[0],
        lambda steps=steps, batch=batch, features=features, dtype=dtype: [  # type: ignore[misc]
            normal(steps, batch, features, dtype=dtype),
            *(normal(1, batch, features, dtype=dtype) for _ in range(2)),
            *(normal(4 * features, features, dtype=dtype) / 16 for _ in range(2)),
            *(normal(4 * features, dtype=dtype) for _ in range(2)),
        ],
        SUMS if dtype == torch.float32 else BF16_SUMS,
    )
    for steps, batch, features in ((512, 1, 64), (512, 8, 128))
    for dtype in (torch.float32, torch.bfloat16)
    if is_known_to_onednn(dtype)  # without its instructions, the two sides round differently
)

SAME_KERNELS = "Both sides run the same kernels."
SMALL_GROUP = Group("small operators", CPU, AS_FAST, about=f"{SAME_KERNELS} 16 elements.")
LARGE_GROUP = Group("large operators", CPU, about="Most run the same kernels on both sides.")
UPCAST_GROUP = Group(
    "upcast matmuls", CPU, about="Only `mtia` upcasts: the processor has no instructions for the dtype."
)
RECURRENT_GROUP = Group("LSTM layers", CPU, about=SAME_KERNELS)
OPTIMIZER_GROUP = Group("optimizer steps", CPU, about=SAME_KERNELS)
TRAINING_GROUP = Group("training steps", CPU, about="The steps of `make demo` and `make demo-text`.")
TRAINING_STEPS = 8  # between two waits for the device
OPTIMIZER_STEPS = 4
# 10M parameters in tensors like those of a transformer.
PARAMETERS = ((512, 1024), (512,)) * 20


def operator_case(operator: Operator, prefix: str, calls: int, target: Target, group: Group, backward: bool) -> Case:
    return Case(
        f"{prefix}{operator.name}{', forward+backward' if backward else ''}",
        group,
        mtia=lambda: apply(DEVICE, operator, calls, backward),
        baseline=lambda: apply("cpu", operator, calls, backward),
        operations=calls,
        target=target,
        tolerance=operator.tolerance,
    )


def adamw_case(way: str, target: Target) -> Case:
    return Case(
        f"AdamW step, 10M parameters, {way}",
        OPTIMIZER_GROUP,
        mtia=lambda: adamw(DEVICE, way),
        baseline=lambda: adamw("cpu", way),
        operations=OPTIMIZER_STEPS,
        target=target,
    )


def training_case(name: str, prepare: Callable[[str], Side]) -> Case:
    return Case(
        f"training step, {name}",
        TRAINING_GROUP,
        mtia=lambda: prepare(DEVICE),
        baseline=lambda: prepare("cpu"),
        operations=TRAINING_STEPS,
        target=AS_FAST,
        tolerance=SUMS,
    )


WAYS = (False, True)  # forward, forward and backward

CASES = (
    *(operator_case(row, "small ", SMALL_CALLS, Target(ratio=0.9), SMALL_GROUP, backward=False) for row in SMALL),
    *(
        operator_case(row, "", row.calls, Target(ratio=0.95), LARGE_GROUP, way)
        for row in LARGE
        for way in (False, True)
    ),
    *(operator_case(row, "", row.calls, Target(ratio=0.95), UPCAST_GROUP, way) for row in UPCAST for way in WAYS),
    *(operator_case(row, "", row.calls, AS_FAST, RECURRENT_GROUP, way) for row in RECURRENT for way in WAYS),
    adamw_case("foreach", Target(ratio=0.95)),
    adamw_case("fused", Target()),
    training_case("digits", lambda device: digits_step(device)),
    training_case("text", lambda device: text_step(device)),
)


def apply(device: str, operator: Operator, calls: int, backward: bool) -> Side:
    """Calls the operator several times on the same operands, forward, or forward and backward."""
    torch.manual_seed(SEED)
    operands = [operand.to(device) for operand in operator.operands()]
    differentiable = [operand.requires_grad_() for operand in operands if backward and operand.is_floating_point()]
    gradient = torch.randn(operator.call(*operands).shape).to(device) if backward else None
    last: list[torch.Tensor] = []

    def run() -> None:
        for _ in range(calls):
            last.clear()
            y = operator.call(*operands)
            if gradient is not None:
                for operand in differentiable:
                    operand.grad = None
                y.backward(gradient)
            last.append(y.detach())

    return on(device, run, lambda: [last[0].cpu(), *(x.grad.cpu() for x in differentiable if x.grad is not None)])


def adamw(device: str, way: str) -> Side:
    torch.manual_seed(SEED)
    parameters = [normal(*shape).to(device).requires_grad_() for shape in PARAMETERS]
    for parameter in parameters:
        parameter.grad = normal(*parameter.shape).to(device)
    optimizer = torch.optim.AdamW(parameters, foreach=way == "foreach", fused=way == "fused")

    def run() -> None:
        for _ in range(OPTIMIZER_STEPS):
            optimizer.step()

    return on(device, run, lambda: [parameter.detach().cpu() for parameter in parameters])


def digits_step(device: str) -> Side:
    import train_digits

    training = train_digits.training(device, SEED)
    images, labels = torch.rand(train_digits.BATCH_SIZE, 1, 8, 8), indices(10, train_digits.BATCH_SIZE)
    return training_steps(device, training.step, images, labels)


def text_step(device: str) -> Side:
    import train_text

    shape = train_text.Shape(alphabet=96)
    training = train_text.training(device, shape, steps=10**6, seed=SEED)  # so many that the learning rate is constant
    characters = indices(shape.alphabet, train_text.BATCH_SIZE, shape.context + 1)
    return training_steps(device, training.step, characters[:, :-1], characters[:, 1:])


def training_steps(
    device: str, step: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], inputs: torch.Tensor, targets: torch.Tensor
) -> Side:
    """Steps on one batch, which is on the device. The result is the losses of one run."""
    inputs, targets = inputs.to(device), targets.to(device)
    losses: list[torch.Tensor] = []

    def run() -> None:
        losses[:] = [step(inputs, targets) for _ in range(TRAINING_STEPS)]

    return on(device, run, lambda: [loss.item() for loss in losses])


if __name__ == "__main__":
    sys.exit(main(CASES, __doc__))
