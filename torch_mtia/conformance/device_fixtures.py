"""What the suites of devices share as fixtures of pytest, beside the device itself."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from torch_mtia.conformance.settings import Settings, register_device


@pytest.fixture
def accelerator(device: torch.device) -> torch.device:
    """The device, which is not the CPU."""
    if device.type == "cpu":
        pytest.skip("the CPU has no streams, events or memory of its own")
    return device


@pytest.fixture
def registers(device: torch.device, pytestconfig: pytest.Config) -> Callable[[], None]:
    """For a process that a test starts: makes the device known there, if it is not."""
    settings = Settings.from_json(pytestconfig.getoption("--conformance"))
    return functools.partial(register_device, str(device), settings.imports)


@pytest.fixture
def module(accelerator: torch.device) -> Any:
    """torch.<device type>."""
    return torch.get_device_module(accelerator)


@pytest.fixture
def second(accelerator: torch.device) -> Iterator[torch.device]:
    if torch.accelerator.device_count() < 2:
        pytest.skip("there is one device")
    yield torch.device(accelerator.type, 1)
    torch.accelerator.synchronize(1)  # a late error is the test's own
