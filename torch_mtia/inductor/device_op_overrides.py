"""What Inductor writes into generated code, Python and C++, to choose devices and streams, and to launch kernels."""

from __future__ import annotations

from typing import NoReturn

from torch._inductor.codegen.common import TritonScratchWorkspace
from torch._inductor.codegen.mtia.device_op_overrides import MTIADeviceOpOverrides

from torch_mtia.backend import device_type, dispatch_key


class DeviceOpOverrides(MTIADeviceOpOverrides):
    """Upstream's, which writes Python, with the device's name; and C++ over csrc/aoti/wrapper.h."""

    def import_get_raw_stream_as(self, name: str) -> str:
        return f"from torch_mtia._C import DeviceGuard, _current_raw_stream as {name}"

    def set_device(self, _device_idx: int) -> str:
        """Returns no call: the guard has done it."""
        return "pass"

    def synchronize(self) -> str:
        return f"torch.{device_type()}.synchronize()"

    def device_guard(self, device_idx: int) -> str:
        return f"DeviceGuard({device_idx})"

    def current_stream(self) -> str:
        return f"torch.{device_type()}.current_stream()"

    def uses_gpu_cpp_wrapper(self) -> bool:
        return True

    def aten_device_type(self) -> str:
        return f"at::k{dispatch_key()}"

    def cpp_aoti_device_guard(self) -> str:
        return "AOTIMtiaGuard"

    def cpp_aoti_stream_guard(self) -> str:
        return "AOTIMtiaStreamGuard"

    def kernel_driver(self) -> str:
        """Returns nothing: the wrapper's header has it."""
        return ""

    def cpp_stream_type(self) -> str:
        return "mtia_stream"

    def aoti_get_stream(self) -> str:
        return "aoti_torch_get_current_mtia_stream"

    def cpp_kernel_type(self) -> str:
        return "MTIAKernelHandle"

    def cpp_device_ptr(self) -> str:
        return "mtia_device_ptr"

    def cpp_scratch(self, _idx: int, workspace: TritonScratchWorkspace, prefix: str | None = None) -> None:
        """Kernels get their scratch memory from the driver."""

    def tma_descriptor_helpers(self) -> NoReturn:
        raise NotImplementedError(
            "a kernel with tensor descriptors that are made on the host cannot be launched by C++ code of "
            f"{device_type()}: make the descriptor in the kernel, with tl.make_tensor_descriptor"
        )
