"""Device memory, beside what `torch.accelerator` and `torch.mtia` offer: limits, and host views. See docs/memory.md."""

from __future__ import annotations

import ctypes

import torch

from torch_mtia import _C
from torch_mtia.backend import device_module, device_type

__all__ = ["get_per_process_memory_fraction", "host_view", "set_per_process_memory_fraction"]

Device = torch.device | int | str | None


def _index(device: Device) -> int:
    if isinstance(device, int):
        return device
    if device is None:
        return _C._current_device()
    resolved = torch.device(device)
    if resolved.type != device_type():
        raise ValueError(f"device must be an {device_type()} device, not {resolved}")
    return _C._current_device() if resolved.index is None else resolved.index


def set_per_process_memory_fraction(fraction: float, device: Device = None) -> None:
    """Limits the memory of a device that this process allocates, cached blocks included.

    An allocation beyond the limit first empties the cache, and then raises `torch.OutOfMemoryError`. Memory that is
    already allocated stays. Mirrors `torch.cuda.set_per_process_memory_fraction`.

    Args:
        fraction: of the device's memory, from 0 to 1.
        device: the current device if None.

    Raises:
        ValueError: the fraction is not between 0 and 1, or the device is not an mtia device.
    """
    if not 0 <= fraction <= 1:
        raise ValueError(f"fraction must be from 0 to 1, got {fraction}")
    _C._set_memory_fraction(float(fraction), _index(device))


def get_per_process_memory_fraction(device: Device = None) -> float:
    """Returns the fraction that `set_per_process_memory_fraction` set, or 1.0.

    Mirrors `torch.cuda.get_per_process_memory_fraction`.

    Raises:
        ValueError: the device is not an mtia device.
    """
    return _C._memory_fraction(_index(device))


def host_view(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a CPU tensor on the same memory, without a copy.

    Waits for all work on the tensor's device first. Afterwards nothing orders the host's accesses and the device's:
    synchronize before the host reads what the device has written since, and do not write while the device uses the
    tensor. The view keeps the memory alive unless the tensor's storage is resized or replaced.

    Args:
        tensor: a strided tensor of the device, of any shape, strides and dtype, that does not require a gradient.

    Returns:
        A tensor of the same shape, strides and dtype on the CPU, for NumPy, DLPack and the like.

    Raises:
        ValueError: the tensor is on another device, or not strided.
        RuntimeError: the tensor requires a gradient (`host_view(tensor.detach())` does not), or the process was forked
            from one that uses the device.
        NotImplementedError: the host cannot access the device's memory; `tensor.cpu()` copies.
    """
    if tensor.device.type != device_type():
        raise ValueError(f"tensor must be on {device_type()}, not on {tensor.device}")
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise ValueError(f"tensor must be strided, not {'quantized' if tensor.is_quantized else tensor.layout}")
    if tensor.requires_grad:
        raise RuntimeError(
            "tensor requires a gradient, which a view of the host cannot have: host_view(tensor.detach())"
        )
    if device_module()._is_in_bad_fork():
        raise RuntimeError(
            "this process was forked from one that uses the device, whose memory it does not have: start it with the "
            "multiprocessing start method 'spawn'"
        )
    storage = tensor.untyped_storage()
    address = storage.data_ptr()  # a lazy clone gets memory of its own here, which the device fills
    device_module().synchronize(tensor.device)
    if storage.nbytes():
        buffer = (ctypes.c_ubyte * storage.nbytes()).from_address(_C._host_address(address))
        buffer.owner = storage  # type: ignore[attr-defined]  # an instance of a class of ours, which may have it
        memory = torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()
    else:
        memory = torch.UntypedStorage(0)
    view = torch.empty(0, dtype=tensor.dtype, device="cpu")
    view.set_(memory, tensor.storage_offset(), tensor.size(), tensor.stride())
    if tensor.is_conj():
        view = view.conj()
    return torch._neg_view(view) if tensor.is_neg() else view
