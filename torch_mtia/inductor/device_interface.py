"""What torch.compile asks of the device under the other name: the counterpart of Dynamo's own interface for mtia."""

from __future__ import annotations

from typing import Any

import torch
from torch._dynamo import device_interface as upstream

from torch_mtia import _C, device_module
from torch_mtia.backend import device_type
from torch_mtia.triton.architecture import architecture


class DeviceInterface(upstream.DeviceInterface):
    """Made of `torch_mtia.device_module`."""

    device = device_module.device
    Event = torch.Event
    Stream = torch.Stream

    class Worker:
        """For processes that compile, which never take the device into use."""

        @staticmethod
        def set_device(device: int) -> None:
            upstream.caching_worker_current_devices[device_type()] = device

        @staticmethod
        def current_device() -> int:
            cached = upstream.caching_worker_current_devices.get(device_type())
            return device_module.current_device() if cached is None else cached

        @staticmethod
        def get_device_properties(device: torch.types.Device = None) -> Any:
            index = DeviceInterface.Worker.current_device() if device is None else device_module._index(device)
            cached = upstream.caching_worker_device_properties
            if device_type() not in cached:
                count = device_module.device_count()
                cached[device_type()] = [device_module.get_device_properties(i) for i in range(count)]
            return cached[device_type()][index]

    current_device = staticmethod(device_module.current_device)
    set_device = staticmethod(device_module.set_device)
    device_count = staticmethod(device_module.device_count)
    stream = staticmethod(device_module.stream)
    current_stream = staticmethod(device_module.current_stream)
    set_stream = staticmethod(device_module.set_stream)
    _set_stream_by_id = staticmethod(device_module._set_stream_by_id)
    synchronize = staticmethod(device_module.synchronize)
    get_device_properties = staticmethod(device_module.get_device_properties)
    get_raw_stream = staticmethod(_C._current_raw_stream)  # type: ignore[assignment] # the name of its argument
    exchange_device = staticmethod(device_module._exchange_device)
    maybe_exchange_device = staticmethod(device_module._maybe_exchange_device)
    memory_allocated = staticmethod(device_module.memory_allocated)
    is_bf16_supported = staticmethod(device_module.is_bf16_supported)
    is_available = staticmethod(device_module.is_available)

    @staticmethod
    def get_compute_capability(device: torch.types.Device = None) -> str:  # noqa: ARG004 - the same for all
        """Inductor makes it the architecture of Triton's target."""
        return architecture()

    @staticmethod
    def is_triton_capable(device: torch.types.Device = None) -> bool:  # noqa: ARG004
        return True

    @staticmethod
    def raise_if_triton_unavailable(device: torch.types.Device = None) -> None:
        pass
