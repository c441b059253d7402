"""For PyTorch's own device-generic tests: TORCH_TEST_DEVICES=<this file> makes them run on mtia.

PyTorch runs this file with the names of torch.testing._internal.common_device_type and takes TEST_CLASS from it.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch.testing._internal.common_device_type import DeviceTypeTestBase


class MTIATestBase(DeviceTypeTestBase):
    """Instantiates a class of tests for mtia."""

    device_type = "mtia"
    primary_device: ClassVar[str] = "mtia:0"

    @classmethod
    def get_primary_device(cls) -> str:
        return cls.primary_device

    @classmethod
    def get_all_devices(cls) -> list[str]:
        others = (f"mtia:{index}" for index in range(torch.mtia.device_count()))
        return [cls.primary_device, *(name for name in others if name != cls.primary_device)]

    @classmethod
    def setUpClass(cls) -> None:
        cls.primary_device = f"mtia:{torch.mtia.current_device()}"


TEST_CLASS = MTIATestBase
