"""DLPack: values go to and come from other libraries by copy; sharing the device's memory is refused.

DLPack's list of devices has no `mtia`, so no library could know what it gets.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.dlpack import from_dlpack


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
