"""Limits on device memory, beside what `torch.accelerator` and `torch.mtia` offer: see docs/memory.md."""

from __future__ import annotations

import torch

from torch_mtia import _C
from torch_mtia.door import device_type

__all__ = ["get_per_process_memory_fraction", "set_per_process_memory_fraction"]

Device = torch.device | int | str | None


def _index(device: Device) -> int:
    if isinstance(device, int):
        return device
    if device is None:
        return torch.accelerator.current_device_index()
    resolved = torch.device(device)
    if resolved.type != device_type():
        raise ValueError(f"device must be an {device_type()} device, not {resolved}")
    return torch.accelerator.current_device_index() if resolved.index is None else resolved.index


def set_per_process_memory_fraction(fraction: float, device: Device = None) -> None:
    """Limits what this process holds of a device's memory, cached blocks included.

    Beyond it, allocations return the cache and then raise `torch.OutOfMemoryError`. Memory that is held already stays.
    Mirrors `torch.cuda.set_per_process_memory_fraction`.

    Args:
        fraction: of the device's memory, from 0 to 1.
        device: the current one if None.

    Raises:
        ValueError: the fraction is not between 0 and 1, or the device is not an mtia device.
    """
    if not 0 <= fraction <= 1:
        raise ValueError(f"fraction must be from 0 to 1, got {fraction}")
    _C._set_memory_fraction(float(fraction), _index(device))


def get_per_process_memory_fraction(device: Device = None) -> float:
    """The fraction in force: 1.0, unless set. Mirrors `torch.cuda.get_per_process_memory_fraction`."""
    return _C._memory_fraction(_index(device))
