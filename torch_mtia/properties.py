"""What `torch.mtia.get_device_properties` returns."""

from __future__ import annotations

from typing import Any


class DeviceProperties(dict[str, Any]):
    """Properties of a device, by key (as torch.mtia documents) and by attribute (as Inductor reads them).

    Keys: name, architecture, total_memory (bytes), L2_cache_size (bytes), multi_processor_count (cores), warp_size,
    major, minor.
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"device properties have no {name!r}; they have {', '.join(self)}") from None

    def __reduce__(self) -> tuple[type[DeviceProperties], tuple[dict[str, Any]]]:
        return (DeviceProperties, (dict(self),))
