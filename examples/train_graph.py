"""Trains a small network eagerly and with a graph of the whole training step, and compares losses and times.

python examples/train_graph.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

STEPS = 300
BATCH = 64
WIDTH = 16
CLASSES = 4


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, CLASSES))


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Points around the corners of a simplex, and which corner it was."""
    generator = torch.Generator().manual_seed(1)
    targets = torch.randint(CLASSES, (STEPS, BATCH), generator=generator)
    corners = torch.eye(CLASSES, WIDTH)
    return corners[targets] + 0.5 * torch.randn(STEPS, BATCH, WIDTH, generator=generator), targets


def captured(step: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    graph = torch.mtia.MTIAGraph()
    with torch.mtia.graph(graph):
        loss = step()

    def replay() -> torch.Tensor:
        graph.replay()
        return loss

    return replay


def train(with_graph: bool) -> tuple[list[float], float]:
    """The loss of each step, and the seconds of a step."""
    model = network().to("mtia")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, capturable=True)
    all_inputs, all_targets = (tensor.to("mtia") for tensor in data())
    inputs, targets = all_inputs[0].clone(), all_targets[0].clone()
    losses = torch.zeros(STEPS, device="mtia")

    def load(number: int) -> None:
        inputs.copy_(all_inputs[number])
        targets.copy_(all_targets[number])

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    losses[0] = step()  # warm-up, and the first step
    run = captured(step) if with_graph else step
    torch.mtia.synchronize()
    start = time.perf_counter()
    for number in range(1, STEPS):
        load(number)
        losses[number] = run()
    torch.mtia.synchronize()
    return losses.tolist(), (time.perf_counter() - start) / (STEPS - 1)


def main() -> None:
    eager, eager_seconds = train(with_graph=False)
    graph, graph_seconds = train(with_graph=True)
    assert eager == graph, "a replay computes what the eager step does"
    print(f"loss: {eager[0]:.3f} at first, {eager[-1]:.3f} after {STEPS} steps, the same with and without a graph")
    print(f"a step takes {eager_seconds * 1e6:.0f} us eagerly, {graph_seconds * 1e6:.0f} us as a replay")


if __name__ == "__main__":
    main()
