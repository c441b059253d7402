"""Data on its way to a device and back: loaders, pinned memory, processes, storages, NumPy, DLPack, printing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from torch_mtia.conformance.agreement import EXACT, assert_agrees, numbers
from torch_mtia.conformance.database import CPU, assert_same

pytestmark = pytest.mark.filterwarnings("ignore")

N = 1 << 12


# Loaders and copies --------------------------------------------------------------------------------------------------


@pytest.mark.time_limit(240)
@pytest.mark.parametrize(("workers", "pinned"), [(0, False), (0, True), (2, False), (2, True)])
def test_a_loader_feeds_the_device(device: torch.device, workers: int, pinned: bool) -> None:
    features, labels = numbers(103, 6), torch.arange(103)
    loader = DataLoader(TensorDataset(features, labels), batch_size=10, num_workers=workers, pin_memory=pinned)
    rows, seen = torch.zeros(6, device=device), []
    for batch, label in loader:
        assert batch.is_pinned() == (pinned and torch.accelerator.is_available())
        rows += batch.to(device, non_blocking=True).sum(0)
        seen.append(label.to(device, non_blocking=True))
    assert torch.equal(torch.cat(seen).cpu(), labels)
    assert_same(rows, features.sum(0), device, {"rtol": 1e-4, "atol": 1e-4})


def test_collating_on_the_device(device: torch.device) -> None:
    dataset = TensorDataset(numbers(10, 3, device=device), torch.arange(10, device=device))
    order = torch.Generator().manual_seed(0)
    parts = [*DataLoader(dataset, batch_size=4, shuffle=True, generator=order)]
    assert all(tensor.device == device for part in parts for tensor in part)
    assert sorted(torch.cat([part[1] for part in parts]).tolist()) == [*range(10)]


def test_pinned_memory(accelerator: torch.device) -> None:
    host = numbers(N)
    assert not host.is_pinned()
    pinned = host.pin_memory()
    assert pinned.is_pinned()
    assert pinned.pin_memory().data_ptr() == pinned.data_ptr()
    assert pinned[10:].is_pinned()
    assert torch.equal(pinned, host)
    for made in (torch.empty(5, pin_memory=True), torch.zeros_like(host, pin_memory=True)):
        assert made.is_pinned()
    assert torch.empty_like(pinned).is_pinned() is False
    with pytest.raises(RuntimeError, match="pin"):
        host.to(accelerator).pin_memory()


def test_copies_that_do_not_block(device: torch.device) -> None:
    host = numbers(N)
    if device != CPU:
        host = host.pin_memory()
    back = [torch.empty_like(host) for _ in range(8)]
    there = host.to(device, non_blocking=True)
    for result in back:
        there = there + 1
        result.copy_(there, non_blocking=True)
    if device != CPU:
        torch.accelerator.synchronize()
    expected = host.clone()
    for result in back:
        expected = expected + 1
        assert torch.equal(result, expected)


COPIES: dict[str, Callable[[torch.device], Any]] = {
    "to another dtype": lambda d: torch.empty(3, 4, dtype=torch.int64, device=d).copy_(numbers(3, 4) * 9),
    "to strides": lambda d: torch.zeros(4, 6, device=d)[:, ::2].copy_(numbers(4, 3)),
    "broadcast": lambda d: torch.zeros(5, 4, device=d).copy_(numbers(4)),
    "conjugated": lambda d: torch.zeros(4, dtype=torch.complex64, device=d).copy_(
        numbers(4, dtype=torch.complex64).conj()
    ),
    "to an overlap of itself": lambda d: (x := numbers(9).to(d))[1:].copy_(x[:-1].clone()),
    "to channels last": lambda d: (
        torch.zeros(2, 3, 4, 5, device=d).contiguous(memory_format=torch.channels_last).copy_(numbers(2, 3, 4, 5))
    ),
    "of nothing": lambda d: torch.zeros(0, 3, device=d).copy_(torch.zeros(0, 3)),
    "of a number": lambda d: torch.zeros((), device=d).copy_(torch.tensor(4)),
    "to with copy": lambda d: (x := numbers(3).to(d)).to(d, copy=True).add_(x),
    "type": lambda d: numbers(3).to(d).type(torch.float64),
    "foreach": lambda d: torch._foreach_copy_(
        [torch.zeros(3, device=d), torch.zeros(2, device=d)], [numbers(3), numbers(2)]
    ),
}


# The results lie on the CPU.
COPIES_BACK: dict[str, Callable[[torch.device], Any]] = {
    "from the device with another dtype": lambda d: torch.empty(3, 4, dtype=torch.float64).copy_(numbers(3, 4).to(d)),
    "from strides": lambda d: torch.zeros(3, 4).copy_(numbers(4, 6).to(d)[:, ::2].t()),
    "broadcast from the device": lambda d: torch.zeros(5, 4).copy_(numbers(4).to(d)),
    "conjugated from the device": lambda d: torch.zeros(4, dtype=torch.complex64).copy_(
        numbers(4, dtype=torch.complex64).to(d).conj()
    ),
}


@pytest.mark.parametrize("name", [*COPIES, *COPIES_BACK])
def test_copies(device: torch.device, name: str) -> None:
    if name in COPIES:
        assert_agrees(COPIES[name], device, EXACT)
    else:
        assert_same(COPIES_BACK[name](device), COPIES_BACK[name](CPU), CPU, EXACT)


def test_to_returns_the_tensor_itself_where_nothing_changes(device: torch.device) -> None:
    x = numbers(4, device=device)
    assert x.to(device) is x
    assert x.to(device.type) is x
    assert x.to(torch.float32) is x
    assert x.to(device, copy=True) is not x
    assert x.to(x).data_ptr() == x.data_ptr()


def _doubled(registers: Callable[[], None], tensors: Any, answers: Any) -> None:
    registers()
    tensor = tensors.get()
    answers.put((tensor * 2).cpu().tolist())


@pytest.mark.time_limit(240)
def test_tensors_for_another_process(device: torch.device, registers: Callable[[], None]) -> None:
    context: Any = torch.multiprocessing.get_context("spawn")
    tensors, answers = context.Queue(), context.Queue()
    process = context.Process(target=_doubled, args=(registers, tensors, answers))
    process.start()
    sent = torch.arange(4.0, device=device)
    tensors.put(sent)
    assert answers.get(timeout=120) == [0, 2, 4, 6]
    process.join()


# Storages, NumPy, printing -------------------------------------------------------------------------------------------


def test_storages(device: torch.device) -> None:
    x = torch.arange(6, dtype=torch.float32, device=device)
    storage = x.untyped_storage()
    assert (storage.device, storage.nbytes(), len(storage)) == (device, 24, 24)
    assert storage.data_ptr() == x.data_ptr()
    assert bytes(storage.tolist()) == numpy.arange(6, dtype=numpy.float32).tobytes()
    assert bytes(storage.cpu().tolist()) == bytes(storage.tolist())
    assert storage.clone().data_ptr() != storage.data_ptr()
    storage.fill_(0)  # type: ignore[attr-defined]
    assert x.tolist() == [0] * 6
    storage.resize_(0)
    assert storage.nbytes() == 0
    made = torch.UntypedStorage(16, device=device)
    assert torch.zeros(0, dtype=torch.int32, device=device).set_(made).shape == (4,)
    typed = torch.arange(3, device=device).storage()
    assert (typed.dtype, typed.tolist(), typed[1]) == (torch.int64, [0, 1, 2], 1)


def test_storages_are_copied_across(device: torch.device) -> None:
    here = torch.arange(4, dtype=torch.int32).untyped_storage()
    there = torch.UntypedStorage(16, device=device).copy_(here)
    assert there.tolist() == here.tolist()
    assert torch.UntypedStorage(16).copy_(there).tolist() == here.tolist()
    with pytest.raises(RuntimeError):
        torch.zeros(0, device=device).set_(torch.UntypedStorage(4, device="meta"))


def test_numpy(device: torch.device) -> None:
    array = numpy.arange(12, dtype=numpy.float64).reshape(3, 4)
    there = torch.from_numpy(array).to(device)
    assert numpy.array_equal(there.numpy(force=True), array)
    assert numpy.array_equal(there.t()[1:].cpu().numpy(), array.T[1:])
    assert torch.tensor(array, device=device).dtype == torch.float64
    assert (there + numpy.float64(2)).device == device
    assert (there * numpy.int64(2)).dtype == torch.float64
    assert numpy.array_equal(there.requires_grad_().numpy(force=True), array)
    if device != CPU:
        with pytest.raises(TypeError, match="cpu"):
            there.detach().numpy()


def test_dlpack(device: torch.device) -> None:
    dlpack: Any = torch.utils.dlpack
    x = torch.arange(6.0, device=device).view(2, 3).t()
    for shared in (dlpack.from_dlpack(x), dlpack.from_dlpack(dlpack.to_dlpack(x))):
        assert (shared.device, shared.data_ptr(), shared.stride()) == (device, x.data_ptr(), x.stride())
        assert torch.equal(shared, x)


def test_lists_and_numbers(device: torch.device) -> None:
    here = numbers(2, 3, 2)
    for x in (here, here.t_() if here.dim() == 2 else here.transpose(0, 2), here[:0], here[0, 0, 0]):
        assert x.to(device).tolist() == x.tolist()
    assert float(numbers(1, device=device)) == numbers(1).item()
    assert [*range(5)][torch.tensor(3, device=device)] == 3
    assert complex(torch.tensor(1 + 2j, device=device)) == 1 + 2j
    with pytest.raises(RuntimeError, match="Tensor with 3 elements"):
        numbers(3, device=device).item()
    with pytest.raises(RuntimeError, match="ambiguous"):
        bool(numbers(3, device=device) > 0)


PRINTED: dict[str, Callable[[torch.device], torch.Tensor]] = {
    "number": lambda d: torch.tensor(2.5, device=d),
    "matrix": lambda d: torch.arange(6.0, device=d).view(2, 3),
    "large and small": lambda d: torch.tensor([1e-8, 1.0, 1e8], device=d),
    "not finite": lambda d: torch.tensor([float("inf"), float("nan"), -float("inf")], device=d),
    "complex": lambda d: torch.tensor([1 + 2j], device=d),
    "summarized": lambda d: torch.arange(5000, device=d),
    "no elements": lambda d: torch.zeros(0, 3, device=d),
    "leaf": lambda d: torch.ones(2, device=d, requires_grad=True),
    "result": lambda d: torch.ones(2, device=d, requires_grad=True) * 2,
    "parameter": lambda d: torch.nn.Parameter(torch.ones(2, device=d)),
    "bool": lambda d: torch.tensor([True, False], device=d),
}


@pytest.mark.parametrize("name", PRINTED)
def test_printing(device: torch.device, name: str) -> None:
    def words(tensor: torch.Tensor) -> str:
        return "".join(repr(tensor).replace(f"device='{device}', ", "").replace(f", device='{device}'", "").split())

    tensor = PRINTED[name](device)
    assert device == CPU or f"device='{device}'" in repr(tensor)
    assert words(tensor) == words(PRINTED[name](CPU))
    assert f"{tensor}" == (str(tensor.item()) if tensor.dim() == 0 else str(tensor))
