"""The extension module, built from csrc/python/module.cpp."""

from collections.abc import Callable, Sequence
from typing import Any, TypedDict, final

import torch

class DriverInfo(TypedDict):
    name: str
    version: str
    abi_version: int
    capabilities: list[str]

@final
class Kernel:
    """A kernel image, loaded on a device."""

    def __new__(cls, name: str, image: bytes, device: int) -> Kernel: ...
    def unload(self) -> None: ...

@final
class KernelLauncher:
    """Packs the arguments of a kernel and launches it. Triton calls it: see torch_mtia.triton.launch."""

    def __new__(cls, arguments: Sequence[object]) -> KernelLauncher: ...
    def __call__(
        self,
        grid_x: int,
        grid_y: int,
        grid_z: int,
        stream: int,
        function: Kernel,
        packed_metadata: object,
        launch_metadata: object,
        enter_hook: Callable[[Any], object] | None,
        exit_hook: Callable[[Any], object] | None,
        /,
        *args: object,
    ) -> None: ...

def _configure(
    library: str,
    num_devices: int,
    memory_per_device: int,
    launch_blocking: bool,
    delay_seed: int,
    log_launches: bool,
) -> None: ...
def _hooks_registered_in_time() -> bool: ...
def _driver_info() -> DriverInfo: ...
def _fallback_stats() -> dict[str, int]: ...
def _fallback_reset() -> None: ...
def _fallback_set_warn(mode: str) -> None: ...
def _fallback_set_denied(operators: list[str]) -> None: ...
def _fallback_forbid(enable: bool) -> None: ...
def _set_memory_fraction(fraction: float, device: int) -> None: ...
def _memory_fraction(device: int) -> float: ...
def _set_check_bounds(check: bool) -> None: ...
def _empty_strided(sizes: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, /) -> torch.Tensor: ...
def _bench_launch(count: int, run_inline: bool) -> float: ...
