"""Whole training steps in a graph: they train as eager steps do, with gradients, optimizers, dropout and AMP."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.capturing import capture

EXAMPLES = Path(__file__).parents[1] / "examples"

Step = Callable[[], torch.Tensor]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)).to("mtia")


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, 16, 8, generator=generator)
    targets = torch.randint(4, (count, 16), generator=generator)
    return [(x.to("mtia"), y.to("mtia")) for x, y in zip(inputs, targets, strict=True)]


def losses(make_step: Callable[[torch.Tensor, torch.Tensor], Step], captured: bool, steps: int = 12) -> list[float]:
    """The losses of the steps; the first three are eager in both cases, as warm-up."""
    data = batches(steps)
    x, y = (tensor.clone() for tensor in data[0])
    step = make_step(x, y)
    result = []
    for number, (inputs, targets) in enumerate(data):
        x.copy_(inputs)
        y.copy_(targets)
        if number == 3 and captured:
            graph, loss = capture(step)
        if number >= 3 and captured:
            graph.replay()
        else:
            loss = step()
        result.append(loss.item())
    return result


@dataclasses.dataclass(frozen=True)
class Optimizer:
    name: str
    arguments: dict[str, Any]
    tensor_rate: bool = False  # the learning rate is a tensor, as it has to be to change between replays

    def make(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        rate = torch.tensor(1e-2, device="mtia") if self.tensor_rate else 1e-2
        optimizer: torch.optim.Optimizer = getattr(torch.optim, self.name)(parameters, lr=rate, **self.arguments)
        return optimizer


OPTIMIZERS = (
    Optimizer("SGD", {"momentum": 0.9}),
    *(Optimizer(name, {"capturable": True, "foreach": True}, tensor_rate=True) for name in ("Adam", "AdamW")),
    *(Optimizer(name, {"capturable": True, "fused": True}, tensor_rate=True) for name in ("Adam", "AdamW")),
    Optimizer("Adam", {"capturable": True, "foreach": False}),
    *(
        Optimizer(name, {"capturable": True})
        for name in ("NAdam", "RAdam", "Adamax", "ASGD", "Rprop", "RMSprop", "Adadelta")
    ),
)


def plain_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> Step:
    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


@pytest.mark.parametrize("optimizer_of", OPTIMIZERS, ids=str)
def test_a_captured_step_trains_as_an_eager_one(optimizer_of: Optimizer) -> None:
    def make_step(x: torch.Tensor, y: torch.Tensor) -> Step:
        model = network()
        return plain_step(model, optimizer_of.make(model.parameters()), x, y)

    assert losses(make_step, captured=True) == losses(make_step, captured=False)


def test_dropout_in_a_captured_step_draws_as_an_eager_one() -> None:
    def make_step(x: torch.Tensor, y: torch.Tensor) -> Step:
        model = nn.Sequential(network(), nn.Dropout(0.3))
        return plain_step(model, torch.optim.SGD(model.parameters(), lr=0.1), x, y)

    assert losses(make_step, captured=True) == losses(make_step, captured=False)


def test_amp_with_a_grad_scaler_is_captured() -> None:
    def make_step(x: torch.Tensor, y: torch.Tensor) -> Step:
        model = network()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, capturable=True, fused=True)
        scaler = torch.amp.GradScaler("mtia", init_scale=2.0**24, growth_interval=4)

        def step() -> torch.Tensor:
            optimizer.zero_grad()
            with torch.autocast("mtia", torch.float16, cache_enabled=False):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            return loss.detach()

        return step

    assert losses(make_step, captured=True) == losses(make_step, captured=False)


def test_clipping_gradients_is_captured() -> None:
    def make_step(x: torch.Tensor, y: torch.Tensor) -> Step:
        model = network()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, capturable=True)

        def step() -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            return loss.detach()

        return step

    assert losses(make_step, captured=True) == losses(make_step, captured=False)


def test_a_double_backward_is_captured() -> None:
    x = torch.rand(8, device="mtia", requires_grad=True)

    def penalty() -> torch.Tensor:
        (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        return second

    penalty()
    graph, second = capture(penalty)
    with torch.no_grad():
        x.copy_(torch.arange(8.0))
    graph.replay()
    assert second.tolist() == (6 * torch.arange(8.0)).tolist()


@pytest.fixture
def train_text(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example, as a module."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    spec = importlib.util.spec_from_file_location("train_text", EXAMPLES / "train_text.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "train_text", module)
    spec.loader.exec_module(module)
    return module


def test_the_transformer_of_the_example_trains_in_a_graph(train_text: ModuleType) -> None:
    shape = train_text.Shape(alphabet=60, context=32, layers=2, width=32, heads=2, dropout=0.1)
    generator = torch.Generator().manual_seed(3)
    text = torch.randint(60, (4, 33), generator=generator).to("mtia")
    model = train_text.GPT(shape).to("mtia")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, capturable=True)
    inputs, targets = text[:, :-1].clone(), text[:, 1:].clone()

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = train_text.cross_entropy(model(inputs), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    first = step().item()
    graph, loss = capture(step)
    for _ in range(60):
        graph.replay()
    assert loss.item() < first / 2
