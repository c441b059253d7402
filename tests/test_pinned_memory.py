"""Pinned host memory: what it is, and that copies to and from it do not wait."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

if TYPE_CHECKING:
    from tests.conftest import RunScript

LARGE = 1 << 22  # elements


def busy() -> None:
    """Gives the current stream work for some time."""
    x = torch.ones(1 << 24, device="mtia")
    for _ in range(10):
        x = x * 2


def test_pinned_tensors_say_so() -> None:
    x = torch.arange(10)
    assert not x.is_pinned()
    pinned = x.pin_memory()
    assert pinned.is_pinned()
    assert pinned[3:].is_pinned()
    assert torch.equal(pinned, x)
    assert pinned.pin_memory() is pinned
    assert torch.empty(5, pin_memory=True).is_pinned()
    assert not torch.empty(5, device="mtia").is_pinned()


def test_a_copy_to_the_device_does_not_wait() -> None:
    source = torch.arange(LARGE, dtype=torch.float32).pin_memory()
    busy()
    x = source.to("mtia", non_blocking=True)
    assert not torch.mtia.current_stream().query()
    assert torch.equal(x.cpu(), source)


def test_a_copy_to_the_host_does_not_wait() -> None:
    x = torch.arange(LARGE, dtype=torch.float32, device="mtia")
    target = torch.zeros(LARGE, pin_memory=True)
    busy()
    target.copy_(x, non_blocking=True)
    assert not torch.mtia.current_stream().query()
    torch.mtia.synchronize()
    assert torch.equal(target, torch.arange(LARGE, dtype=torch.float32))


@pytest.mark.parametrize("pinned", [False, True])
def test_a_copy_that_converts(pinned: bool) -> None:
    source = torch.randn(300, 500)
    host = source.pin_memory() if pinned else source
    x = torch.empty(500, 300, dtype=torch.float64, device="mtia").t()
    x.copy_(host, non_blocking=True)
    assert torch.equal(x.cpu(), source.double())
    back = torch.empty(300, 500, dtype=torch.float16, pin_memory=pinned)
    back.copy_(x, non_blocking=True)
    torch.mtia.synchronize()
    assert torch.equal(back, source.double().half())


def test_memory_in_use_by_a_copy_is_not_given_out_again() -> None:
    torch.accelerator.empty_host_cache()
    source = torch.ones(LARGE).pin_memory()
    address = source.data_ptr()
    busy()
    x = source.to("mtia", non_blocking=True)
    del source
    other = torch.full((LARGE,), -1.0, pin_memory=True)
    assert other.data_ptr() != address or torch.mtia.current_stream().query()
    assert (x.cpu() == 1).all()


def test_memory_in_use_through_another_storage_is_not_given_out_again(run_script: RunScript) -> None:
    script = """
        import torch
        for step in range(5):
            h = torch.full((100_000,), 1.0, pin_memory=True)
            x = torch.zeros(100_000 - 16, device="mtia")
            x.copy_(torch.from_numpy(h.numpy()[16:]), non_blocking=True)
            del h
            other = torch.full((100_000,), -7.0, pin_memory=True)  # takes the memory, if it is free
            assert (x.cpu() == 1).all()
            del other

            h = torch.full((100_000,), 1.0, pin_memory=True)
            torch.from_numpy(h.numpy()[16:]).copy_(x * 3, non_blocking=True)
            del h
            other = torch.full((100_000,), -7.0, pin_memory=True)
            torch.mtia.synchronize()
            assert (other == -7).all()
    """
    for seed in ("1", "2"):
        run_script(script, TORCH_MTIA_DELAY=seed).output()


def test_pinned_memory_is_kept_for_the_next_request() -> None:
    torch.mtia.synchronize()
    x = torch.empty(LARGE, pin_memory=True)
    address = x.data_ptr()
    del x
    assert torch.empty(LARGE, pin_memory=True).data_ptr() == address
    gc.collect()
    torch.accelerator.empty_host_cache()


def test_a_data_loader_pins_its_batches() -> None:
    data = TensorDataset(torch.arange(64).float(), torch.arange(64))
    seen = []
    for x, y in DataLoader(data, batch_size=16, pin_memory=True):
        assert x.is_pinned()
        assert y.is_pinned()
        seen.append(x.to("mtia", non_blocking=True).cpu())
    assert torch.equal(torch.cat(seen), torch.arange(64).float())
