"""What `torch.mtia.get_device_properties` returns."""

from __future__ import annotations

from typing import Any


class DeviceProperties(dict[str, Any]):
    """Properties of a device, by key (as torch.mtia documents) and by attribute (as Inductor reads them).

    Keys: name, architecture, total_memory (bytes), L2_cache_size (bytes), multi_processor_count (cores), warp_size,
    major, minor, max_grid_height and max_grid_width (whose product is the number of cores).
    """

    def __init__(self, properties: dict[str, Any]) -> None:
        super().__init__(properties)
        # Meta's devices have a rectangle of cores. Libraries take the product for the number of processors.
        self.setdefault("max_grid_height", 1)
        self.setdefault("max_grid_width", self["multi_processor_count"])

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"device properties have no {name!r}; they have {', '.join(self)}") from None

    def __reduce__(self) -> tuple[type[DeviceProperties], tuple[dict[str, Any]]]:
        return (DeviceProperties, (dict(self),))
