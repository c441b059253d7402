"""Captured graphs against PyTorch's CPU device running the same programs eagerly, with as many threads.

python benchmarks/graphs.py
python benchmarks/graphs.py --cases chain
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from timing import (
    AS_FAST,
    CPU,
    INDUCTOR,
    SEED,
    Case,
    Group,
    Side,
    Target,
    Tolerance,
    calling,
    main,
    on,
    wait_for_compile_workers,
)
from torch import nn

sys.path.append(str(Path(__file__).parents[1] / "examples"))

CHAIN = 1000  # nodes
LONG_CHAIN = 10_000
LSTM_STEPS = 512
LSTM_WIDTH = 64
BATCH = 8
SUMS = Tolerance(relative=1e-4, absolute=1e-4)
CAPTURED = Group("captured graphs", CPU)
CAPTURE = Group("capture of a graph", "the same operators, eager, on `mtia`")
COMPILED = Group("compiled and captured training steps", INDUCTOR)


def captured(function: Callable[[], object]) -> torch.mtia.MTIAGraph:
    graph = torch.mtia.MTIAGraph()
    with torch.mtia.graph(graph):
        function()
    return graph


def chain(device: str, length: int) -> tuple[Callable[[], None], Callable[[], object]]:
    """A chain of operators on 16 elements, and its result."""
    x = torch.linspace(0, 1, 16).to(device)
    last = [x]

    def run() -> None:
        y = x
        for _ in range(length // 4):
            y = (y * 0.5 + x).neg().abs()
        last[0] = y

    return run, lambda: last[0].cpu()


def eager_chain(device: str, length: int) -> Side:
    run, result = chain(device, length)
    return on(device, run, result)


def captured_chain(length: int) -> Side:
    run, result = chain("mtia", length)
    run()
    graph = captured(run)
    return on("mtia", graph.replay, result)


def capture_of_chain(length: int) -> Side:
    """The capture itself, and the destruction of the graph before it."""
    run, result = chain("mtia", length)
    graph = torch.mtia.MTIAGraph()

    def capture() -> None:
        graph.reset()
        with torch.mtia.graph(graph):
            run()

    def replayed() -> object:
        graph.replay()
        return result()

    return on("mtia", capture, replayed)


def step_of_text(
    device: str, length: int, compile_mode: str | None = None, *, capturable: bool = False
) -> tuple[Callable[[], torch.Tensor], Callable[[], None]]:
    """A training step of the example's transformer, and what restores its initial state."""
    import train_text

    torch.manual_seed(SEED)
    shape = train_text.Shape(alphabet=96, context=length, layers=4, width=128)
    model = train_text.GPT(shape).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True, capturable=capturable)
    characters = torch.randint(shape.alphabet, (BATCH, length + 1)).to(device)
    inputs, targets = characters[:, :-1].contiguous(), characters[:, 1:].contiguous()
    start = [parameter.detach().clone() for parameter in model.parameters()]

    def loss_of_batch() -> torch.Tensor:
        loss: torch.Tensor = train_text.cross_entropy(model(inputs), targets)
        return loss

    forward = loss_of_batch if compile_mode is None else torch.compile(loss_of_batch, mode=compile_mode)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = forward()
        loss.backward()
        optimizer.step()
        return loss.detach()

    def restore() -> None:
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), start, strict=True):
                parameter.copy_(value)
            for state in optimizer.state.values():
                for tensor in state.values():
                    tensor.zero_()

    return step, restore


def eager_step(device: str, length: int) -> Side:
    return calling(device, step_of_text(device, length)[0])


def captured_step(length: int) -> Side:
    step, restore = step_of_text("mtia", length, capturable=True)
    step()  # makes the optimizer's state
    losses: list[torch.Tensor] = []
    graph = captured(lambda: losses.append(step()))
    restore()
    return on("mtia", graph.replay, lambda: losses[0].cpu())


def compiled_step(device: str, length: int) -> Side:
    """Forward and backward are compiled, the optimizer is eager."""
    step, restore = step_of_text(device, length, "reduce-overhead" if device == "mtia" else "default")
    for _ in range(3):  # compiles, records
        step()
    wait_for_compile_workers()
    restore()
    return calling(device, step)


def step_case(length: int, target: Target) -> Case:
    return Case(
        f"training step, sequence {length}",
        CAPTURED,
        mtia=lambda: captured_step(length),
        baseline=lambda: eager_step("cpu", length),
        target=target,
        tolerance=SUMS,
    )


def cells(device: str) -> tuple[Callable[[], None], Callable[[], object]]:
    torch.manual_seed(SEED)
    cell = nn.LSTMCell(LSTM_WIDTH, LSTM_WIDTH).to(device)
    inputs = torch.randn(LSTM_STEPS, 1, LSTM_WIDTH).to(device)
    last: list[torch.Tensor] = []

    @torch.no_grad()
    def run() -> None:
        hidden = torch.zeros(1, LSTM_WIDTH, device=device), torch.zeros(1, LSTM_WIDTH, device=device)
        for x in inputs.unbind():
            hidden = cell(x, hidden)
        last[:] = hidden

    return run, lambda: [tensor.cpu() for tensor in last]


def layer(device: str) -> tuple[Callable[[], None], Callable[[], object]]:
    torch.manual_seed(SEED)
    lstm = nn.LSTM(LSTM_WIDTH, LSTM_WIDTH).to(device)
    inputs = torch.randn(LSTM_STEPS, 1, LSTM_WIDTH).to(device)
    last: list[torch.Tensor] = []

    @torch.no_grad()
    def run() -> None:
        last[:] = [lstm(inputs)[0]]

    return run, lambda: last[0].cpu()


def captured_side(program: tuple[Callable[[], None], Callable[[], object]]) -> Side:
    run, result = program
    run()
    graph = captured(run)
    return on("mtia", graph.replay, result)


CASES: Sequence[Case] = (
    Case(
        f"chain of {CHAIN} nodes",
        CAPTURED,
        mtia=lambda: captured_chain(CHAIN),
        baseline=lambda: eager_chain("cpu", CHAIN),
        operations=CHAIN,
        target=Target(ratio=4.0, most_us=0.25),
    ),
    step_case(16, Target(ratio=1.2)),
    step_case(128, Target()),
    Case(
        f"{LSTM_STEPS} LSTMCell steps",
        CAPTURED,
        mtia=lambda: captured_side(cells("mtia")),
        baseline=lambda: on("cpu", *cells("cpu")),
        target=Target(ratio=4.0),
        tolerance=SUMS,
    ),
    Case(
        f"nn.LSTM over {LSTM_STEPS} steps",
        CAPTURED,
        mtia=lambda: captured_side(layer("mtia")),
        baseline=lambda: on("cpu", *layer("cpu")),
        target=AS_FAST,
        tolerance=SUMS,
    ),
    Case(
        f"capture of {LONG_CHAIN} nodes",
        CAPTURE,
        mtia=lambda: capture_of_chain(LONG_CHAIN),
        baseline=lambda: eager_chain("mtia", LONG_CHAIN),
        operations=LONG_CHAIN,
        target=Target(ratio=0.2),
    ),
    Case(
        "compiled training step, sequence 16",
        COMPILED,
        mtia=lambda: compiled_step("mtia", 16),
        baseline=lambda: compiled_step("cpu", 16),
        target=Target(ratio=1.2),
        tolerance=SUMS,
    ),
)


if __name__ == "__main__":
    sys.exit(main(CASES, __doc__))
