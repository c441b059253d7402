"""The device @NAME@: what is @NAME@'s own. What every device has to do, the conformance suite tests."""

import pytest
import torch

import torch_mtia

DEVICE = "@NAME@"


def test_device_is_the_accelerator():
    assert torch.accelerator.current_accelerator().type == DEVICE
    assert torch.get_device_module(DEVICE).device_count() >= 1
    assert torch_mtia._C._driver_info()["name"] == DEVICE


def test_network_learns():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(64, 4, device=DEVICE)
    losses = []
    for _ in range(20):
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


def test_streams_and_events():
    stream = torch.Stream(DEVICE)
    start, end = torch.Event(DEVICE, enable_timing=True), torch.Event(DEVICE, enable_timing=True)
    with stream:
        start.record()
        x = torch.ones(1000, device=DEVICE) * 2
        end.record()
    stream.synchronize()
    assert start.elapsed_time(end) >= 0
    assert x.sum().item() == 2000


def test_memory_runs_out():
    _, total = torch.accelerator.get_memory_info()
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(total + 1, dtype=torch.uint8, device=DEVICE)


def test_own_operator():
    x = torch.randn(2, 12, 3, 5)
    torch_mtia.fallback.reset()
    with torch_mtia.fallback.forbid():
        result = torch.pixel_shuffle(x.to(DEVICE), 2)
    assert torch.equal(result.cpu(), torch.pixel_shuffle(x, 2))


def test_own_operator_checks_its_arguments():
    x = torch.ones(3, 4, 4, device=DEVICE)
    with pytest.raises(RuntimeError, match="cannot be shuffled"):
        torch.pixel_shuffle(x, 2)
