"""Triton's driver for mtia: which device and stream a kernel runs on, and how it is loaded and launched."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase

from torch_mtia.triton import launch
from torch_mtia.triton.architecture import architecture

if TYPE_CHECKING:
    import torch

    from torch_mtia._C import Kernel

# Triton only counts warps against it; programs on mtia have none.
WARP_SIZE = 32
NO_LIMIT = 1 << 20
# Writing so many bytes leaves little else in the processor's caches, and takes some milliseconds.
CACHE_SIZE = 64 << 20
CPP_TYPES = {
    "i1": "int8_t",
    "i8": "int8_t",
    "i16": "int16_t",
    "i32": "int32_t",
    "i64": "int64_t",
    "u1": "uint8_t",
    "u8": "uint8_t",
    "u16": "uint16_t",
    "u32": "uint32_t",
    "u64": "uint64_t",
    "fp16": "double",
    "bf16": "double",
    "fp32": "double",
    "f32": "double",
    "fp64": "double",
}

_asking_others = False


class Utilities:
    """What Triton calls the driver's `utils`."""

    def load_binary(self, name: str, image: bytes, _shared: int, device: int) -> tuple[Kernel, Kernel, int, int, int]:
        """The module, its function, and what they take of a GPU: registers, spills, threads at most.

        Triton loads a kernel again at every launch if the module is None, and Inductor takes a kernel of no registers
        for one that is not loaded.
        """
        from torch_mtia._C import Kernel

        kernel = Kernel(name, image, device)
        return kernel, kernel, 1, 0, NO_LIMIT

    def unload_module(self, module: Kernel) -> None:
        module.unload()

    def get_device_properties(self, device: int) -> dict[str, int]:
        import torch

        properties = torch._C._mtia_getDeviceProperties(device)
        return {
            "max_shared_mem": properties["L2_cache_size"],
            "max_num_regs": NO_LIMIT,
            "multiprocessor_count": properties["multi_processor_count"],
            "warpSize": WARP_SIZE,
        }


def _find_a_home() -> None:
    """Lets Triton keep what it compiles in a temporary folder where the home folder cannot be written."""
    try:
        os.makedirs(knobs.cache.dir, exist_ok=True)
        can_be_written = os.access(knobs.cache.dir, os.W_OK)
    except OSError:
        can_be_written = False
    if can_be_written or "TRITON_HOME" in os.environ:
        return
    home = os.path.join(tempfile.gettempdir(), f"triton_{os.getuid()}")
    os.makedirs(home, mode=0o700, exist_ok=True)
    # Code is loaded from it: one that another user has made is not used.
    is_own = os.lstat(home).st_uid == os.getuid()
    os.environ["TRITON_HOME"] = home if is_own else tempfile.mkdtemp(prefix="triton_")


class MTIADriver(DriverBase):
    launcher_cls = staticmethod(launch.make_launcher)

    def __init__(self) -> None:
        super().__init__()
        import torch

        from torch_mtia import _C

        _find_a_home()
        self.utils = Utilities()
        # Not those of torch.accelerator, which may be another device.
        self.get_current_device: Callable[[], int] = _C._current_device
        self.set_current_device: Callable[[int], int] = torch._C._mtia_exchangeDevice
        self.get_current_stream: Callable[[int], int] = _C._current_raw_stream

    @classmethod
    def is_active(cls) -> bool:
        """True unless the user named another backend, or another one has found its device.

        Asked in processes that only compile, so it touches no device.
        """
        if default := os.environ.get("TRITON_DEFAULT_BACKEND"):
            return default == "mtia"
        return not _another_is_active()

    def map_python_to_cpp_type(self, ty: str) -> str:
        return "uint64_t" if ty.startswith("*") else CPP_TYPES[ty]

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("mtia", architecture(), WARP_SIZE)

    def get_active_torch_device(self) -> torch.device:
        import torch

        from torch_mtia.backend import device_type

        return torch.device(device_type(), self.get_current_device())

    def get_device_interface(self) -> ModuleType:
        from torch_mtia.backend import device_module

        return device_module()

    def get_benchmarker(self) -> Callable[..., Any]:
        from triton.testing import do_bench

        return do_bench  # type: ignore[no-any-return]

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        import torch

        from torch_mtia.backend import device_type

        return torch.empty(CACHE_SIZE, dtype=torch.int8, device=device_type())

    def clear_cache(self, cache: torch.Tensor) -> None:
        cache.zero_()


def _another_is_active() -> bool:
    """Whether another backend's driver says that it is active.

    A backend that decides as ours does would ask back: then ours is not there.
    """
    global _asking_others
    from triton.backends import backends

    if _asking_others:
        return False
    _asking_others = True
    try:
        return any(backend.driver.is_active() for name, backend in backends.items() if name != "mtia")
    finally:
        _asking_others = False
