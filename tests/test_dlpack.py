"""DLPack: values go to and come from other libraries by copy, or through the host's view of the device's memory.

DLPack's list of devices has no `mtia`, so no library could know what it gets: device memory itself is refused.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.utils.dlpack import from_dlpack

from torch_mtia.memory import host_view


@pytest.fixture(autouse=True)
def _needs_the_device(device: torch.device) -> None:
    if device.type == "cpu":
        pytest.skip("about the device's memory")


def test_a_library_of_the_host_gets_a_copy_if_it_asks_for_one() -> None:
    x = torch.arange(3.0, device="mtia")
    array = np.from_dlpack(x, device="cpu")
    x.zero_()
    assert array.tolist() == [0, 1, 2]


def test_the_protocol_exports_a_copy_for_the_host() -> None:
    x = torch.arange(3.0, device="mtia")
    kind_of_cpu, index = torch.ones(1).__dlpack_device__()
    copy = from_dlpack(x.__dlpack__(dl_device=(kind_of_cpu, index)))
    assert copy.device.type == "cpu"
    assert copy.tolist() == [0, 1, 2]


def test_host_memory_comes_in_as_a_copy() -> None:
    array = np.ones(3, dtype=np.float32)
    x = from_dlpack(array, device="mtia")
    array[:] = 7
    assert x.device.type == "mtia"
    assert x.tolist() == [1, 1, 1]


def test_sharing_the_devices_memory_is_refused() -> None:
    x = torch.arange(3.0, device="mtia")
    with pytest.raises(ValueError, match="Unknown device type mtia for Dlpack"):
        from_dlpack(x)
    with pytest.raises(RuntimeError, match="Unsupported device"):
        np.from_dlpack(x)


# The host's view of device memory -------------------------------------------------------------------------------------


def test_a_library_of_the_host_reads_and_writes_device_memory_through_a_view() -> None:
    x = torch.arange(6.0, device="mtia").view(2, 3)
    array = np.from_dlpack(host_view(x))
    assert array.tolist() == [[0, 1, 2], [3, 4, 5]]
    array[1] = 7
    assert (x * 2).tolist() == [[0, 2, 4], [14, 14, 14]]
    x.add_(1)
    torch.accelerator.synchronize()
    assert array.tolist() == [[1, 2, 3], [8, 8, 8]]


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.complex64])
def test_a_view_is_of_any_dtype(dtype: torch.dtype) -> None:
    x = torch.tensor([0, 1, 1, 0], device="mtia").to(dtype)
    view = host_view(x)
    assert (view.device.type, view.dtype) == ("cpu", dtype)
    assert torch.equal(view.view(torch.uint8), x.cpu().view(torch.uint8))


@pytest.mark.parametrize(
    "part",
    [
        lambda x: x[1:, ::2],
        lambda x: x.t(),
        lambda x: x[:, :1].expand(-1, 5),
        lambda x: x[:0],
        lambda x: x[2, 3],
        lambda x: x.unfold(1, 2, 1),
        lambda x: torch.view_as_complex(x.view(4, 3, 2)).conj(),
        lambda x: torch.view_as_complex(x.view(4, 3, 2)).conj().imag,
    ],
    ids=["slice", "transposed", "expanded", "no elements", "one element", "overlapping", "conjugated", "negated"],
)
def test_a_view_lies_as_its_tensor_does(part: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = part(torch.arange(24.0, device="mtia").view(4, 6))
    view = host_view(x)
    assert (view.size(), view.stride(), view.storage_offset()) == (x.size(), x.stride(), x.storage_offset())
    assert torch.equal(view, x.cpu())


def test_a_view_waits_for_the_work_of_all_streams() -> None:
    side = torch.Stream("mtia")
    x = torch.zeros(1 << 22, device="mtia")
    side.wait_stream(torch.accelerator.current_stream())
    with side:
        for _ in range(20):
            x.add_(1)
    assert host_view(x).eq(20).all()


def test_a_view_keeps_the_memory() -> None:
    view = host_view(torch.full((1000,), 3.0, device="mtia"))
    others = [torch.zeros(1000, device="mtia") for _ in range(10)]
    torch.accelerator.synchronize()
    assert view.eq(3).all()
    assert all(other.eq(0).all() for other in others)


def test_a_view_of_a_lazy_clone_is_of_its_own_memory() -> None:
    x = torch.arange(3.0, device="mtia")
    clone = torch._lazy_clone(x)
    host_view(clone).fill_(5)
    assert (x.tolist(), clone.tolist()) == ([0, 1, 2], [5, 5, 5])


def test_what_has_no_view_says_why() -> None:
    with pytest.raises(ValueError, match="tensor must be on mtia, not on cpu"):
        host_view(torch.ones(2))
    with pytest.raises(ValueError, match="tensor must be strided"):
        host_view(torch.eye(2, device="mtia").to_sparse())
    with pytest.raises(RuntimeError, match=r"host_view\(tensor\.detach\(\)\)"):
        host_view(torch.ones(2, device="mtia", requires_grad=True))


@pytest.mark.parametrize("values", [[], [1.0, 2.0]])
def test_a_view_of_the_host_is_on_the_cpu_whatever_the_default_device(
    device: torch.device, values: list[float]
) -> None:
    x = torch.tensor(values, device=device)
    with device:
        view = host_view(x)
    assert view.device.type == "cpu"
    assert view.tolist() == values
