"""Runs kernel images on CPU tensors, without the device: the vehicle of the compiler's tests.

`activate()` makes a Triton driver the active one whose launcher maps an image, calls its entry in this thread, and
raises what the program reported. Device addresses are host addresses, so the host offset is 0.
"""

from __future__ import annotations

import ctypes
import dataclasses
import mmap
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import triton
from triton.backends import Backend, backends
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime import driver as triton_driver

from torch_mtia.triton import image
from torch_mtia.triton.architecture import architecture
from torch_mtia.triton.compiler import MTIABackend

_CONTEXT = struct.Struct("<I3iqQQQQQQ")
_CELL = struct.Struct("<q3ii256s")
_LIBM = ctypes.CDLL("libm.so.6")
_UNARY = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)
_PRINT = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64)


def _address(name: str) -> int:
    return ctypes.cast(getattr(_LIBM, name), ctypes.c_void_p).value or 0


def _bessel(order: int) -> Any:
    from scipy import special

    return _UNARY(special.i0 if order == 0 else special.i1)


_BESSEL = (_bessel(0), _bessel(1))
_RARE = (ctypes.c_uint64 * 16)(
    *map(_address, ("lgamma", "tgamma", "j0", "j1", "y0", "y1")),
    *(ctypes.cast(function, ctypes.c_void_p).value or 0 for function in _BESSEL),
    *map(_address, ("sin", "cos", "tan", "jn", "yn", "pow", "fmod", "remainder")),
)

printed: list[str] = []  # what kernels printed


@_PRINT
def _print(sink: int, text: int, size: int) -> None:
    printed.append(ctypes.string_at(text, size).decode())


class Kernel:
    """A loaded image."""

    def __init__(self, data: bytes) -> None:
        self.header = image.read(data)
        self.memory = mmap.mmap(-1, len(data), prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        self.memory[:] = data
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        for place in self.header.relocations:
            value = struct.unpack_from("<Q", self.memory, place)[0]
            struct.pack_into("<Q", self.memory, place, value + self.base)
        entry = self.base + self.header.code_offset + self.header.entry_offset
        pointer = ctypes.c_void_p
        self.entry = ctypes.CFUNCTYPE(None, pointer, pointer, ctypes.c_int64, ctypes.c_int64, pointer)(entry)
        self.scratch = ctypes.create_string_buffer(self.header.scratch_size + 64)

    def pack(self, arguments: Sequence[Any]) -> bytes:
        block = bytearray(self.header.packed_size)
        for value, (kind, size, offset) in zip(arguments, self.header.arguments, strict=True):
            if isinstance(value, torch.Tensor):
                value = value.data_ptr()
            if kind == image.FLOAT:
                struct.pack_into({2: "<e", 4: "<f", 8: "<d"}[size], block, offset, value)
            else:
                block[offset : offset + size] = (int(value or 0) & ((1 << 8 * size) - 1)).to_bytes(size, "little")
        return bytes(block)

    def run(
        self, grid: Sequence[int], arguments: Sequence[Any], live_ranges: Sequence[tuple[int, int]] | None = None
    ) -> None:
        packed = ctypes.create_string_buffer(self.pack(arguments), max(self.header.packed_size, 1))
        cell = ctypes.create_string_buffer(_CELL.size)
        ranges = b"".join(struct.pack("<QQ", *span) for span in sorted(live_ranges or ()))
        spans = ctypes.create_string_buffer(ranges, len(ranges) + 1)
        context = ctypes.create_string_buffer(
            _CONTEXT.pack(
                _CONTEXT.size,
                *grid,
                0,
                ctypes.addressof(cell),
                ctypes.cast(_print, ctypes.c_void_p).value or 0,
                0,
                ctypes.addressof(spans) if live_ranges is not None else 0,
                len(live_ranges or ()),
                ctypes.addressof(_RARE),
            )
        )
        scratch = -(-ctypes.addressof(self.scratch) // 64) * 64
        self.entry(packed, context, 0, grid[0] * grid[1] * grid[2], scratch)
        reported, x, y, z, line, message = _CELL.unpack(cell.raw)
        if reported:
            text = message.rstrip(b"\0").partition(b"\0")[0].decode()
            raise RuntimeError(f"{text} (program {x}, {y}, {z}; line {line})")


live_ranges: list[tuple[int, int]] | None = None  # for kernels that check bounds


class _Utils:
    def load_binary(self, name: str, data: bytes, shared: int, device: int) -> tuple[Any, Any, int, int, int]:
        kernel = Kernel(data)
        return kernel, kernel, 0, 0, 1 << 20

    def unload_module(self, module: Any) -> None:
        pass

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": 1 << 30, "multiprocessor_count": os.cpu_count() or 1, "warpSize": 32}


def _flatten(value: Any, type: Any, found: list[Any]) -> None:
    if isinstance(type, tuple):
        for inner, inner_type in zip(value, type, strict=True):
            _flatten(inner, inner_type, found)
    elif isinstance(type, str) and type.startswith("tensordesc"):
        found += [value.base, *value.shape, *value.strides, value.padding == "nan"]
        if hasattr(value, "round_f32_to_tf32"):
            found.append(value.round_f32_to_tf32)
        found += [*value.shape, *value.strides]
    elif type != "constexpr":
        found.append(value)


class _Launcher:
    def __init__(self, source: Any, metadata: Any) -> None:
        self.signature = list(source.signature.values())

    def __call__(self, gx: int, gy: int, gz: int, stream: int, function: Kernel, *rest: Any) -> None:
        _, launch_metadata, enter, leave, *arguments = rest
        flat: list[Any] = []
        for value, type_ in zip(arguments, self.signature, strict=True):
            _flatten(value, type_, flat)
        if enter:
            enter(launch_metadata)
        function.run((gx, gy, gz), flat, live_ranges)
        if leave:
            leave(launch_metadata)


class CPUDriver(DriverBase):
    def __init__(self) -> None:
        self.utils = _Utils()
        self.launcher_cls = _Launcher

    @classmethod
    def is_active(cls) -> bool:
        return False

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("mtia", architecture(), 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_benchmarker(self) -> Callable[..., Any]:
        return triton.testing.do_bench  # type: ignore[no-any-return]

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        pass

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_device_interface(self) -> Any:
        return torch.cpu

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        return torch.empty(1 << 20, dtype=torch.int8)

    def clear_cache(self, cache: torch.Tensor) -> None:
        cache.zero_()


@dataclasses.dataclass
class _Held:
    driver: CPUDriver | None = None


_held = _Held()


def activate() -> None:
    """Makes `kernel[grid](...)` compile with this backend and run on CPU tensors."""
    backends.setdefault("mtia", Backend(MTIABackend, CPUDriver))
    if _held.driver is None:
        _held.driver = CPUDriver()
    triton_driver.set_active(_held.driver)


@pytest.fixture
def image_driver() -> Iterator[None]:
    """For one test, kernels run on CPU tensors."""
    activate()
    yield
    triton_driver._active = None  # found anew where it is needed


def with_source(template: Any, **replacements: str) -> Any:
    """The kernel with words of its source replaced, to test one operation after the other."""
    kernel = triton.JITFunction(template.fn)
    source = kernel.src
    for word, text in replacements.items():
        source = source.replace(word, text)
    kernel._unsafe_update_src(source)
    return kernel
