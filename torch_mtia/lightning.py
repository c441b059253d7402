"""Lightning's accelerator for the devices, `Trainer(accelerator="mtia")`, under the name that the devices have.

Lightning is published as the packages `lightning`, `pytorch_lightning` and `lightning_fabric`; each has classes of its
own. Their registries are the extension point. What goes through lists is in upstream_gates.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from torch_mtia.backend import device_module, device_type
from torch_mtia.import_hooks import after_import

REGISTRIES = {
    "lightning.pytorch.accelerators": "AcceleratorRegistry",
    "lightning.fabric.accelerators": "ACCELERATOR_REGISTRY",
    "pytorch_lightning.accelerators": "AcceleratorRegistry",
    "lightning_fabric.accelerators": "ACCELERATOR_REGISTRY",
}


def register() -> None:
    """Makes the accelerator known to Lightning when that is imported, and again when the devices get another name."""
    for module in REGISTRIES:
        after_import(module, _register)


def is_accelerator(accelerator: Any) -> bool:
    return getattr(accelerator, "is_of_torch_mtia", False)


def _register(module: ModuleType) -> None:
    registry = getattr(module, REGISTRIES[module.__name__])
    if device_type() not in registry:
        registry.register(device_type(), _accelerator(module.Accelerator), description="the devices of torch_mtia")


def _accelerator(base: Any) -> type:
    class MTIAAccelerator(base):  # type: ignore[misc]
        is_of_torch_mtia = True

        def setup_device(self, device: torch.device) -> None:
            device_module().set_device(device)

        def get_device_stats(self, device: Any) -> dict[str, Any]:
            return dict(torch.accelerator.memory_stats(device))  # flat: each is a metric

        def teardown(self) -> None:
            device_module().empty_cache()

        @staticmethod
        def parse_devices(devices: Any) -> list[int]:
            return parse_devices(devices)

        @staticmethod
        def get_parallel_devices(devices: list[int]) -> list[torch.device]:
            return [torch.device(device_type(), index) for index in devices]

        @staticmethod
        def auto_device_count() -> int:
            count: int = device_module().device_count()
            return count

        @staticmethod
        def is_available() -> bool:
            available: bool = device_module().is_available()
            return available

        @staticmethod
        def name() -> str:
            return device_type()

    return MTIAAccelerator


def parse_devices(devices: int | str | list[int]) -> list[int]:
    """Returns a number of devices, -1 for all, or their indices: of Lightning's arguments `devices`."""
    given = devices
    count: int = device_module().device_count()
    if isinstance(devices, str):
        parts = [int(part) for part in devices.split(",") if part.strip()]
        devices = parts[0] if len(parts) == 1 and "," not in devices else parts
    if isinstance(devices, int):
        devices = list(range(count if devices == -1 else devices))
    if not isinstance(devices, list | tuple) or not devices:
        raise ValueError(f"devices must be a number of them, -1 for all, or a list of their indices, not {given!r}")
    if missing := [index for index in devices if index not in range(count)]:
        raise ValueError(
            f"there are {count} devices of {device_type()}, and no {missing}: set TORCH_MTIA_DEVICES to have more"
        )
    return devices
