"""Which calls concern the device: a replacement leaves all others to what it replaces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from torch_mtia.backend import device_type


def is_ours(*values: Any) -> bool:
    """Whether one of the values is on the device; if none is on any device, whether the device is the accelerator.

    Values are tensors, devices, nodes of a graph that stand for tensors (Dynamo's nodes, too), Inductor's buffers, and
    containers of these.
    """
    if len(values) == 1 and type(values[0]) is torch.Tensor:  # quickly
        return values[0].device.type == device_type()
    types = {device.type for value in values for device in _devices(value)}
    return device_type() in types if types else is_the_accelerator()


def is_the_accelerator() -> bool:
    """Whether the device is the accelerator of this process: no other one is available."""
    try:
        accelerator = torch.accelerator.current_accelerator(check_available=True)
    except RuntimeError:  # there are two
        return False
    return accelerator is not None and accelerator.type == device_type()


def lowered_graph() -> Any:
    """Returns the graph that Inductor is lowering, if a tensor in it is on the device."""
    from torch._inductor.virtualized import V

    return V.graph if device_type() in getattr(V.graph, "device_types", ()) else None


def is_compiled() -> bool:
    """Whether the graph that Inductor is lowering is on the device; if there is none, whether the device is the
    accelerator."""
    from torch._inductor.virtualized import V

    types = getattr(V.graph, "device_types", ())
    return device_type() in types if types else is_the_accelerator()


def _devices(value: Any) -> Iterator[torch.device]:
    if isinstance(value, torch.device):
        yield value
    elif isinstance(value, torch.Tensor):
        yield getattr(value, "fake_device", value.device)  # in a kernel, a fake tensor's device is meta
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _devices(each)
    elif isinstance(value, dict):
        yield from _devices(list(value.values()))
    elif isinstance(meta := getattr(value, "meta", None), dict):
        yield from _devices(meta.get("val", meta.get("example_value")))
    elif callable(get_device := getattr(value, "get_device", None)):
        yield from _devices(get_device())
