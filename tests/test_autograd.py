"""Networks train on the device as on the CPU, whatever autograd is asked for."""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from tests.conftest import RunScript


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.LayerNorm(32), nn.Linear(32, 10))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "SGD, one by one": lambda parameters: torch.optim.SGD(parameters, lr=0.1, foreach=False),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-2),
    "AdamW, fused": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, fused=True),
}


def losses(model: nn.Module, optimizer_name: str, device: torch.device, steps: int = 10) -> list[float]:
    generator = torch.Generator().manual_seed(1)
    model = copy.deepcopy(model).to(device)
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    found = []
    for _ in range(steps):
        x = torch.randn(32, 64, generator=generator).to(device)
        target = torch.randint(0, 10, (32,), generator=generator).to(device)
        loss = nn.functional.cross_entropy(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("network", [mlp, cnn])
def test_training_is_that_of_the_cpu(device: torch.device, network: Callable[[], nn.Module], optimizer: str) -> None:
    model = network()
    expected = losses(model, optimizer, torch.device("cpu"))
    assert losses(model, optimizer, device) == pytest.approx(
        expected, rel=1e-5 if optimizer.startswith("SGD") else 1e-4
    )


def test_gradients_accumulate(device: torch.device) -> None:
    x = torch.ones(3, device=device, requires_grad=True)
    for _ in range(3):
        (x * 2).relu().backward(torch.ones(3, device=device))
    assert x.grad is not None
    assert x.grad.tolist() == [6, 6, 6]


def test_numerical_gradients_agree(device: torch.device) -> None:
    x, y = (torch.randn(3, 4, dtype=torch.float64, device=device, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(lambda x, y: (x * y).relu() + x.tanh() * 2 - y, (x, y))
    assert torch.autograd.gradgradcheck(lambda x, y: x * y * x + y.tanh(), (x, y))


def test_double_backward_of_a_network(device: torch.device) -> None:
    def penalty(where: torch.device, model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        model, x = copy.deepcopy(model).to(where), x.to(where).requires_grad_()
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        gradient.square().sum().backward()
        return torch.cat([p.grad.flatten().cpu() for p in model.parameters() if p.grad is not None])

    model, x = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)), torch.randn(5, 4)
    torch.testing.assert_close(penalty(device, model, x), penalty(torch.device("cpu"), model, x))


def test_hooks_see_and_change_gradients(device: torch.device) -> None:
    seen = []
    x = torch.ones(3, device=device, requires_grad=True)
    y = x * 2
    y.register_hook(lambda gradient: gradient * 10)
    x.register_post_accumulate_grad_hook(lambda leaf: seen.append(leaf.grad.tolist()))
    y.sum().backward()
    assert seen == [[20, 20, 20]]


def test_module_hooks(device: torch.device) -> None:
    model = nn.Linear(2, 2).to(device)
    order: list[str] = []
    model.register_forward_hook(lambda *_: order.append("forward"))
    model.register_full_backward_hook(lambda *_: order.append("backward"))
    model(torch.ones(1, 2, device=device, requires_grad=True)).sum().backward()
    assert order == ["forward", "backward"]


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoints_recompute_with_the_same_random_numbers(device: torch.device, use_reentrant: bool) -> None:
    block = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5), nn.ReLU()).to(device)

    def gradients(run: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
        torch.manual_seed(3)
        x = torch.ones(8, 64, device=device, requires_grad=True)
        block.zero_grad()
        run(x).square().sum().backward()
        return [leaf.grad.cpu() for leaf in (x, *block.parameters()) if leaf.grad is not None]

    expected = gradients(block)
    actual = gradients(lambda x: checkpoint(block, x, use_reentrant=use_reentrant))
    torch.testing.assert_close(actual, expected)


def test_saved_tensors_may_be_kept_on_the_cpu(device: torch.device) -> None:
    x = torch.randn(100, device=device, requires_grad=True)
    with torch.autograd.graph.save_on_cpu():
        y = (x * x).exp().sum()
    y.backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, (2 * x * (x * x).exp()).detach())


def test_an_operand_changed_in_place_is_noticed(device: torch.device) -> None:
    x = torch.ones(3, device=device, requires_grad=True)
    y = x * 2
    z = (y * y).sum()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()


def test_custom_functions(device: torch.device) -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(_: torch.autograd.function.FunctionCtx, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(_: torch.autograd.function.FunctionCtx, gradient: torch.Tensor) -> torch.Tensor:
            assert gradient.device == device
            return gradient * 2

    x = torch.ones(3, device=device, requires_grad=True)
    Double.apply(x).sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert x.grad.tolist() == [2, 2, 2]


def test_backward_runs_on_the_streams_of_forward() -> None:
    x = torch.ones(2**22, device="mtia", requires_grad=True)
    stream = torch.Stream("mtia")
    stream.wait_stream(torch.mtia.current_stream())
    with torch.mtia.stream(stream):
        y = x
        for _ in range(8):
            y = y * 2
        y = y.relu()
    torch.mtia.current_stream().wait_stream(stream)
    (y * 1).backward(torch.ones(2**22, device="mtia"))
    assert x.grad is not None
    assert (x.grad.cpu() == 256).all()


def test_threads_may_train_at_once(device: torch.device) -> None:
    model = mlp()
    expected = losses(model, "SGD", device, 3)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: losses(model, "SGD", device, 3), range(4)):
            assert found == pytest.approx(expected, rel=1e-5)


def test_gradients_cross_devices(run_script: RunScript) -> None:
    finished = run_script(
        """
        import torch
        x = torch.ones(3, device="mtia:0", requires_grad=True)
        w = torch.full((3,), 2.0, device="mtia:1", requires_grad=True)
        ((x * 3).to("mtia:1") * w).cpu().sum().backward()
        assert x.grad.device.index == 0 and x.grad.tolist() == [6, 6, 6]
        assert w.grad.device.index == 1 and w.grad.tolist() == [3, 3, 3]
        """,
        TORCH_MTIA_DEVICES="2",
    )
    finished.output()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("ending", ["torch.set_grad_enabled(False)", "torch.inference_mode().__enter__()"])
def test_a_script_may_end_without_gradients(run_script: RunScript, ending: str) -> None:
    finished = run_script(f"""
        import torch
        x = torch.ones(3, device="mtia", requires_grad=True)
        (x * 2).sum().backward()
        assert x.grad.tolist() == [2.0] * 3
        mode = {ending}
    """)
    finished.output()
    assert "atexit" not in finished.stderr


@pytest.mark.slow
@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.wide), 4])
def test_a_script_may_end_right_after_its_first_backward(run_script: RunScript, devices: int) -> None:
    script = """
    import torch
    x = torch.ones(3, device="mtia", requires_grad=True)
    (x * 2).sum().backward()
    """
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(run_script, script, TORCH_MTIA_DEVICES=str(devices)) for _ in range(10)]
    assert [run.result().returncode for run in runs] == [0] * 10
    assert {run.result().stderr for run in runs} == {""}
