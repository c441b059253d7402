"""What Inductor writes into generated code to choose devices and streams, and what it cannot write for mtia."""

from __future__ import annotations

from typing import NoReturn

from torch._inductor.codegen.mtia.device_op_overrides import MTIADeviceOpOverrides

from torch_mtia.door import device_type

CPP_METHODS = (
    "cpp_device_guard",
    "cpp_aoti_device_guard",
    "cpp_stream_guard",
    "cpp_aoti_stream_guard",
    "cpp_getStreamFromExternal",
    "kernel_header",
    "kernel_driver",
    "cpp_stream_type",
    "aoti_get_stream",
    "cpp_kernel_type",
    "cpp_device_ptr",
    "tma_descriptor_helpers",
    "cpp_scratch",
)


class DeviceOpOverrides(MTIADeviceOpOverrides):
    """Upstream's, with the device's name, and with errors that say what is missing: its methods that write C++ raise
    without a message."""

    def import_get_raw_stream_as(self, name: str) -> str:
        return f"from torch_mtia._C import _current_raw_stream as {name}"

    def set_device(self, device_idx: int) -> str:
        return f"torch.{device_type()}.set_device({device_idx})"

    def synchronize(self) -> str:
        return f"torch.{device_type()}.synchronize()"

    def device_guard(self, device_idx: int) -> str:
        return f"torch.{device_type()}.device({device_idx})"

    def current_stream(self) -> str:
        return f"torch.{device_type()}.current_stream()"


def _refuse(_self: DeviceOpOverrides, *_arguments: object, **_options: object) -> NoReturn:
    raise NotImplementedError(
        f"{device_type()} has no C++ wrapper: AOTInductor (aot_compile, aoti_compile_and_package) and the option "
        "cpp_wrapper need libtorch's C shims of the device, which PyTorch has for CPU, CUDA, XPU and MPS only. Use "
        "torch.compile, whose code is cached, or torch.export and the exported program's module()."
    )


for _name in CPP_METHODS:
    setattr(DeviceOpOverrides, _name, _refuse)
