"""What the suites of devices share as fixtures of pytest, beside the device itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch


@pytest.fixture
def accelerator(device: torch.device) -> torch.device:
    """The device, which is not the CPU."""
    if device.type == "cpu":
        pytest.skip("the CPU has no streams, events or memory of its own")
    return device


@pytest.fixture
def module(accelerator: torch.device) -> Any:
    """torch.<device type>."""
    return torch.get_device_module(accelerator)


@pytest.fixture
def second(accelerator: torch.device) -> torch.device:
    if torch.accelerator.device_count() < 2:
        pytest.skip("there is one device")
    return torch.device(accelerator.type, 1)
